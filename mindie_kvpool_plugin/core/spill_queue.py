"""Bounded spill queue with one thread, and the jobs in it.

Ownership: the step thread appends jobs and may withdraw blocks that nobody reads yet; the spill
thread takes jobs and, chunk by chunk, the blocks of a job that were not withdrawn.  A block's state
in its job changes only under the fence's condition, so a block is either withdrawn before its bytes
are read or waited for until they are.  Its fence opens in every case, also when the put failed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from mindie_kvpool_plugin.blocks import BlockIds, FreedSequence
from mindie_kvpool_plugin.core.block_directory import Claim, Mask
from mindie_kvpool_plugin.core.fence import Fence
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.log import logger

LONGEST_READ_S = 65.0
"""A put may sit in a stuck transfer for 60 s (Mooncake's own limit)."""

WAITING, READING, DONE, WITHDRAWN = range(4)


class SpillJob:
    """The full blocks one sequence left behind, on their way to the pool.

    Attributes:
        sequence: tokens and block ids.
        claim: what the directory knew of the blocks.
        rows: int64, which of the blocks this job reads; their fences are closed.
        is_end: the sequence leaves no more than this behind.
        size_bytes: what it takes of the queue's bytes: its blocks' and its tokens'.
    """

    def __init__(
        self,
        sequence: FreedSequence,
        claim: Claim,
        rows: BlockIds,
        fence: Fence,
        block_bytes: int,
        *,
        is_end: bool = True,
    ) -> None:
        self.size_bytes = len(rows) * block_bytes + sequence.tokens.nbytes
        self.sequence = sequence
        self.claim = claim
        self.rows = rows
        self.is_end = is_end
        self._fence = fence
        self._states = np.full(len(claim.block_ids), DONE, dtype=np.uint8)
        self._states[rows] = WAITING
        fence.close(claim.block_ids[rows])

    @property
    def cost_blocks(self) -> int:
        """What it takes of the queue's capacity; a job without rows still holds its tokens."""
        return max(1, len(self.rows))

    def start(self, rows: BlockIds) -> BlockIds:
        """The spill thread is about to read these rows; those withdrawn meanwhile are left out."""
        with self._fence.changed:
            rows = rows[self._states[rows] == WAITING]
            self._states[rows] = READING
        return rows

    def finish(self, rows: BlockIds) -> None:
        """Nobody reads these rows any more."""
        with self._fence.changed:
            rows = rows[np.isin(self._states[rows], (WAITING, READING))]
            self._states[rows] = DONE
            self._fence.open(self.claim.block_ids[rows])

    def withdraw(self, block_ids: BlockIds) -> int:
        """Give up the rows of these blocks that are still waiting; how many they were."""
        with self._fence.changed:
            hit = np.isin(self.claim.block_ids, block_ids) & (self._states == WAITING)
            self._states[hit] = WITHDRAWN
            self._fence.open(self.claim.block_ids[hit])
        return int(hit.sum())

    def withdrawn(self) -> Mask:
        """Bool [blocks], which were given up."""
        given_up: Mask = self._states == WITHDRAWN
        return given_up


class SpillQueue:
    """Runs jobs one after the other on a thread of its own.

    Args:
        run: does one job; called on the spill thread.
        bind_thread: ties that thread to the device, once.
        capacity_blocks: blocks that may be queued.
        capacity_bytes: bytes of blocks and tokens that may be queued.
        counters: where the queue's depth is told.
    """

    def __init__(
        self,
        run: Callable[[SpillJob], None],
        bind_thread: Callable[[], None],
        capacity_blocks: int,
        capacity_bytes: int,
        counters: Counters,
    ) -> None:
        self._counters = counters
        self._capacity_blocks = capacity_blocks
        self._capacity_bytes = capacity_bytes
        self._queued_bytes = 0
        self._jobs: deque[SpillJob] = deque()
        self._running: SpillJob | None = None
        self._queued_blocks = 0
        self._closing = False
        self._changed = threading.Condition()
        # the thread's alone: whoever runs the jobs has this queue, and would be held by it
        self._thread = threading.Thread(target=self._loop, args=(run, bind_thread), name="kvpool-spill", daemon=True)
        self._thread.start()

    def room(self, tokens_bytes: int, block_bytes: int) -> int:
        """Blocks of ``block_bytes`` that may still be queued in one job with that many bytes of tokens."""
        left_bytes = self._capacity_bytes - self._queued_bytes - tokens_bytes
        if self._closing or left_bytes < 0:
            return 0
        return min(self._capacity_blocks - self._queued_blocks, left_bytes // block_bytes)

    def append(self, job: SpillJob) -> None:
        """Queue a job; the caller has asked for ``room``."""
        with self._changed:
            self._jobs.append(job)
            self._tell(job.cost_blocks, job.size_bytes)
            self._changed.notify_all()

    def withdraw(self, block_ids: BlockIds) -> int:
        """Give up spills of these blocks that have not begun; how many they were."""
        with self._changed:
            jobs = [*([self._running] if self._running else []), *self._jobs]
        return sum(job.withdraw(block_ids) for job in jobs)

    def drain(self, timeout_s: float) -> bool:
        """Wait until every queued job is done; False when the time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and self._running is None, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Let queued jobs finish for ``timeout_s``, withdraw the rest, wait for the one that reads.

        Returns:
            Whether nothing was given up.  A read that does not end within ``LONGEST_READ_S`` is left to the
            end of the process: it reads memory that stays mapped until then.
        """
        finished = self.drain(timeout_s)
        with self._changed:
            self._closing = True
            left = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for job in left:
            job.withdraw(job.claim.block_ids)
        self._thread.join(LONGEST_READ_S)
        if self._thread.is_alive():
            logger.error("a spill has not returned in %.0f s and is left to the end of the process", LONGEST_READ_S)
        return finished and not self._thread.is_alive()

    def _loop(self, run: Callable[[SpillJob], None], bind_thread: Callable[[], None]) -> None:
        bind_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._jobs) or self._closing)
                if not self._jobs:
                    return
                job = self._running = self._jobs.popleft()
            try:
                run(job)
            except Exception:  # noqa: BLE001 - the thread must outlive any single job
                logger.exception("a spill failed unexpectedly; its blocks are not in the pool")
            finally:
                job.finish(job.rows)
                with self._changed:
                    self._running = None
                    self._tell(-job.cost_blocks, -job.size_bytes)
                    self._changed.notify_all()

    def _tell(self, more_blocks: int, more_bytes: int) -> None:
        self._queued_blocks += more_blocks
        self._queued_bytes += more_bytes
        self._counters.queued_blocks, self._counters.queued_bytes = self._queued_blocks, self._queued_bytes
