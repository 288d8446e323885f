"""``mindie-kvpool init``: write config.json and the pool file that a deployment starts from, and check them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from mindie_kvpool_plugin.check.messages import Language, Refused, system_reason, words
from mindie_kvpool_plugin.check.pipeline import CheckReport, check_file
from mindie_kvpool_plugin.check.situation import Situation, find_home
from mindie_kvpool_plugin.cli.numbers import Size
from mindie_kvpool_plugin.cli.refusing import one_line_refusals
from mindie_kvpool_plugin.cli.reporters import quiet_report
from mindie_kvpool_plugin.cli.selection import Selection
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.starting_files import MASTER_PORT, Wish, starting_files
from mindie_kvpool_plugin.options.mooncake import TooLittleMemoryError

# the service refuses a configuration that others may read or anybody may execute
MODE = 0o640
MOST_NODES, MOST_CARDS = 64, 16


@click.command(name="init", cls=SpeakingCommand)
@click.argument("folder", default=".", metavar="[FOLDER]", type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--nodes", type=click.IntRange(1, MOST_NODES), default=1, show_default=True)
@click.option("--cards", type=click.IntRange(1, MOST_CARDS))
@click.option("--host", "hosts", multiple=True, metavar="ADDRESS")
@click.option("--protocol", type=click.Choice(["ascend", "rdma", "tcp"]), default="ascend", show_default=True)
@click.option("--device", default="", metavar="NAME")
@click.option("--dram", type=Size())
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
    where = model.absolute() if model is not None else None
    wish = Wish(where, nodes, cards, hosts, protocol, device, dram)
    with one_line_refusals("init", chosen):
        _refuse_wish(wish)
        files = _files(wish, folder)
        existing = [path for path in files if path.exists()]
        if existing and not force:
            raise Refused("init.exists", files=", ".join(map(str, existing)))
        for path, text in files.items():
            _write(path, text)
            click.echo(words("init.written", chosen, file=path))
    for line in _advice(wish, folder, chosen):
        click.echo(line)
    sys.exit(_checked(files, folder, chosen))


def _refuse_wish(wish: Wish) -> None:
    """What does not go together."""
    if wish.protocol == "rdma" and not wish.device:
        raise Refused("init.device")
    if len(wish.hosts) not in {0, wish.nodes}:
        raise Refused("init.hosts", nodes=wish.nodes, hosts=len(wish.hosts))


def _files(wish: Wish, folder: Path) -> dict[Path, str]:
    try:
        return starting_files(wish, folder)
    except TooLittleMemoryError as error:
        raise Refused("init.dram", needed=f"{error.needed // 2**20}MB") from error


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(MODE)
    except OSError as error:
        raise Refused("fix.cannot_write", file=path, reason=system_reason(error)) from error


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
