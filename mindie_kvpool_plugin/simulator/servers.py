"""Data parallelism with a server per group (``distributed_enable``): ranks are sent batches of their own group only.

As the host does it (llm_engine.cpp, PostScheduleSyncUp and ExecuteDummy; post_scheduler.cpp, SyncSeqLenList).  Groups
of a standard node know nothing of each other.  Those of a prefill node go in step: whenever one has a prompt all of
them run a batch, a dummy one if need be, and every rank is told how many tokens each row of every group computes.
Nobody pulls blocks from the prefill node here: its requests end with their first token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindie_kvpool_plugin.simulator.data_parallel import DataParallelScheduler
from mindie_kvpool_plugin.simulator.engine_config import EngineConfig
from mindie_kvpool_plugin.simulator.metadata import batch_metadata, dummy_metadata
from mindie_kvpool_plugin.simulator.oracle import Step
from mindie_kvpool_plugin.simulator.requests import Batch
from mindie_kvpool_plugin.simulator.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Launch:
    """A step, and the workers it is sent to.

    Attributes:
        step: for their devices.
        ranks: these workers.
        metadata: what one of them gets; a new one at every call.
    """

    step: Step
    ranks: Sequence[int]
    metadata: Callable[[int], Any]


class LonelySchedulers(DataParallelScheduler):
    """Of a standard node: each group decides for itself what it runs next."""

    def schedule(self, wants_prefill: bool | None = None) -> Batch | None:
        """The next batch of every group, to be had from ``parts``; None if there is none."""
        batches = [(group, group.schedule(wants_prefill)) for group in self.groups]
        self._parts = [(group, batch) for group, batch in batches if batch is not None]
        self._gather()
        return self._parts[0][1] if self._parts else None


def block_moves(batch: Batch, scheduler: Scheduler, config: EngineConfig) -> list[tuple[Batch, Sequence[int]]]:
    """Whose copies and swaps go to which ranks before a turn's batches run: of each group to its own, of one to all."""
    every = range(config.num_ranks)
    if not isinstance(scheduler, LonelySchedulers):
        parts = [(batch, every)]
    else:
        parts = [(part, _ranks_of(group, config)) for group, part in scheduler.parts.items()]
    return [(part, ranks) for part, ranks in parts if part.copies or part.swaps]


def _ranks_of(group: int, config: EngineConfig) -> range:
    return range(group * config.tp, (group + 1) * config.tp)


def launches(
    batch: Batch,
    scheduler: Scheduler,
    config: EngineConfig,
    make_step: Callable[[Sequence[Batch], int], Step],
) -> list[Launch]:
    """What a turn sends to whom.

    Args:
        batch: what was scheduled.
        scheduler: that did it, which knows the batches of groups.
        config: of the host.
        make_step: makes the step of some batches for so many ranks.
    """
    sizes = (config.num_npu_blocks, config.block_size, config.max_table_tokens)
    more = (config.num_shares, config.cp, config.dp)
    every = range(config.num_ranks)
    if not config.servers or not isinstance(scheduler, DataParallelScheduler):
        step = make_step([batch], config.num_ranks)
        return [Launch(step, every, lambda rank: batch_metadata(batch, *sizes, *more))]
    parts = scheduler.parts
    if config.role == "standard":
        return [
            Launch(
                make_step([part], config.tp),
                _ranks_of(group, config),
                lambda rank: batch_metadata(parts[rank // config.tp], *sizes, *more),
            )
            for group, part in parts.items()
        ]

    def metadata(rank: int) -> Any:
        part = parts.get(rank // config.tp)
        made = batch_metadata(part, *sizes, *more) if part else dummy_metadata(*sizes, rank // config.tp)
        made.seq_lens = [_announced(parts[group], config) if group in parts else [] for group in range(config.dp)]
        return made

    return [Launch(make_step([*parts.values()], config.num_ranks), every, metadata)]


def _announced(batch: Batch, config: EngineConfig) -> list[int]:
    """Tokens of every row less what the host takes for found: with sp only what lies on the last rank (seqLenList)."""
    hits = [int(np.atleast_1d(promised)[-1]) for promised in batch.promised]
    return [request.num_tokens - hit * config.block_size for request, hit in zip(batch.requests, hits, strict=True)]
