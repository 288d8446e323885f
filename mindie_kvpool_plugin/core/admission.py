"""Which blocks are worth writing: with ``kv_pool.admission`` second_use those whose tokens came before.

A block is **seen** when a sequence ends whose tokens contain it, prompt and answer alike: finished, aborted or
preempted.  From the second end on it is admitted.  So a prompt's second asker brings it to the pool, and the third one
hits.  What the device still has counts like what was computed; tokens are looked at, not where their KV came from.

Only the leading blocks of a sequence that were all seen are admitted: what comes behind a hole is of no use.

The memory is two Bloom filters, the younger of which takes what is seen; when it has taken ``capacity`` blocks, the
older one is emptied and takes its place.  So the last ``capacity`` different blocks are known for certain, and none
older than twice as many.  About one block in 200 is admitted by mistake, which costs a write; a digest is never the
reason for what is loaded (``core.block_keys``).

One per rank, owned by whoever runs its spills, shared with nobody.  The ranks that share a sequence's batches see the
same sequences end in the same order, whole chains, whatever of them lies on each; so they decide alike.  Where one
missed some (its queue was full, or it alone was restarted) it admits later than the others, who announce the blocks
meanwhile: hits that end early, until it has seen them twice, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Digests

CAPACITY_BLOCKS = 1 << 20
"""134 million tokens in blocks of 128; 4 MiB of memory, for good."""

BITS_PER_BLOCK = 16
"""With the four bits that a block sets, 1 of 400 is taken for another at the end of a filter's life."""

Filter = npt.NDArray[np.uint8]


class SecondUse:
    """What one rank has seen.

    Args:
        capacity: blocks that are remembered at least.
    """

    def __init__(self, capacity: int = CAPACITY_BLOCKS) -> None:
        bits = 1 << (capacity * BITS_PER_BLOCK - 1).bit_length()
        self._capacity = capacity
        self._mask = np.uint32(bits - 1)
        self._young, self._old = (np.zeros(max(1, bits // 8), dtype=np.uint8) for _ in range(2))
        self._taken = 0

    def leading(self, chain: Digests) -> int:
        """How many leading blocks of a sequence were all seen.

        Args:
            chain: uint64 [blocks, 2], all its full blocks from the first on.
        """
        seen = self.seen(chain)
        return len(seen) if seen.all() else int(seen.argmin())

    def seen(self, digests: Digests) -> npt.NDArray[np.bool_]:
        """Bool [blocks], which of these were seen."""
        places, bits = self._where(digests)
        return _has(self._young, places, bits) | _has(self._old, places, bits)

    def note(self, digests: Digests) -> None:
        """These are seen, from now on.  All of them go into one filter, so that a chain is forgotten as a whole."""
        if self._taken >= self._capacity:
            self._young, self._old = self._old, self._young
            self._young[:] = 0
            self._taken = 0
        places, bits = self._where(digests)
        self._taken += len(digests) - int(_has(self._young, places, bits).sum())
        np.bitwise_or.at(self._young, places, bits)

    def _where(self, digests: Digests) -> tuple[npt.NDArray[np.uint32], Filter]:
        """[blocks, 4]: bytes of a filter and bits in them.  A digest is random, so its four words serve as they are."""
        words = np.ascontiguousarray(digests).view(np.uint32) & self._mask
        return words >> np.uint32(3), np.left_shift(np.uint8(1), (words & np.uint32(7)).astype(np.uint8))


def _has(bytes_: Filter, places: npt.NDArray[np.uint32], bits: Filter) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (bytes_[places] & bits != 0).all(axis=1)
    return found
