"""Builds the walks from a configuration; the only place that knows all parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mindie_kvpool_plugin.blocks import Adapter, FreedSequence, Region
from mindie_kvpool_plugin.core.admission import SecondUse
from mindie_kvpool_plugin.core.block_directory import BlockDirectory, Mask
from mindie_kvpool_plugin.core.block_keys import BlockKeys
from mindie_kvpool_plugin.core.device_gate import DeviceGate
from mindie_kvpool_plugin.core.held_up import HeldUp
from mindie_kvpool_plugin.core.load_gate import HostPace, LoadGate
from mindie_kvpool_plugin.core.memory import BlockMemory
from mindie_kvpool_plugin.core.prefill import Prefill
from mindie_kvpool_plugin.core.rank import Rank
from mindie_kvpool_plugin.core.reload import Lengths, Reload
from mindie_kvpool_plugin.core.spill import Replica, Spill
from mindie_kvpool_plugin.core.why.judge import Judge
from mindie_kvpool_plugin.core.why.notes import Notes
from mindie_kvpool_plugin.core.why.services import Announcement
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Settings
from mindie_kvpool_plugin.options.pool_file import PoolFile
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.pools.base import PoolBackend, Role
from mindie_kvpool_plugin.pools.guards.aside import Aside
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
    why: Notes | None = None,
    load_gate: LoadGate | None = None,
    decode_s: Callable[[], float] = lambda: 0.0,
    can_agree: Callable[[], bool] = lambda: True,
) -> RankWalks:
    """Put a rank's walks together around an opened pool; ``decode_s``: seconds of the host's decode steps, if known.

    Raises:
        PoolError: the pool refused the memory.
    """
    counters = counters or Counters()
    pool.register(regions)
    held = HeldUp(options.reload_budget_ms / 1000, decode_s)
    directory = BlockDirectory(memory.num_blocks)
    rank = Rank(pool, memory, keys, directory, counters, device_idle, held=held, why=why, clock=pool.clock)
    spill = Spill(
        rank,
        replica,
        running,
        queue_capacity_blocks=options.queue_capacity_blocks if async_write else 0,
        queue_capacity_bytes=options.queue_capacity_bytes,
        fence_timeout_s=options.fence_timeout_s,
        admission=SecondUse() if options.admission == "second_use" else None,
    )
    if load_gate is not None:
        load_gate.put_block_s = spill.pace.block_s
    prefill = Prefill(rank, spill, Reload(rank, agree, load_gate, can_agree))
    return RankWalks(prefill, spill, rank.directory, rank.gate, pool, counters)


def build_load_gate(
    options: KvPoolOptions,
    block_size: int,
    pace: HostPace,
    counters: Counters,
    clock: Callable[[], float],
    is_chunked: bool,
) -> LoadGate | None:
    """What decides between loading and computing, if anything does."""
    if options.load == "always":
        return None
    return LoadGate(block_size, pace, counters, clock, options.reload_budget_ms / 1000, is_chunked)


def build_notes(options: KvPoolOptions, keys: BlockKeys, replica: Replica) -> Notes | None:
    """Where a rank's walks note what ends a prompt's prefix, if anybody will ask."""
    if not options.why_requests:
        return None
    return Notes(Announcement(keys.service) if replica.writes_alias and replica.index == 0 else None)


def build_judge(
    notes: Notes, keys: BlockKeys, replica: Replica, pool: PoolBackend, adapters: Callable[[], Mapping[str, Adapter]]
) -> Judge:
    """Who judges a rank's notes."""
    return Judge(notes, keys, replica, Aside(pool), adapters, time.time())


def reaches_device(backend: str, pool_file: PoolFile) -> bool:
    """Whether a pool's transport moves device memory by itself (``pools.registry``)."""
    return backend in BACKENDS and BACKENDS[backend].reaches_device(pool_file)


def settings_of(options: KvPoolOptions) -> Settings:
    """How somebody with these options wants to be observed."""
    return Settings(
        metrics=options.metrics,
        host=options.metrics_host,
        port=options.metrics_port,
        folder=options.metrics_dir,
        report_interval_s=options.report_interval_s,
    )


def open_worker_pool(backend: str, pool_file: PoolFile, counters: Counters | None = None) -> PoolBackend:
    """Open the pool for a worker, with its guards (see ``pools.guards.stack`` for its errors)."""
    return _open_guarded(backend, pool_file, "worker", counters)


def open_scheduler_pool(backend: str, pool_file: PoolFile, counters: Counters | None = None) -> PoolBackend:
    """Open the pool for the scheduler's lookups, with its guards and within the lookup budget."""
    return _open_guarded(backend, pool_file, "scheduler", counters)


def _open_guarded(backend: str, pool_file: PoolFile, role: Role, counters: Counters | None) -> PoolBackend:
    options = pool_file.chosen
    return guarded(lambda: open_pool(backend, pool_file, role), backend, role, options, counters or Counters())
