"""Builds the walks from a configuration; the only place that knows all parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mindie_kvpool_plugin.blocks import FreedSequence, Region
from mindie_kvpool_plugin.core.block_directory import BlockDirectory, Mask
from mindie_kvpool_plugin.core.block_keys import BlockKeys
from mindie_kvpool_plugin.core.device_gate import DeviceGate
from mindie_kvpool_plugin.core.memory import BlockMemory
from mindie_kvpool_plugin.core.prefill import Prefill
from mindie_kvpool_plugin.core.rank import Rank
from mindie_kvpool_plugin.core.reload import Lengths, Reload
from mindie_kvpool_plugin.core.spill import Replica, Spill
from mindie_kvpool_plugin.observability.metrics import Counters
from mindie_kvpool_plugin.options.pool_file import PoolFile
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.pools.base import PoolBackend, Role
from mindie_kvpool_plugin.pools.guards.stack import guarded
from mindie_kvpool_plugin.pools.registry import BACKENDS, open_pool


@dataclass(frozen=True, slots=True)
class RankWalks:
    """One rank's walks and what they share.

    Attributes:
        prefill, spill: the walks.
        directory: what the rank's blocks contain.
        gate: what every copy from and to the device passes.
        pool: the opened backend.
        counters: the rank's counts.
    """

    prefill: Prefill
    spill: Spill
    directory: BlockDirectory
    gate: DeviceGate
    pool: PoolBackend
    counters: Counters

    def close(self) -> None:
        """Finish or give up what is queued, then close the pool."""
        self.spill.close()
        self.pool.close()


def build_walks(
    pool: PoolBackend,
    options: KvPoolOptions,
    memory: BlockMemory,
    regions: list[Region],
    keys: BlockKeys,
    replica: Replica,
    running: Callable[[int], tuple[FreedSequence, Mask] | None],
    device_idle: Callable[[], bool],
    agree: Callable[[Lengths], Lengths],
    async_write: bool,
    counters: Counters | None = None,
) -> RankWalks:
    """Put a rank's walks together around an opened pool.

    Raises:
        PoolError: the pool refused the memory.
    """
    counters = counters or Counters()
    pool.register(regions)
    rank = Rank(pool, memory, keys, BlockDirectory(memory.num_blocks), counters, device_idle)
    spill = Spill(
        rank,
        replica,
        running,
        queue_capacity_blocks=options.queue_capacity_blocks if async_write else 0,
        queue_capacity_bytes=options.queue_capacity_bytes,
        fence_timeout_s=options.fence_timeout_s,
    )
    return RankWalks(Prefill(rank, spill, Reload(rank, agree)), spill, rank.directory, rank.gate, pool, counters)


def reaches_device(backend: str, pool_file: PoolFile) -> bool:
    """Whether a pool's transport moves device memory by itself (``pools.registry``)."""
    return backend in BACKENDS and BACKENDS[backend].reaches_device(pool_file)


def open_worker_pool(backend: str, pool_file: PoolFile, counters: Counters | None = None) -> PoolBackend:
    """Open the pool for a worker, with its guards (see ``pools.guards.stack`` for its errors)."""
    return _open_guarded(backend, pool_file, "worker", counters)


def open_scheduler_pool(backend: str, pool_file: PoolFile, counters: Counters | None = None) -> PoolBackend:
    """Open the pool for the scheduler's lookups, with its guards and within the lookup budget."""
    return _open_guarded(backend, pool_file, "scheduler", counters)


def _open_guarded(backend: str, pool_file: PoolFile, role: Role, counters: Counters | None) -> PoolBackend:
    options = pool_file.options or KvPoolOptions()
    return guarded(lambda: open_pool(backend, pool_file, role), backend, role, options, counters or Counters())
