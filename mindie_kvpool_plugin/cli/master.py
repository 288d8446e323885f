"""``mindie-kvpool master``: run mooncake_master with the flags that fit a pool file, or say which they are."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence

import click

from mindie_kvpool_plugin.check.messages import Language, Refused, words
from mindie_kvpool_plugin.cli.pool_target import PoolTarget, find_pool
from mindie_kvpool_plugin.cli.refusing import one_line_refusals
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.targets import Named
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.mooncake import joined, master_addresses
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.admin import DEFAULT_PORT
from mindie_kvpool_plugin.pools.mooncake.programs import find_program
from mindie_kvpool_plugin.services import master
from mindie_kvpool_plugin.services.master_flags import Bound, Flag, fitting, judge, merged
from mindie_kvpool_plugin.services.places import is_public, numeric, state

LOOPBACK = "127.0.0.1"


@click.command(name="master", cls=SpeakingCommand)
@click.argument("config", metavar="CONFIG", type=Named(path_type=str))
@click.argument("extra", metavar="[-- FLAG]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--print", "only_prints", is_flag=True)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--bind", metavar="ADDRESS")
@click.option("--public", "may_be_public", is_flag=True)
@click.option("--metrics-host", metavar="ADDRESS", default=LOOPBACK, show_default=True)
@click.option("--metrics-port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True)
@click.option("--ssd", "with_ssd", is_flag=True)
@lang_option
def command(
    config: str,
    extra: tuple[str, ...],
    only_prints: bool,
    form: str,
    bind: str | None,
    may_be_public: bool,
    metrics_host: str,
    metrics_port: int,
    with_ssd: bool,
    lang: str,
) -> None:
    """Exit status: that of mooncake_master, 128 + N when signal N ended it, 2 when it cannot be run as asked."""
    chosen = chosen_language(lang)
    with one_line_refusals("master", chosen):
        target = find_pool(config, os.environ)
        options = target.mooncake()
        bound = _bound(target, options, bind, (metrics_host, metrics_port))
        flags = fitting(options, bound, with_ssd=with_ssd)
        remarks = list(judge(extra, options, flags))
        for remark in remarks:
            if remark.refuses:
                raise Refused(f"master.extra.{remark.kind}", **remark.params)
            click.echo(words(f"master.extra.{remark.kind}", chosen, **remark.params), err=True)
        troubles = _troubles(options, bound, may_be_public=may_be_public)
        if only_prints:
            _print(flags, extra, troubles, form, chosen)
            return
        for trouble in troubles:
            raise trouble
        sys.exit(_run(merged(flags, extra), bound, chosen))


def _bound(target: PoolTarget, options: MooncakeOptions, bind: str | None, admin: tuple[str, int]) -> Bound:
    """Where to listen; names are looked up."""
    place = f"{target.pool_file.path}: master_server_address"
    if options.master_server_address.startswith("etcd://"):
        raise Refused("master.etcd", address=options.master_server_address)
    host, port = master_addresses(options.master_server_address, place)[0]
    return Bound(_look_up(bind or host), port, _look_up(admin[0]), admin[1])


def _look_up(host: str) -> str:
    try:
        return numeric(host.strip("[]"))
    except OSError as error:
        raise Refused("master.unknown_host", host=host, reason=str(error)) from error


def _troubles(options: MooncakeOptions, bound: Bound, *, may_be_public: bool) -> list[Refused]:
    """What keeps it from running here: what listens in public without the word, and what this machine has not."""
    found = []
    for what, address, port in (
        ("rpc", bound.address, bound.port),
        ("admin", bound.admin_address, bound.admin_port),
    ):
        if is_public(address) and not may_be_public:
            found.append(Refused(f"master.public.{what}", address=address))
        if state(address, port) == "elsewhere":
            params = {"address": address, "named": options.master_server_address}
            found.append(Refused(f"master.elsewhere.{what}", **params))
    return found


def _print(flags: Sequence[Flag], extra: Sequence[str], troubles: list[Refused], form: str, lang: Language) -> None:
    line = [_program(), *merged(flags, extra)]
    if form == "json":
        told = [{"flag": flag.text, "why": _why(flag, lang)} for flag in flags if flag.text in line]
        click.echo(json.dumps({"command": line, "flags": told}, indent=2, ensure_ascii=False))
    else:
        click.echo(" \\\n    ".join(map(shlex.quote, line)) + "\n")
        for flag in flags:
            if flag.text in line:
                click.echo(f"{flag.text}\n    {_why(flag, lang)}")
    for trouble in troubles:
        click.echo(words("master.not_here", lang) + words(trouble.key, lang, **trouble.params), err=True)


def _program() -> str:
    """Where it is; only its name if it is not installed here."""
    try:
        return find_program(master.PROGRAM)
    except PoolError:
        return master.PROGRAM


def _why(flag: Flag, lang: Language) -> str:
    return words(f"master.why.{flag.name}", lang, value=flag.value, **flag.params)


def _run(flags: list[str], bound: Bound, lang: Language) -> int:
    program = master.find_master()
    admin = master.admin_of(bound).url

    def announce(pid: int) -> None:
        click.echo(words("master.ready", lang, pid=pid, address=joined(bound.address, bound.port), admin=admin))
        sys.stdout.flush()

    return master.run([program, *flags], bound, announce)
