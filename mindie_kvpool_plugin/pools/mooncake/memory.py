"""Memory of this process that belongs to the pool, and an SSD tier behind it: what a store process is.

It is mounted apart from ``setup``, because only then are its segments known by their ids and can leave the pool
with a time of grace: nothing is put there any more, while what is there can still be read.  The client's own threads
keep it mounted: they tell the master every second that it lives, and mount it again when the master forgot it.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.attempt import Failed, attempt
from mindie_kvpool_plugin.pools.mooncake import codes, segments, start
from mindie_kvpool_plugin.pools.mooncake.address import claim_name, probe_master

CALLS = (*segments.CALLS, "health_check", "unmount_local_disk_segment")
Health = Literal["good", "no_master", "closed"]
_HEALTH: Mapping[int, Health] = {0: "good", 2: "no_master"}


@dataclass(eq=False, slots=True)
class PoolMemory:
    """Mounted memory.  One per process: a second client beside an SSD tier has crashed.

    Attributes:
        name: ``host:port`` under which the pool knows it.
        segment_ids: of the master.
        has_ssd: what leaves memory is written to an SSD tier.
    """

    store: Any
    name: str
    segment_ids: tuple[str, ...]
    has_ssd: bool
    port_holder: socket.socket | None = None

    def health(self) -> Health:
        """Whether the master hears of this memory; takes less than a millisecond."""
        return _HEALTH.get(self.store.health_check(), "closed")

    def unmount(self, grace_s: int) -> int:
        """Take memory and disk out of the pool: nothing is put here any more.  0, or Mooncake's code.

        Args:
            grace_s: how long what is in memory can still be looked up and read; whole seconds.

        Waits for the master: at once, or about ``rpc_timeout_s`` and a second if it does not answer.
        """
        of_disk = self.store.unmount_local_disk_segment() if self.has_ssd else 0
        return segments.unmount(self.store, self.segment_ids, grace_s) or of_disk


def mount(options: MooncakeOptions, size_bytes: int, ssd_folder: str, place: str) -> PoolMemory:
    """Give memory to the pool.  The environment of Mooncake has to be set before.

    Args:
        options: how the pool is reached; its sizes are not looked at.
        size_bytes: of the memory.
        ssd_folder: where its SSD tier has its files; empty: none.
        place: the pool file, for messages.

    Raises:
        PoolError: the library, the address or the master is not there, or Mooncake refused.
    """
    library = expect_pool(options, place)
    name, holder = claim_name(options, f"{place}.local_hostname", any_port=False)
    store = library.MooncakeDistributedStore()
    try:
        _set_up(store, name, options, ssd_folder, place)
        segment_ids = segments.mount(store, name, size_bytes, options, place)
    except PoolError:
        if holder is not None:
            holder.close()
        raise
    return PoolMemory(store, name, segment_ids, bool(ssd_folder), holder)


def expect_pool(options: MooncakeOptions, place: str) -> Any:
    """Mooncake's library, once it is known that it suffices and that the master's port accepts connections.

    Raises:
        PoolError: the library or the master is not there.
    """
    library = start.load_library()
    missing = [name for name in CALLS if not hasattr(library.MooncakeDistributedStore, name)]
    if missing:
        raise PoolError(f"the installed mooncake has no {', '.join(missing)}; a store needs 0.3.13")
    probe_master(options, f"{place}.master_server_address")
    return library


def _set_up(store: Any, name: str, options: MooncakeOptions, ssd_folder: str, place: str) -> None:
    with start.transport_of(options.protocol):
        code = attempt(
            lambda: store.setup(
                name,
                options.metadata_server,
                0,  # mounted afterwards
                0,
                options.protocol,
                options.device_name,
                options.master_server_address,
                enable_ssd_offload=bool(ssd_folder),
                ssd_offload_path=ssd_folder,
            )
        )
    if isinstance(code, Failed):
        raise PoolError(f"{place}: Mooncake's setup of the store {name} raised {code.error!r}") from code.error
    if code == codes.NO_OFFLOAD:
        raise PoolError(
            f"mooncake_master at {options.master_server_address} runs without --enable_offload, so an SSD tier would "
            "stay empty; start it with: mindie-kvpool master CONFIG --ssd"
        )
    if code != 0:
        raise PoolError(
            f"{place}: Mooncake could not set up the store {name} (code {codes.meaning(code)}); protocol "
            f'"{options.protocol}" may not be in the installed wheel, or {options.master_server_address} does '
            "not answer as mooncake_master (it hangs, or is another service, or the metrics port); "
            "MC_LOG_LEVEL=INFO shows Mooncake's own log"
        )
