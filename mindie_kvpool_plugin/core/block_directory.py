"""Who holds which block id, what it contains, and whether the pool has it.

Owned by the step thread; nothing else reads or changes it while that thread is at work.  Three facts per block id:

* ``writer``: the running sequence that wrote all of it, NOBODY, or MIXED when a second sequence
  wrote into it under asynchronous scheduling (the host may then have merged different answers).
* its digest, if known: what the block contains, from the moment a sequence freed it or a reload
  filled it until something is written into it.
* until when the pool may be taken to hold it.

A block's bytes may be stored under a digest only if ``claim`` says so: the freeing sequence wrote
the block alone, or the directory already knows exactly that digest.  Everything else is not spilled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import BlockIds, Digests, Ground

NOBODY = -1
MIXED = -2

Mask = npt.NDArray[np.bool_]

_NO_SEQUENCES = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Claim:
    """What was known of some blocks when a sequence freed them, for the spill thread.

    Attributes:
        block_ids: int64 [n].
        written: bool [n], the sequence wrote the block alone, so its tokens name the content.
        known: bool [n], ``digests`` names the content.
        digests: uint64 [n, 2], valid where ``known``.
        pooled: bool [n], the pool is taken to hold what ``digests`` names.
        epochs: int64 [n], counts rewrites; compared when the spill is done.
    """

    block_ids: BlockIds
    written: Mask
    known: Mask
    digests: Digests
    pooled: Mask
    epochs: npt.NDArray[np.int64]


class BlockDirectory:
    """One rank's block ids.

    Args:
        num_blocks: ids are below this.
        clock: seconds, monotonic.

    Attributes:
        going_on: int64 [n], sequences that the batch which is prepared goes on with: they have lost no block.
    """

    def __init__(self, num_blocks: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.going_on: npt.NDArray[np.int64] = _NO_SEQUENCES
        self._clock = clock
        self._writer = np.full(num_blocks, NOBODY, dtype=np.int64)
        self._known = np.zeros(num_blocks, dtype=np.bool_)
        self._digests = np.zeros((num_blocks, 2), dtype=np.uint64)
        self._pooled_until_s = np.zeros(num_blocks, dtype=np.float64)
        self._epochs = np.zeros(num_blocks, dtype=np.int64)

    def rewrite(self, sequence_id: int, block_ids: BlockIds) -> None:
        """Somebody is about to write these blocks from their first position for ``sequence_id``, or for NOBODY."""
        self._reset(block_ids)
        self._writer[block_ids] = sequence_id

    def extend(self, sequence_ids: npt.NDArray[np.int64], block_ids: BlockIds) -> None:
        """A decode step writes one more position of each block; a foreign block becomes MIXED.

        Only for asynchronous scheduling: there the host merges blocks before it knows their tokens.
        """
        foreign = self._writer[block_ids] != sequence_ids
        if foreign.any():
            self._reset(block_ids[foreign])
            self._writer[block_ids[foreign]] = MIXED

    def fill(self, block_ids: BlockIds, digests: Digests, proof_s: float) -> None:
        """The pool's bytes for these digests are in the blocks."""
        self._reset(block_ids)
        self._know(block_ids, digests, self._clock() + proof_s)

    def holds(self, block_ids: BlockIds, digests: Digests) -> Mask:
        """Which blocks are known to contain exactly this."""
        same = (self._digests[block_ids] == digests).all(axis=1)
        held: Mask = same & self._known[block_ids]
        return held

    def ground(self, sequence_id: int, block_ids: BlockIds, is_alike: Callable[[int], bool]) -> Ground:
        """What a sequence is computed with, once the batch's own blocks belong to their sequences.

        Args:
            sequence_id: the host's id.
            block_ids: int64 [n], the leading blocks it found on the device.
            is_alike: whether what a sequence wrote, or NOBODY's content that nobody named, can be this one's.
        """
        writers, known = self._writer[block_ids], self._known[block_ids]
        others = np.unique(writers[~known & (writers != sequence_id) & (writers != MIXED)])
        unlike = [writer for writer in others.tolist() if not is_alike(writer)]
        doubtful = (writers == MIXED) | (~known & np.isin(writers, unlike))
        return Ground(known, self._digests[block_ids], doubtful)

    def writers(self, block_ids: BlockIds) -> npt.NDArray[np.int64]:
        """The running sequence that wrote each block, or NOBODY or MIXED."""
        return self._writer[block_ids]

    def is_computed_now(self, block_ids: BlockIds) -> Mask:
        """Which blocks a sequence has begun that goes on in the batch which is prepared."""
        return np.isin(self._writer[block_ids], self.going_on)

    def claim(self, sequence_id: int, block_ids: BlockIds, given: Mask) -> Claim:
        """A sequence lets go of its full blocks: what may be stored of them.

        Args:
            sequence_id: the host's id.
            block_ids: int64 [n], its leading full blocks.
            given: bool [n], false where the host replaced the block by another sequence's.
        """
        written = (self._writer[block_ids] == sequence_id) & given
        self._writer[block_ids[written]] = NOBODY
        known = self._known[block_ids]
        return Claim(
            block_ids=block_ids,
            written=written,
            known=known,
            digests=self._digests[block_ids],
            pooled=known & (self._pooled_until_s[block_ids] > self._clock()),
            epochs=self._epochs[block_ids],
        )

    def settle(self, claim: Claim, digests: Digests, valid: Mask, stored: Mask, proof_s: float) -> None:
        """A spill is done: remember what the blocks contain, unless they were rewritten meanwhile.

        Args:
            claim: as made when the blocks were freed.
            digests: uint64 [n, 2] of all its blocks.
            valid: bool [n], the content is what ``digests`` names.
            stored: bool [n], the pool has it.
            proof_s: seconds for which ``stored`` may be believed.
        """
        same = valid & (self._epochs[claim.block_ids] == claim.epochs)
        until = np.where(stored, self._clock() + proof_s, 0.0)
        self._know(claim.block_ids[same], digests[same], until[same])

    def forget(self) -> None:
        """Know nothing any more: always safe, costs only spills."""
        everything = np.arange(len(self._writer), dtype=np.int64)
        self._reset(everything)

    def check_integrity(self) -> None:
        """Raise AssertionError when the facts contradict each other (our own mistake, never the user's)."""
        written = self._writer >= 0
        if (written & self._known).any():
            raise AssertionError(
                f"blocks {np.nonzero(written & self._known)[0].tolist()} are written and known at once"
            )
        if ((self._writer == MIXED) & self._known).any():
            raise AssertionError("a block with two writers has a known content")
        if ((self._pooled_until_s > 0) & ~self._known).any():
            raise AssertionError("a block of unknown content is taken to be in the pool")

    def _reset(self, block_ids: BlockIds) -> None:
        self._writer[block_ids] = NOBODY
        self._known[block_ids] = False
        self._pooled_until_s[block_ids] = 0.0
        self._epochs[block_ids] += 1

    def _know(self, block_ids: BlockIds, digests: Digests, until_s: float | npt.NDArray[np.float64]) -> None:
        self._known[block_ids] = True
        self._digests[block_ids] = digests
        self._pooled_until_s[block_ids] = until_s
