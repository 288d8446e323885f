"""``mindie-kvpool status``: will the hooks be set in the daemon and in its workers, and if not, why."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.host import compat
from mindie_kvpool_plugin.host.interpreters import Interpreter, Problem, Side, Survey, User, UserError, survey
from mindie_kvpool_plugin.host.interpreters.users import named

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("status", cls=SpeakingCommand)
@click.option("--user", metavar="NAME")
@click.option("--daemon-python", type=_FILE, metavar="PATH")
@click.option("--worker", type=_FILE, metavar="PATH")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@lang_option
def command(user: str | None, daemon_python: Path | None, worker: Path | None, form: str, lang: str) -> None:
    """Exit status: 0 when all hooks will be set in daemon and workers, 1 when not, 2 when it was asked wrongly."""
    chosen = chosen_language(lang)
    found = survey(_user(user, chosen), _absolute(daemon_python), _absolute(worker))
    if form == "json":
        click.echo(json.dumps(_as_object(found, chosen), indent=2, ensure_ascii=False, default=str))
    else:
        click.echo("\n".join(_lines(found, chosen)))
    sys.exit(0 if found.is_hooked else 1)


def _user(name: str | None, lang: Language) -> User | None:
    try:
        return named(name) if name is not None else None
    except UserError as error:
        key, asked = error.args
        raise click.UsageError(words(key, lang, name=asked)) from None


def _absolute(path: Path | None) -> Path | None:
    """As it was named: of a virtual environment the link itself says where it is."""
    return None if path is None else path.absolute()


def _lines(found: Survey, lang: Language) -> Iterator[str]:
    yield f"mindie-kvpool-plugin {__version__}, {words('status.user', lang, name=found.user.name)}"
    for name, side in (("daemon", found.daemon), ("worker", found.worker)):
        yield ""
        yield words(f"status.{name}", lang, origin=side.launch.origin or "-")
        yield from (f"  {line}" for line in _side_lines(side, lang))
    yield ""
    for each in (*found.differences, *found.remarks):
        yield _told(each, lang)
    yield words("status.active" if found.is_hooked else "status.stays_out", lang)


def _side_lines(side: Side, lang: Language) -> Iterator[str]:
    if side.seen is not None:
        yield from _seen_lines(side.seen, lang)
    for each in side.warnings:
        yield _told(each, lang)
    if side.problem is None:
        yield words("status.hooked", lang)
        return
    yield _told(side.problem, lang)
    yield words("status.fix", lang, fix=_fix(side.problem, lang))


def _seen_lines(seen: Interpreter, lang: Language) -> Iterator[str]:
    yield words("status.python", lang, version=seen.version, executable=seen.executable or seen.prefix)
    if seen.plugin is None:
        yield "mindie-kvpool-plugin: " + words("status.not_installed", lang)
    else:
        yield words("status.plugin", lang, version=seen.plugin_version, directory=seen.plugin)
    yield words("status.armed" if seen.is_armed else "status.not_armed", lang)
    yield from _host_lines(seen, lang)
    yield "Mooncake: " + words("status.installed" if seen.has_mooncake else "status.not_installed", lang)


def _host_lines(seen: Interpreter, lang: Language) -> Iterator[str]:
    """The host, and every place of it that a hook needs and that is not there."""
    if seen.host is None:
        yield "MindIE-LLM: " + words("status.not_installed", lang)
        return
    tested = ", ".join(compat.TESTED_VERSIONS)
    yield words("status.host", lang, version=seen.host_version, tested=tested, directory=seen.host)
    if not seen.places:
        return
    yield words("status.fits", lang, fitting=seen.places - len(seen.problems), places=seen.places)
    why = {(place.module, place.name): f" ({place.why(lang)})" for place in compat.PLACES}
    for module, name, problem in seen.problems:
        mark = words("status.does_not_fit", lang, problem=problem)
        yield f"  {module}.{name}: {mark}{why.get((module, name), '')}"


def _told(problem: Problem, lang: Language) -> str:
    return words(f"status.cause.{problem.name}", lang, **problem.values)


def _fix(problem: Problem, lang: Language) -> str:
    return words(f"status.fix.{problem.name}", lang, **problem.values)


def _as_object(found: Survey, lang: Language) -> dict[str, Any]:
    def told(each: Problem) -> dict[str, str]:
        return {"name": each.name, "message": _told(each, lang)}

    def one(side: Side) -> dict[str, Any]:
        problem = side.problem and {**told(side.problem), "fix": _fix(side.problem, lang)}
        return {
            "hooked": side.problem is None,
            "problem": problem,
            "warnings": [told(each) for each in side.warnings],
            "origin": side.launch.origin,
            "interpreter": None if side.seen is None else dataclasses.asdict(side.seen),
        }

    return {
        "hooked": found.is_hooked,
        "version": __version__,
        "user": found.user.name,
        "daemon": one(found.daemon),
        "worker": one(found.worker),
        "differences": [told(each) for each in found.differences],
        "remarks": [told(each) for each in found.remarks],
    }
