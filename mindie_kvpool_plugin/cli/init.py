"""``mindie-kvpool init``: write config.json and the pool file that a deployment starts from, and check them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.check.pipeline import CheckReport, check_file
from mindie_kvpool_plugin.check.situation import Situation, find_home
from mindie_kvpool_plugin.cli.reporters import quiet_report
from mindie_kvpool_plugin.cli.selection import Selection
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.starting_files import MASTER_PORT, Wish, starting_files
from mindie_kvpool_plugin.options.mooncake import TooLittleMemoryError
from mindie_kvpool_plugin.options.sizes import parse_size

# the service refuses a configuration that others may read or anybody may execute
MODE = 0o640
MOST_NODES, MOST_CARDS = 64, 16


def _bytes(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Bytes of a text such as ``200GB``."""
    size = parse_size(value)
    if value is not None and size is None:
        raise click.BadParameter(f"{value!r} is no size such as 200GB", context, parameter)
    return size


@click.command(name="init", cls=SpeakingCommand)
@click.argument("folder", default=".", metavar="[FOLDER]", type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(1, MOST_NODES), default=1, show_default=True)
@click.option("--cards", type=click.IntRange(1, MOST_CARDS))
@click.option("--host", "hosts", multiple=True, metavar="ADDRESS")
@click.option("--protocol", type=click.Choice(["ascend", "rdma", "tcp"]), default="ascend", show_default=True)
@click.option("--device", default="", metavar="NAME")
@click.option("--dram", metavar="SIZE", callback=_bytes)
@click.option("--force", is_flag=True)
@lang_option
def command(
    *,
    folder: Path,
    model: Path | None,
    nodes: int,
    cards: int | None,
    hosts: tuple[str, ...],
    protocol: str,
    device: str,
    dram: int | None,
    force: bool,
    lang: str,
) -> None:
    """Exit status: 0 written and without errors, 1 the check finds errors, 2 nothing written."""
    chosen = chosen_language(lang)
    if protocol == "rdma" and not device:
        _refuse(words("init.device", chosen))
    if len(hosts) not in {0, nodes}:
        _refuse(words("init.hosts", chosen, nodes=nodes, hosts=len(hosts)))
    where = model.absolute() if model is not None else None
    wish = Wish(where, nodes, cards, hosts, protocol, device, dram)
    files = _files(wish, folder, chosen)
    existing = [path for path in files if path.exists()]
    if existing and not force:
        _refuse(words("init.exists", chosen, files=", ".join(map(str, existing))))
    for path, text in files.items():
        _write(path, text, chosen)
        click.echo(words("init.written", chosen, file=path))
    for line in _advice(wish, folder, chosen):
        click.echo(line)
    sys.exit(_checked(files, folder, chosen))


def _refuse(text: str) -> NoReturn:
    click.echo(f"mindie-kvpool init: {text}", err=True)
    sys.exit(2)


def _files(wish: Wish, folder: Path, lang: Language) -> dict[Path, str]:
    try:
        return starting_files(wish, folder)
    except TooLittleMemoryError as error:
        _refuse(words("init.dram", lang, needed=f"{error.needed // 2**20}MB"))


def _write(path: Path, text: str, lang: Language) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(MODE)
    except OSError as error:
        _refuse(words("fix.cannot_write", lang, file=path, reason=error.strerror))


def _advice(wish: Wish, folder: Path, lang: Language) -> list[str]:
    """What is left to do, by people and on other machines."""
    steps = [] if wish.model is not None else ["init.model"]
    steps += [] if wish.hosts else ["init.addresses"]
    steps += ["init.several"] if wish.nodes > 1 else []
    values = {"host": wish.host(0), "port": MASTER_PORT, "folder": folder}
    return ["", *(f"- {words(step, lang, **values)}" for step in [*steps, "init.master", "init.check"])]


def _checked(files: dict[Path, str], folder: Path, lang: Language) -> int:
    """What the check says of each configuration, errors and warnings only; the exit status."""
    env = dict(os.environ)
    table = folder / "rank_table.json"
    if table in files:
        env["RANK_TABLE_FILE"] = str(table.absolute())
    reports = [_report(path, env) for path in files if path.name == "config.json"]
    told = Selection(failing=frozenset({"error", "warning"}), quiet=True)
    text = quiet_report([told.of(report) for report in reports], lang)
    if text:
        click.echo("\n" + text)
    return 1 if any(report.verdict == "error" for report in reports) else 0


def _report(path: Path, env: dict[str, str]) -> CheckReport:
    return check_file(path, Situation(env=env, config_path=path, home=find_home(env, path)))
