"""The way back from the pool: pool hits of new prompts -> device blocks.

The scheduler promised blocks it believes to be in the pool.  What really arrives may be less; then
the hit is shortened to its longest good prefix, to the same length on every rank, and the host
computes the rest in the same step.  Nothing that did not arrive whole is ever part of a hit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import BlockIds, Digests, PoolHit
from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.block_directory import Mask
from mindie_kvpool_plugin.core.pool_calls import answers
from mindie_kvpool_plugin.core.rank import Rank
from mindie_kvpool_plugin.observability.log import RateLimited

Lengths = npt.NDArray[np.int64]


class Reload:
    """One rank's way back from the pool.  Step thread.

    Args:
        rank: what it works on.
        agree: the minimum of each entry over all ranks.
    """

    def __init__(self, rank: Rank, agree: Callable[[Lengths], Lengths]) -> None:
        self._rank = rank
        self._agree = agree
        self._log = RateLimited()

    def load(self, hits: Sequence[PoolHit]) -> Lengths:
        """Fetch the promised blocks; nobody else reads or writes the destinations.

        Args:
            hits: the step's pool hits, equal on all ranks.

        Returns:
            int64 [hits], leading blocks of each prompt that may be used: between ``computed`` and
            ``promised``, equal on all ranks.

        Raises:
            Anything, before the ranks have agreed: the caller then owes them ``give_up``.
        """
        computed = np.array([hit.computed for hit in hits], dtype=np.int64)
        promised = np.array([hit.promised for hit in hits], dtype=np.int64)
        is_own = np.array([hit.is_own for hit in hits], dtype=np.bool_)
        arrived = np.where(is_own, computed, promised)
        num_promised = int((promised - computed)[is_own].sum())
        arrived[is_own] = self._fetch([hit for hit in hits if hit.is_own])
        agreed: Lengths = np.maximum(self._agree(arrived), computed)
        self._rank.counters.promised_blocks += num_promised
        self._rank.counters.recomputed_blocks += int((promised - agreed)[is_own].sum())
        return agreed

    def give_up(self, num_hits: int) -> None:
        """Tell the other ranks that none of the step's pool hits may be used; they wait to hear it."""
        self._agree(np.zeros(num_hits, dtype=np.int64))

    def _fetch(self, hits: Sequence[PoolHit]) -> Lengths:
        computed = np.array([hit.computed for hit in hits], dtype=np.int64)
        if not hits:
            return computed
        if not (self._rank.pool.is_available and self._rank.gate.is_open()):
            self._rank.counters.refused_keys += sum(hit.promised - hit.computed for hit in hits)
            return computed
        if not self._rank.device_idle():
            self._log.warning(
                "the batch before failed or did not leave the device in time; %d pool hits are recomputed", len(hits)
            )
            return computed
        size = self._rank.keys.block_size
        # a scheduler that promises more than the prompt's full blocks is believed as far as they go
        ends = [min(hit.promised, len(hit.tokens) // size) for hit in hits]
        wanted = [hit.indexes < end for hit, end in zip(hits, ends, strict=True)]
        chains = [
            block_keys.digests_of(hit.tokens[: end * size], size, hit.hashed, hit.adapter)
            for hit, end in zip(hits, ends, strict=True)
        ]
        indexes = [hit.indexes[mask] for hit, mask in zip(hits, wanted, strict=True)]
        block_ids = np.concatenate([hit.block_ids[mask] for hit, mask in zip(hits, wanted, strict=True)])
        digests = np.concatenate([chain[index] for chain, index in zip(chains, indexes, strict=True)])
        good = self._fill(block_ids, digests)
        if not self._rank.gate.is_open():
            return computed  # closed meanwhile: what the blocks hold is nobody's knowledge any more
        lengths = []
        at = 0
        for hit, end, index in zip(hits, ends, indexes, strict=True):
            own = good[at : at + len(index)]
            at += len(own)
            lengths.append(max(hit.computed, end if own.all() else int(index[own.argmin()])))
        return np.array(lengths, dtype=np.int64)

    def _fill(self, block_ids: BlockIds, digests: Digests) -> Mask:
        """Bring each block to hold its digest's bytes; which ones do."""
        # two prompts of one step may share a block: it is loaded once, and only if they mean the same
        _, first, inverse = np.unique(block_ids, return_index=True, return_inverse=True)
        meant = (digests == digests[first][inverse]).all(axis=1)
        ids, wanted = block_ids[first], digests[first]
        held = self._rank.directory.holds(ids, wanted)
        missing = np.nonzero(~held)[0]
        if len(missing):
            held[missing] = self._get(ids[missing], wanted[missing])
        good: Mask = held[inverse] & meant
        return good

    def _get(self, block_ids: BlockIds, digests: Digests) -> Mask:
        keys = self._rank.keys.data(block_keys.hex_digests(digests))
        arrived = np.zeros(len(keys), dtype=np.bool_)
        step = self._rank.memory.max_blocks_per_call
        for at in range(0, len(keys), step):
            ids = block_ids[at : at + step]
            with self._rank.gate.passing() as may_write:
                if not may_write:
                    break
                with self._rank.memory.write(ids) as buffers:
                    arrived[at : at + step] = answers(len(ids), self._rank.pool.get(keys[at : at + step], buffers))
        self._rank.directory.fill(block_ids[arrived], digests[arrived], self._rank.pool.put_proof_s)
        num_arrived = int(arrived.sum())
        self._rank.counters.reloaded_blocks += num_arrived
        self._rank.counters.reloaded_bytes += num_arrived * self._rank.memory.block_bytes
        self._rank.counters.failed_get_blocks += len(keys) - num_arrived
        return arrived
