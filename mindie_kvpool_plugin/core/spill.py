"""The block-free walk: copy what a sequence leaves behind to the pool, and guard the next overwrite.

A freed block keeps its bytes until the host hands its id to someone else.  So a spill is queued when
the block is freed, and the step that reuses the id waits for it at a fence.  The host tells of an
aborted or preempted sequence only after the batch that may overwrite its blocks was sent; those
blocks are spilled when that batch arrives, before it runs.  A full queue drops the spill and counts
it: that is a later miss, never a wrong answer.

Whoever writes a block says so first, here: ``hand_over`` for batches that compute it and for everything
else the host writes with (copies between blocks, swap-in, pulls from another node).  Only a reload takes
the two halves one by one, because what it loads may lie in the block already.

Step thread: ``freed``, ``before_write``, ``hand_over``; another thread may call the latter while it holds
what keeps the step thread out (``host.plugin``).  Spill thread, or the step thread when spills are
synchronous: ``_store``.  Its results come back over ``_settled``, so the directory has one owner.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import BlockIds, Buffers, Digests, FreedSequence
from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.admission import SecondUse
from mindie_kvpool_plugin.core.block_directory import NOBODY, Claim, Mask
from mindie_kvpool_plugin.core.fence import Fence
from mindie_kvpool_plugin.core.patience import Patience
from mindie_kvpool_plugin.core.put_pace import PutPace
from mindie_kvpool_plugin.core.rank import Rank
from mindie_kvpool_plugin.core.right_of_way import PieceSize
from mindie_kvpool_plugin.core.spill_queue import SpillJob, SpillQueue
from mindie_kvpool_plugin.core.why import fates
from mindie_kvpool_plugin.observability.log import RateLimited
from mindie_kvpool_plugin.pools.base import answers

ALIAS_BYTES = 16
"""Of the block's first segment; the content is irrelevant, the transport only needs some bytes."""

DRAIN_TIMEOUT_S = 5.0
"""For queued spills when the plugin goes away."""


@dataclass(frozen=True, slots=True)
class Replica:
    """Ranks that hold identical bytes share the work of storing them.

    Attributes:
        index: this rank among them.
        count: how many they are; block i of a sequence is stored by replica ``i % count``.
        writes_alias: whether this rank's shard is the one whose writer announces the block.
    """

    index: int = 0
    count: int = 1
    writes_alias: bool = True


@dataclass(frozen=True, slots=True)
class _Settled:
    claim: Claim
    digests: Digests
    valid: Mask
    stored: Mask


