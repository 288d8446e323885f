"""``mindie-kvpool store``: own memory of the pool, and an SSD tier, in a process that outlives the engines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from mindie_kvpool_plugin.assemble import settings_of
from mindie_kvpool_plugin.check.messages import Language, Refused, words
from mindie_kvpool_plugin.cli.numbers import Size
from mindie_kvpool_plugin.cli.pool_target import find_pool
from mindie_kvpool_plugin.cli.refusing import one_line_refusals
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.targets import Named
from mindie_kvpool_plugin.memory_room import memory_room
from mindie_kvpool_plugin.options.mooncake import SMALLEST_SEGMENT_BYTES, master_addresses, split_hostname
from mindie_kvpool_plugin.options.records import GIB, MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.admin import DEFAULT_PORT, Admin
from mindie_kvpool_plugin.pools.mooncake.disk import DiskTier, plan, staging_bytes
from mindie_kvpool_plugin.pools.mooncake.memory import PoolMemory
from mindie_kvpool_plugin.services import store

ADMIN_TIMEOUT_S = 1.0


@click.command(name="store", cls=SpeakingCommand)
@click.argument("config", metavar="CONFIG", type=Named(path_type=str))
@click.option("--size", type=Size())
@click.option("--host", metavar="ADDRESS")
@click.option("--ssd", type=click.Path(path_type=Path), metavar="DIR")
@click.option("--ssd-size", type=Size())
@click.option("--warm", "warms", is_flag=True)
@click.option("--drain", "drain_s", type=click.IntRange(0, 600), metavar="SECONDS", default=2, show_default=True)
@click.option("--device", type=click.IntRange(min=0), metavar="N", default=0, show_default=True)
@click.option("--metrics-port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True)
@lang_option
def command(
    config: str,
    size: int | None,
    host: str | None,
    ssd: Path | None,
    ssd_size: int | None,
    warms: bool,
    drain_s: int,
    device: int,
    metrics_port: int,
    lang: str,
) -> None:
    """Exit status: 0 after a signal, 1 when the memory is lost to the pool, 2 refused, 128 + N at a second signal."""
    chosen = chosen_language(lang)
    with one_line_refusals("store", chosen):
        target = find_pool(config, os.environ)
        options, place = target.mooncake(), str(target.pool_file.path)
        options = replace(options, local_hostname=host) if host else options
        split_hostname(options.local_hostname, f"{place}: local_hostname" if host is None else "--host")
        memory_bytes = _size(options, size, ssd)
        wish = store.StoreWish(
            options=options,
            place=place,
            size_bytes=memory_bytes,
            tier=_tier(ssd, ssd_size, memory_bytes),
            warms=warms,
            drain_s=drain_s,
            device=device,
            admin=_admin(options, place, metrics_port),
            namespace=target.pool_file.chosen.namespace,
            settings=settings_of(target.pool_file.chosen),
        )
        status = store.run(wish, _announcement(wish, options, chosen))
        sys.stdout.flush()
        # what Mooncake does when a process ends by itself crashes behind an SSD tier
        os._exit(status)


def _size(options: MooncakeOptions, size: int | None, ssd: Path | None) -> int:
    """The memory to give, which this machine has."""
    wanted = options.global_segment_size if size is None else size
    if wanted == 0:
        raise Refused("store.size_missing")
    if wanted < SMALLEST_SEGMENT_BYTES:
        raise Refused("store.too_small", size=wanted)
    room, beside = memory_room(), staging_bytes() if ssd is not None else 0
    if room is not None and wanted + beside > room:
        params = {"size": f"{wanted / GIB:.1f}", "beside": f"{beside / GIB:.2f}", "room": f"{room / GIB:.1f}"}
        raise Refused("store.too_large_ssd" if beside else "store.too_large", **params)
    return wanted


def _tier(ssd: Path | None, ssd_size: int | None, memory_bytes: int) -> DiskTier | None:
    if ssd is None and ssd_size is None:
        return None
    if ssd is None or ssd_size is None:
        raise Refused("store.ssd_needs_both")
    return plan(ssd, ssd_size, memory_bytes)


def _admin(options: MooncakeOptions, place: str, port: int) -> Admin:
    host, _ = master_addresses(options.master_server_address, f"{place}: master_server_address")[0]
    return Admin(host, port, ADMIN_TIMEOUT_S)


def _announcement(wish: store.StoreWish, options: MooncakeOptions, lang: Language) -> Callable[[PoolMemory], None]:
    def announce(memory: PoolMemory) -> None:
        params = {"pid": os.getpid(), "name": memory.name, "size": f"{wish.size_bytes / GIB:.2f}"}
        click.echo(words("store.ready", lang, master=options.master_server_address, **params))
        if wish.tier is not None:
            disk = {"folder": wish.tier.folder, "size": f"{wish.tier.size_bytes / GIB:.2f}"}
            click.echo(words("store.ready_ssd", lang, **disk))
        if options.global_segment_size:
            click.echo(words("store.both", lang, file=wish.place), err=True)
        sys.stdout.flush()

    return announce
