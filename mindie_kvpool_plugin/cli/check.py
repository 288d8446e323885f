"""``mindie-kvpool check``: what is wrong in config.json, where, and how to fix it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.messages import Language, system_reason, words
from mindie_kvpool_plugin.check.pipeline import CheckReport, check_bytes, read_limited, read_object
from mindie_kvpool_plugin.check.schema.profiles import DEFAULT_HOST_VERSION, HOST_VERSIONS
from mindie_kvpool_plugin.check.situation import Situation, default_config, find_home
from mindie_kvpool_plugin.check.text.document import Document
from mindie_kvpool_plugin.check.text.load import MAX_BYTES
from mindie_kvpool_plugin.cli.explain import complete_code
from mindie_kvpool_plugin.cli.refusing import one_line_refusals
from mindie_kvpool_plugin.cli.reporters import FOR_PEOPLE, REPORTERS, quiet_report
from mindie_kvpool_plugin.cli.reporters.spots import STANDARD_INPUT, STANDARD_OUTPUT
from mindie_kvpool_plugin.cli.selection import Selection, codes_named
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.targets import Named, find_targets

FAILED, UNREADABLE = 1, 2
Repairs = Callable[[bytes, str, Situation], bytes]


@click.command(name="check", cls=SpeakingCommand)
@click.argument("files", nargs=-1, metavar="[PATH]...", type=Named(path_type=str))
@click.option("--pool-config", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--host-version",
    type=click.Choice(list(HOST_VERSIONS)),
    default=DEFAULT_HOST_VERSION,
    show_default=True,
)
@click.option("--env", "overrides", multiple=True, metavar="KEY=VALUE")
@click.option("--no-env", is_flag=True)
@click.option("--dies", type=click.IntRange(min=1))
@click.option("--scale-out", is_flag=True)
@click.option("--model-config", type=click.Path(readable=False, path_type=Path))
@click.option("--no-follow", is_flag=True)
@click.option("--format", "form", type=click.Choice(list(REPORTERS)), default="text", show_default=True)
@lang_option
@click.option("--select", multiple=True, metavar="CODES", shell_complete=complete_code)
@click.option("--ignore", multiple=True, metavar="CODES", shell_complete=complete_code)
@click.option("-q", "--quiet", is_flag=True)
@click.option("--strict", is_flag=True)
@click.option("--fix", "wants_fix", is_flag=True)
@click.option("--diff", "wants_diff", is_flag=True)
@click.option("--output", type=click.Path(path_type=Path))
def command(
    *,
    files: tuple[str, ...],
    pool_config: Path | None,
    host_version: str,
    overrides: tuple[str, ...],
    no_env: bool,
    dies: int | None,
    scale_out: bool,
    model_config: Path | None,
    no_follow: bool,
    form: str,
    lang: str,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    quiet: bool,
    strict: bool,
    wants_fix: bool,
    wants_diff: bool,
    output: Path | None,
) -> None:
    """Exit status: 0 no errors, 1 errors, 2 could not check."""
    gc.disable()  # a short process; collecting while a hostile file is read would double its time
    chosen = chosen_language(lang)
    env = _environment(overrides, no_env=no_env)
    if model_config is not None:
        with one_line_refusals("check", chosen):
            read_object(model_config)  # else the rules about the model would be left out without a word
    names = _names(files, env, chosen)
    _refuse_pairs(names, output, wants_fix=wants_fix, wants_diff=wants_diff, is_selected=bool(select or ignore))
    selection = Selection(
        codes_named(select, "--select"),
        codes_named(ignore, "--ignore"),
        frozenset({"error", "warning"} if strict else {"error"}),
        quiet,
    )
    known = Situation(
        host_version=host_version,
        env=env,
        is_env_known=not no_env,
        dies=dies,
        scale_out=scale_out,
        follow=not no_follow,
        weight_config=model_config,
        pool_file=pool_config,
    )
    repairs = _repairs(output, chosen, quiet=form != "text", wants_diff=wants_diff) if wants_fix or wants_diff else None
    # all repairs first: a configuration is judged with its pool file as it is then
    contents = [_content(name, _situation(name, known), repairs) for name in names]
    pairs = zip(names, contents, strict=True)
    results = _without_named_pools([_checked(name, _situation(name, known), content) for name, content in pairs])
    is_piped = (
        wants_fix
        and not wants_diff
        and (output == Path(STANDARD_OUTPUT) or (output is None and STANDARD_INPUT in names))
    )
    _say([selection.of(result) for result in results], form, chosen, quiet=quiet, err=is_piped)
    sys.exit(_status(results, selection))


def _refuse_pairs(
    names: list[str], output: Path | None, *, wants_fix: bool, wants_diff: bool, is_selected: bool
) -> None:
    """Options that contradict each other."""
    if output is not None and (not wants_fix or wants_diff or len(names) > 1):
        raise click.UsageError(words("check.output_needs_fix", chosen_language("auto")))
    if (wants_fix or wants_diff) and is_selected:
        raise click.UsageError(words("check.fix_selects_nothing", chosen_language("auto")))


def _environment(overrides: tuple[str, ...], *, no_env: bool) -> dict[str, str]:
    env = {} if no_env else dict(os.environ)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not key or not equals:
            raise click.BadParameter(
                words("check.no_assignment", chosen_language("auto"), value=override), param_hint="--env"
            )
        env[key] = value
    return env


def _names(files: tuple[str, ...], env: dict[str, str], lang: Language) -> list[str]:
    """What to check, as reports call it; exit 2 when there is nothing."""
    if files:
        with one_line_refusals("check", lang):
            names = find_targets(files)
        if not names:
            click.echo(words("target.none", lang, folder=", ".join(files)), err=True)
            sys.exit(UNREADABLE)
        return [STANDARD_INPUT if name == "-" else name for name in names]
    path = default_config(env)
    if path is None:
        click.echo(words("check.no_default", lang), err=True)
        sys.exit(UNREADABLE)
    return [str(path)]


def _repairs(output: Path | None, lang: Language, *, quiet: bool, wants_diff: bool) -> Repairs:
    from mindie_kvpool_plugin.cli.fix import fix, show  # noqa: PLC0415  # difflib and tempfile, for a tenth of all runs

    if wants_diff:
        return partial(show, lang=lang, quiet=quiet)
    return partial(fix, output=output, lang=lang, quiet=quiet)


def _situation(name: str, known: Situation) -> Situation:
    path = None if name == STANDARD_INPUT else Path(name)
    return replace(known, config_path=path, home=find_home(known.env, path))


def _content(name: str, situation: Situation, repairs: Repairs | None) -> bytes | OSError:
    """The bytes to check, repaired if that is wanted; or why there are none."""
    path = situation.config_path
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if path is None else read_limited(path)
    except OSError as error:
        return error
    return data if repairs is None else repairs(data, name, situation)


def _checked(name: str, situation: Situation, content: bytes | OSError) -> CheckReport:
    if isinstance(content, bytes):
        return check_bytes(content, name, situation)
    finding = codes.CANNOT_READ.found(params={"file": name, "reason": system_reason(content)})
    return CheckReport(Document(name, ""), situation, [finding])


def _without_named_pools(results: list[CheckReport]) -> list[CheckReport]:
    """Without pool files that a checked configuration names: they were judged together with it."""
    named = {os.path.realpath(result.pool.path) for result in results if result.pool is not None}
    return [each for each in results if not (each.is_pool_file and os.path.realpath(each.document.name) in named)]


def _is_unreadable(result: CheckReport) -> bool:
    return any(finding.kind is codes.CANNOT_READ for finding in result.findings)


def _say(results: list[CheckReport], form: str, lang: Language, *, quiet: bool, err: bool) -> None:
    report = quiet_report if quiet and form == "text" else REPORTERS[form]
    unread = [result for result in results if form in FOR_PEOPLE and _is_unreadable(result)]
    if unread:
        click.echo(report(unread, lang), err=True)
    told = [result for result in results if result not in unread]
    text = report(told, lang) if told else ""
    if text:
        click.echo(text, err=err)


def _status(results: list[CheckReport], selection: Selection) -> int:
    if any(map(_is_unreadable, results)):
        return UNREADABLE
    return FAILED if any(selection.fails(result) for result in results) else 0