class Spill:
    """One rank's way out to the pool.

    Args:
        rank: what it works on.
        replica: which blocks this rank stores.
        running: what a sequence that is still known to the host would leave behind now, with the mask
            that ``freed`` takes, or None.
        queue_capacity_blocks: blocks that may wait for the spill thread; 0: the step thread stores.
        queue_capacity_bytes: bytes of blocks and tokens that may wait.
        fence_timeout_s: seconds a step waits before it withdraws what has not begun, if steps have not waited much.
        admission: what was seen, where that decides what is stored; None: everything is.
    """

    def __init__(
        self,
        rank: Rank,
        replica: Replica,
        running: Callable[[int], tuple[FreedSequence, Mask] | None],
        queue_capacity_blocks: int,
        queue_capacity_bytes: int,
        fence_timeout_s: float,
        admission: SecondUse | None = None,
    ) -> None:
        self._rank = rank
        self._replica = replica
        self._running = running
        self._patience = Patience(fence_timeout_s, rank.clock)
        self._admission = admission
        self._fence = Fence(rank.memory.num_blocks)
        self._settled: deque[_Settled] = deque()
        self._piece = PieceSize()
        self.pace = PutPace()
        self._log = RateLimited()
        self._queue = (
            SpillQueue(self._store, rank.memory.bind_thread, queue_capacity_blocks, queue_capacity_bytes, rank.counters)
            if queue_capacity_blocks
            else None
        )

    def freed(self, sequence: FreedSequence, given: Mask) -> None:
        """A sequence is done with its blocks: spill the full ones whose content is certain.

        Args:
            sequence: what it leaves behind.
            given: bool [blocks], false where the host replaced the block by another sequence's.
        """
        self._rank.counters.freed_blocks += len(sequence.block_ids)
        self._submit(sequence, self._rank.directory.claim(sequence.sequence_id, sequence.block_ids, given))

    def before_write(self, sequence_id: int, block_ids: BlockIds) -> None:
        """A step will write these blocks for ``sequence_id``: save what others left in them, then wait.

        When this returns no spill reads the blocks.
        """
        self._save_abandoned(sequence_id, block_ids, self._rank.device_idle)
        self.wait(block_ids)

    @contextmanager
    def computing(self, sequence_ids: npt.NDArray[np.int64]) -> Iterator[None]:
        """A batch is prepared that goes on with these sequences: nobody has taken a block of theirs.

        A prompt may share a block with one that computes it in the same batch, as a chunk of its own (SplitFuse).  The
        host counts a chunk's tokens already, while the block does not hold them yet.

        Args:
            sequence_ids: int64 [n].
        """
        directory = self._rank.directory
        before, directory.going_on = directory.going_on, sequence_ids
        try:
            yield
        finally:
            directory.going_on = before

    def hand_over(
        self, block_ids: BlockIds, sequence_id: int = NOBODY, is_computed: Callable[[], bool] | None = None
    ) -> None:
        """Somebody is about to write these blocks: save what others left in them, forget what they contained.

        The caller goes on to ``wait`` before it writes.

        Args:
            block_ids: int64 [n].
            sequence_id: whose tokens will name the content, or NOBODY when that cannot be told.
            is_computed: whether the device is done with what is in them; by default it is waited for.
        """
        self._save_abandoned(sequence_id, block_ids, is_computed or self._rank.device_idle)
        self._rank.directory.rewrite(sequence_id, block_ids)

    def wait(self, block_ids: BlockIds) -> None:
        """Wait until no spill reads the blocks, for a while; then all that have not begun are withdrawn.

        The oldest are the ones that steps overwrite next.  With them gone the pool takes what was freed last, which
        nobody waits for yet.  Where the pool takes too long for what is needed, that happens at once.
        """
        if self._fence.is_open(block_ids):
            return
        began = self._rank.clock()
        with self._fence.changed:
            self._rank.counters.fence_waits += 1
        allowed_s = self._patience.left_s()
        if self.pace.until_s(self._fence.ahead(block_ids)) > allowed_s:
            allowed_s = 0.0
        if not self._fence.wait(block_ids, allowed_s) and self._queue is not None:
            withdrawn = self._withdraw(self._queue, self._everything())
            self._log.warning(
                "a step waited %.2f s for spills of blocks it overwrites; gave %d up", allowed_s, withdrawn
            )
            # what is being read now is waited for: the pool bounds its calls, and the bytes must not change under it
            self._fence.wait(block_ids, None)
        waited_s = self._rank.clock() - began
        self._patience.spend(waited_s)
        with self._fence.changed:
            self._rank.counters.fence_seconds.add(waited_s)
            self._rank.held.seconds += waited_s

    def _everything(self) -> BlockIds:
        return np.arange(self._rank.memory.num_blocks, dtype=np.int64)

    def stop_reading(self) -> None:
        """Give up every spill that has not begun and wait for the others; afterwards nothing reads the device."""
        if self._queue is not None:
            everything = self._everything()
            self._withdraw(self._queue, everything)
            self._fence.wait(everything, None)

    def _withdraw(self, queue: SpillQueue, block_ids: BlockIds) -> int:
        withdrawn = queue.withdraw(block_ids)
        with self._fence.changed:
            self._rank.counters.withdrawn_blocks += withdrawn
        return withdrawn

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is queued any more."""
        finished = self._queue.drain(timeout_s) if self._queue is not None else True
        self._learn()
        return finished

    def close(self) -> None:
        """Store what is queued or give it up, within a bound; afterwards nothing reads the device."""
        if self._queue is not None:
            self._queue.close(DRAIN_TIMEOUT_S)

    def check_integrity(self) -> None:
        """Raise AssertionError when directory and fences contradict each other."""
        self._learn()
        self._rank.directory.check_integrity()
        if self._queue is None and self._fence.num_closed():
            raise AssertionError(f"{self._fence.num_closed()} fences are closed though no spill runs")

    def _save_abandoned(self, sequence_id: int, block_ids: BlockIds, is_computed: Callable[[], bool]) -> None:
        self._learn()
        if not len(block_ids):
            return
        writers = self._rank.directory.writers(block_ids)
        abandoned = (writers >= 0) & (writers != sequence_id)
        if abandoned.any():
            abandoned &= ~self._rank.directory.is_computed_now(block_ids)
            for writer in np.unique(writers[abandoned]).tolist():
                self._spill_abandoned(writer, block_ids, is_computed)

    def _spill_abandoned(self, writer: int, block_ids: BlockIds, is_computed: Callable[[], bool]) -> None:
        """The host gave a block of this sequence away without telling: it was aborted or preempted."""
        found = self._running(writer)
        # the batch that computes these blocks may still be on the device
        if found is None or not is_computed():
            return
        sequence, given = found
        taken = np.isin(sequence.block_ids, block_ids) & given
        if not taken.any():
            return
        self._rank.counters.freed_blocks += int(taken.sum())
        self._submit(sequence, self._rank.directory.claim(writer, sequence.block_ids, taken), only=taken)

    def _submit(self, sequence: FreedSequence, claim: Claim, only: Mask | None = None) -> None:
        certain = claim.written | claim.known
        wanted = certain if only is None else certain & only
        self._rank.counters.unclaimed_blocks += len(certain) - int(certain.sum()) if only is None else 0
        rows = np.nonzero(wanted)[0]
        why = self._rank.why
        if why is not None:
            why.offered(sequence, rows, fates.OFFERED)
            why.offered(sequence, np.nonzero(~certain)[0] if only is None else rows[:0], fates.UNCERTAIN)
        if self._replica.count > 1:
            rows = rows[rows % self._replica.count == self._replica.index]
        if not (self._rank.pool.is_available and self._rank.gate.is_open()):
            if self._rank.gate.is_open():
                self._rank.counters.dropped_pool_left_alone += len(rows)
            else:
                self._rank.counters.dropped_device_closed += len(rows)
            if why is not None:
                why.offered(sequence, rows[claim.written[rows]], fates.LEFT_ALONE)
            return
        block_bytes = self._rank.memory.block_bytes
        if self._queue is None:
            self._run_here(SpillJob(sequence, claim, rows, self._fence, block_bytes, is_end=only is None))
            return
        room = self._queue.room(sequence.tokens.nbytes, block_bytes)
        if len(rows) > room:
            # the head of a chain is what later prompts can use
            self._rank.counters.dropped_queue_full += len(rows) - room
            if why is not None:
                why.offered(sequence, rows[room:][claim.written[rows[room:]]], fates.QUEUE_FULL)
            rows = rows[:room]
        # that it ended is noted also of a sequence of which nothing can be stored
        if room > 0 and (wanted.any() or (self._admission is not None and only is None)):
            self._queue.append(SpillJob(sequence, claim, rows, self._fence, block_bytes, is_end=only is None))

    def _run_here(self, job: SpillJob) -> None:
        try:
            self._store(job)
        finally:
            job.finish(job.rows)
        self._learn()

    def _store(self, job: SpillJob) -> None:
        began = time.monotonic()
        claim, sequence, size = job.claim, job.sequence, self._rank.keys.block_size
        chain = block_keys.digests_of(sequence.tokens, size, sequence.hashed, sequence.adapter)
        digests = chain[sequence.indexes]
        same = claim.known & (claim.digests == digests).all(axis=1)
        valid = same | (claim.written & self._borne(sequence, digests))
        stored = np.zeros(len(valid), dtype=np.bool_)
        kept = job.rows[(same & claim.pooled)[job.rows]]
        stored[kept] = True
        self._rank.counters.kept_blocks += len(kept)
        admitted = self._admitted(job, chain)
        self._rank.counters.unadmitted_blocks += int((valid & ~stored & ~admitted)[job.rows].sum())
        offered = job.rows[(valid & ~stored & admitted)[job.rows]]
        self.pace.job(len(job.rows), len(offered))
        job.finish(np.setdiff1d(job.rows, offered, assume_unique=True))
        if len(offered):
            hexes = block_keys.hex_digests(digests)
            hashes = self._host_hashes(sequence) if self._replica.writes_alias else []
            while len(offered):
                self._rank.way.give()
                count = self._blocks_of_piece()
                if not count:
                    self._drop_rest(len(offered))
                    break
                piece, offered = np.split(offered, [count])
                rows = job.start(piece)
                stored[rows] = self._put(job, rows, hexes, hashes)
                job.finish(rows)
                self._count(stored[rows], claim.written[rows])
        self._settled.append(_Settled(claim, digests, valid, stored))
        if self._rank.why is not None:
            refused = fates.PUT_FAILED if self._rank.pool.is_available else fates.LEFT_ALONE
            has_time = np.ones(len(valid), dtype=np.bool_)
            has_time[offered] = False
            self._rank.why.settled(digests, job.rows, valid, stored, job.withdrawn(), admitted, has_time, refused)
        self._rank.counters.spill_seconds.add(time.monotonic() - began)

    def _borne(self, sequence: FreedSequence, digests: Digests) -> Mask:
        """Bool [blocks], which were computed with nothing but what the tokens before them say, as far as is known."""
        count = len(digests) if sequence.ground is None else sequence.ground.bears(digests)
        if count < len(digests):
            self._log.warning(
                "a prompt was computed with a block that holds something else: an adapter was loaded anew under its "
                "name, or a hash of MindIE-LLM was forged; %d blocks behind it are not stored",
                len(digests) - count,
            )
        borne: Mask = np.arange(len(digests)) < count
        return borne

    def _admitted(self, job: SpillJob, chain: Digests) -> Mask:
        """Bool [blocks], which may be stored if their content is certain."""
        indexes = job.sequence.indexes
        if self._admission is None:
            return np.ones(len(indexes), dtype=np.bool_)
        leading = self._admission.leading(chain)
        if job.is_end:
            self._admission.note(chain)
        admitted: Mask = indexes < leading
        return admitted

    def _blocks_of_piece(self) -> int:
        """To put at once; 0: a step that stores blocks itself has no time left."""
        memory, held = self._rank.memory, self._rank.held
        count = max(1, min(memory.max_blocks_per_call, self._piece.num_bytes // memory.block_bytes))
        if self._queue is not None:
            return count
        left_s = held.left_s()
        fits = int(min(count, self.pace.fits(left_s))) if left_s > 0 else 0
        # one in a step that was not held up: else nothing would tell that the pool has become faster
        return max(fits, int(not held.seconds))

    def _drop_rest(self, num_blocks: int) -> None:
        self._rank.counters.dropped_over_budget += num_blocks
        self._log.warning("a step that stores what it frees had no time left; %d blocks are not stored", num_blocks)

    def _host_hashes(self, sequence: FreedSequence) -> list[int]:
        extra = sequence.adapter.extra_hash if sequence.adapter is not None else block_keys.NO_ADAPTER
        chain = block_keys.host_hash_chain(sequence.tokens, self._rank.keys.block_size, extra=extra)
        return [chain[index] for index in sequence.indexes.tolist()]

    def _put(self, job: SpillJob, rows: BlockIds, hexes: Sequence[str], hashes: Sequence[int]) -> Mask:
        if not len(rows):
            return np.zeros(0, dtype=np.bool_)
        began_s = self._rank.clock()
        names = [hexes[row] for row in rows.tolist()]
        groups = self._rank.keys.groups(names)
        with self._rank.gate.passing() as may_read:
            if not may_read:
                return np.zeros(len(rows), dtype=np.bool_)
            with self._rank.memory.read(job.claim.block_ids[rows]) as buffers:
                if self._rank.memory.reads_are_copies:
                    job.finish(rows)
                stored = answers(len(names), self._rank.pool.put(self._rank.keys.data(names), buffers, groups))
                if hashes and stored.any():
                    done = np.flatnonzero(stored).tolist()
                    self._announce([hashes[rows[i]] for i in done], buffers.take(stored), [groups[i] for i in done])
        took_s = self._rank.clock() - began_s
        self._piece.learn(len(rows) * self._rank.memory.block_bytes, took_s, self._rank.held.piece_s())
        if stored.any():
            self.pace.put(len(rows), took_s)
        if self._queue is None:
            self._rank.held.seconds += took_s
        return stored

    def _announce(self, hashes: Sequence[int], stored: Buffers, groups: Sequence[str]) -> None:
        """Commit stored blocks: from now on the scheduler may find them."""
        aliases = self._rank.keys.aliases(hashes)
        self._rank.pool.put(aliases, stored.head(ALIAS_BYTES), groups)
        names = self._rank.why.names_due() if self._rank.why is not None else []
        if names:
            self._rank.pool.put(names, stored.take(np.zeros(len(names), dtype=np.int64)).head(ALIAS_BYTES))

    def _count(self, stored: Mask, written: Mask) -> None:
        num_new = int((stored & written).sum())
        self._rank.counters.spilled_blocks += num_new
        self._rank.counters.spilled_bytes += num_new * self._rank.memory.block_bytes
        self._rank.counters.renewed_blocks += int((stored & ~written).sum())
        self._rank.counters.failed_put_blocks += len(stored) - int(stored.sum())

    def _learn(self) -> None:
        while self._settled:
            done = self._settled.popleft()
            self._rank.directory.settle(done.claim, done.digests, done.valid, done.stored, self._rank.pool.put_proof_s)
