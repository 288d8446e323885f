"""What fits where: blocks in memory and on disk, and what to write into the pool file for it."""

from __future__ import annotations

from dataclasses import dataclass

from mindie_kvpool_plugin.check.rules.memory import BASE_FRACTION, LINK_MB, MAX_LINKS, link_reserve
from mindie_kvpool_plugin.options.mooncake import share_memory
from mindie_kvpool_plugin.options.sizes import UNITS
from mindie_kvpool_plugin.planning.instance import Instance

RELAY_BUFFERS_MB = 4 * 8
"""``ASCEND_BUFFER_POOL=4:8``, as the host's guide sets it: buffers in device memory through which blocks pass."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Figures of a pool over some nodes.

    Attributes:
        nodes: servers that give memory.
        segment: bytes of each rank's ``global_segment_size``; 0: memory lies in a store per node.
        buffer: bytes of each rank's ``local_buffer_size``.
        store: bytes of each node's store; 0: there is none.
        disk: bytes of each node's disk.
        pool_bytes: memory of the whole pool.
        pool_blocks: blocks that fit.
        disk_blocks: blocks that fit on the disks below.
        link_bytes: device memory that the links of each die take; 0 where the transport makes none.
        relay_bytes: device memory of the relay buffers, if they are used.
        fraction: ``NPU_MEMORY_FRACTION`` that leaves room for the links; None where there are no links.
        is_beyond_links: more dies than one pool can link.
    """

    nodes: int
    segment: int
    buffer: int
    store: int
    disk: int
    pool_bytes: int
    pool_blocks: int
    disk_blocks: int
    link_bytes: int
    relay_bytes: int
    fraction: float | None
    is_beyond_links: bool


def sizes(instance: Instance, nodes: int, dram: int | None, ssd: int, *, store: bool) -> Sizes:
    """Figures for ``dram`` and ``ssd`` bytes on each of ``nodes`` servers; None: what the pool file has.

    Raises:
        TooLittleMemoryError: the memory does not suffice for the smallest segment.
    """
    ranks = instance.ranks_of_server
    if dram is not None:
        segment, buffer = share_memory(dram, ranks)
    else:
        segment, buffer = instance.pool_memory or (0, 0)
    pool_bytes = nodes * ranks * segment
    dies = nodes * ranks
    has_links = instance.protocol == "ascend" and dies > 1
    return Sizes(
        nodes=nodes,
        segment=0 if store else segment,
        buffer=buffer,
        store=ranks * segment if store else 0,
        disk=ssd,
        pool_bytes=pool_bytes,
        pool_blocks=pool_bytes // instance.pool_block_bytes,
        disk_blocks=nodes * ssd // instance.pool_block_bytes,
        link_bytes=(dies - 1) * LINK_MB * UNITS["mb"] if has_links else 0,
        relay_bytes=RELAY_BUFFERS_MB * UNITS["mb"] if has_links else 0,
        fraction=round(BASE_FRACTION - link_reserve(dies), 2) if has_links else None,
        is_beyond_links=has_links and dies > MAX_LINKS,
    )
