"""``mindie-kvpool stats``: what the processes of this machine that have a pool did so far."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.cli.asked import silence
from mindie_kvpool_plugin.cli.numbers import LONGEST_S, Number
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.stats_table import tables
from mindie_kvpool_plugin.observability.questions import Reply, ask_all
from mindie_kvpool_plugin.services.stopping import Stopping

ALL, SOME, NOBODY = range(3)
"""Exit status."""

ANYWHERE = ("0.0.0.0", "[::]")  # noqa: S104 - what a process may listen at, not what we do


@click.command("stats", cls=SpeakingCommand)
@click.option("--watch", is_flag=True)
@click.option("--interval", type=Number(min=0.1, max=LONGEST_S), default=2.0, show_default=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--targets", is_flag=True)
@lang_option
def command(*, watch: bool, interval: float, form: str, targets: bool, lang: str) -> None:
    """Exit status: 0 all answered, 1 some did not, 2 there is nobody."""
    chosen = chosen_language(lang)
    if targets:
        click.echo(json.dumps(_targets(ask_all({"ask": "stats"})), indent=2))
        return
    if watch:
        _watch(interval, form, chosen)
        return
    replies = ask_all({"ask": "stats"})
    _say(replies, form, chosen, indent=2)
    sys.exit(NOBODY if not replies else SOME if any(reply.trouble for reply in replies) else ALL)


def _watch(interval_s: float, form: str, lang: Language) -> None:
    """Again and again, until Ctrl-C.  A handler's flag: an exception may come up where Python drops it, and be lost."""
    stopping = Stopping()
    if form == "json" or not sys.stdout.isatty():
        _say(ask_all({"ask": "stats"}), form, lang, indent=None)
        while not stopping.wait(interval_s):
            _say(ask_all({"ask": "stats"}), form, lang, indent=None)
        return
    with Live(_shown(ask_all({"ask": "stats"}), lang), auto_refresh=False, screen=True) as live:
        while not stopping.wait(interval_s):
            live.update(_shown(ask_all({"ask": "stats"}), lang), refresh=True)


def _say(replies: Sequence[Reply], form: str, lang: Language, indent: int | None) -> None:
    if form == "json":
        click.echo(json.dumps(_objects(replies), indent=indent))
    else:
        Console().print(_shown(replies, lang))


def _objects(replies: Sequence[Reply]) -> list[Any]:
    """One per process: what it said, or why it did not."""
    return [
        {"socket": reply.socket, **(reply.answer if _is_told(reply) else {"trouble": silence(reply, "en")})}
        for reply in replies
    ]


def _shown(replies: Sequence[Reply], lang: Language) -> Group:
    lines: list[Any] = tables([reply.answer for reply in replies if _is_told(reply)], lang)
    silent = [reply for reply in replies if not _is_told(reply)]
    lines += [_silence(reply, lang) for reply in silent]
    return Group(*(lines or [words("stats.nobody", lang)]))


def _silence(reply: Reply, lang: Language) -> str:
    if reply.is_folder:
        return words("doctor.presence.folder", lang, reason=reply.trouble)
    return words("stats.silent", lang, place=reply.socket, trouble=silence(reply, lang))


def _is_told(reply: Reply) -> bool:
    return isinstance(reply.answer, dict) and isinstance(reply.answer.get("parts"), list)


def _targets(replies: Sequence[Reply]) -> list[Mapping[str, Any]]:
    """For Prometheus's ``file_sd_configs``: where metrics are served on this machine."""
    found = [str(reply.answer.get("metrics_address") or "") for reply in replies if _is_told(reply)]
    served = [address for address in found if address and not address.startswith("/")]
    return [{"targets": sorted(_reachable(address) for address in served), "labels": {}}] if served else []


def _reachable(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in ANYWHERE else address
