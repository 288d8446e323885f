"""The way back from the pool: pool hits of new prompts -> device blocks.

The scheduler promised blocks it believes to be in the pool.  What really arrives may be less; then
the hit is shortened to its longest good prefix, to the same length on every rank, and the host
computes the rest in the same step.  Nothing that did not arrive whole is ever part of a hit.  What is faster to
compute than to load is not asked for (``load_gate``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import BlockIds, Digests, PoolHit
from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.block_directory import Mask
from mindie_kvpool_plugin.core.load_gate import Load, LoadGate, Whole
from mindie_kvpool_plugin.core.pool_calls import answers
from mindie_kvpool_plugin.core.rank import Rank
from mindie_kvpool_plugin.observability import causes
from mindie_kvpool_plugin.observability.log import RateLimited
from mindie_kvpool_plugin.observability.tally import Lost, Tally

Lengths = npt.NDArray[np.int64]

_CAUSES = {Lost.CHEAPER: causes.CHEAPER_TO_COMPUTE, Lost.OVER_BUDGET: causes.OVER_BUDGET}


class Reload:
    """One rank's way back from the pool.  Step thread.

    Args:
        rank: what it works on.
        agree: the minimum of each entry over all ranks.
        load_gate: what is worth loading; None: everything.
    """

    def __init__(self, rank: Rank, agree: Callable[[Lengths], Lengths], load_gate: LoadGate | None = None) -> None:
        self._rank = rank
        self._agree = agree
        self._load_gate = load_gate
        self._tally = Tally(rank.counters, rank.keys.block_size)
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
        began = self._rank.clock()
        computed = np.array([hit.computed for hit in hits], dtype=np.int64)
        promised = np.array([hit.promised for hit in hits], dtype=np.int64)
        is_own = np.array([hit.is_own for hit in hits], dtype=np.bool_)
        asked, arrived = promised.copy(), promised.copy()
        asked[is_own], arrived[is_own] = self._fetch([hit for hit in hits if hit.is_own])
        if self._load_gate is not None:
            self._tally.left_out = self._load_gate.left_out
        if self._rank.why is not None:
            self._rank.why.asked, self._rank.why.arrived = asked, arrived
            self._rank.why.left_out = _CAUSES[self._tally.left_out]
        agreed: Lengths = np.maximum(self._agree(arrived), computed)
        self._tally.loaded(*((blocks - computed)[is_own] for blocks in (promised, asked, arrived, agreed)))
        self._rank.counters.reload_seconds.add(self._rank.clock() - began)
        return agreed

    def give_up(self, num_hits: int) -> None:
        """Tell the other ranks that none of the step's pool hits may be used; they wait to hear it.

        Args:
            num_hits: of the whole batch.
        """
        self._agree(np.zeros(num_hits, dtype=np.int64))

    def lost(self, num_blocks: int) -> None:
        """Count promised blocks that were given up, once the others know of it."""
        self._tally.gave_up(num_blocks)

    def _fetch(self, hits: Sequence[PoolHit]) -> tuple[Lengths, Lengths]:
        """Leading blocks of each prompt that the pool was asked for, and that are there now."""
        computed = np.array([hit.computed for hit in hits], dtype=np.int64)
        promised = np.array([hit.promised for hit in hits], dtype=np.int64)
        self._tally.reason = Lost.NOT_DELIVERED
        if not hits:
            return promised, computed
        if not (is_open := self._rank.gate.is_open()) or not self._rank.pool.is_available:
            return promised, self._give_up(
                computed,
                *((causes.LEFT_ALONE, Lost.POOL_LEFT_ALONE) if is_open else (causes.DEVICE_BUSY, Lost.DEVICE_CLOSED)),
            )
        gate, held_s = self._load_gate, self._rank.held.seconds
        chosen = promised if gate is None else gate.choose(computed, promised, held_s)
        if (chosen == computed).all():
            return computed, computed
        if not self._rank.device_idle():
            self._log.warning(
                "the batch before failed or did not leave the device in time; %d pool hits are recomputed", len(hits)
            )
            return promised, self._give_up(computed, causes.DEVICE_BUSY, Lost.DEVICE_BUSY)
        asked, arrived = self._bring(hits, computed, chosen)
        if not self._rank.gate.is_open():
            # closed meanwhile: what the blocks hold is nobody's knowledge any more
            return promised, self._give_up(computed, causes.DEVICE_BUSY, Lost.DEVICE_CLOSED)
        return asked, arrived

    def _bring(self, hits: Sequence[PoolHit], computed: Lengths, chosen: Lengths) -> tuple[Lengths, Lengths]:
        """Load each prompt's blocks as far as chosen; answers like ``_fetch``."""
        size = self._rank.keys.block_size
        # a scheduler that promises more than the prompt's full blocks is believed as far as they go
        ends = [min(length, len(hit.tokens) // size) for hit, length in zip(hits, chosen.tolist(), strict=True)]
        wanted = [hit.indexes < end for hit, end in zip(hits, ends, strict=True)]
        chains = [
            block_keys.digests_of(hit.tokens[: end * size], size, hit.hashed, hit.adapter)
            for hit, end in zip(hits, ends, strict=True)
        ]
        indexes = [hit.indexes[mask] for hit, mask in zip(hits, wanted, strict=True)]
        block_ids = np.concatenate([hit.block_ids[mask] for hit, mask in zip(hits, wanted, strict=True)])
        digests = np.concatenate([chain[index] for chain, index in zip(chains, indexes, strict=True)])
        share = int((chosen - computed).sum()) / max(len(block_ids), 1)
        good, begun = self._fill(block_ids, digests, share)
        arrived, asked = computed.copy(), chosen.copy()
        at = 0
        for row, (end, index) in enumerate(zip(ends, indexes, strict=True)):
            own = slice(at, at + len(index))
            at += len(index)
            arrived[row] = max(computed[row], end if good[own].all() else index[good[own].argmin()])
            if not begun[own].all():
                asked[row] = index[begun[own].argmin()]
        return asked, arrived

    def _give_up(self, computed: Lengths, cause: str, reason: Lost) -> Lengths:
        """What is on the device is all there is."""
        self._tally.reason = reason
        if self._rank.why is not None:
            self._rank.why.trouble = cause
        return computed

    def _fill(self, block_ids: BlockIds, digests: Digests, share: float) -> tuple[Mask, Mask]:
        """Bring each block to hold its digest's bytes: which ones do, and for which it was tried.

        Args:
            block_ids: int64 [n], of each prompt in the order of its tokens.
            digests: uint64 [n, 2].
            share: blocks of the prompts for each of these.
        """
        # two prompts of one step may share a block: it is loaded once, and only if they mean the same
        _, first, inverse = np.unique(block_ids, return_index=True, return_inverse=True)
        meant = (digests == digests[first][inverse]).all(axis=1)
        ids, wanted = block_ids[first], digests[first]
        held = self._rank.directory.holds(ids, wanted)
        begun = np.ones_like(held)
        missing = np.nonzero(~held)[0]
        if len(missing):
            missing = missing[np.argsort(first[missing])]  # a load may end early: leading blocks first
            with self._rank.way.taken():
                arrived, num_begun = self._get(ids[missing], wanted[missing], share)
            held[missing] = arrived
            begun[missing[num_begun:]] = False
        good: Mask = held[inverse] & meant
        return good, begun[inverse]

    def _get(self, block_ids: BlockIds, digests: Digests, share: float) -> tuple[Mask, int]:
        """Load as many as pay, in order: which of them arrived, and how many were asked for."""
        keys = self._rank.keys.data(block_keys.hex_digests(digests))
        arrived = np.zeros(len(keys), dtype=np.bool_)
        load_gate = self._load_gate
        load = Whole(len(keys)) if load_gate is None else load_gate.begin(len(keys), share)
        at, began = 0, self._rank.clock()
        while count := load.piece(self._rank.memory.max_blocks_per_call):
            piece = slice(at, at + count)
            with self._rank.gate.passing() as may_write:
                if not may_write:
                    at = len(keys)
                    break
                with self._rank.memory.write(block_ids[piece]) as buffers:
                    arrived[piece] = answers(count, self._rank.pool.get(keys[piece], buffers))
            at += count
            load.moved(count)
        self._rank.held.seconds += self._rank.clock() - began
        self._rank.directory.fill(block_ids[arrived], digests[arrived], self._rank.pool.put_proof_s)
        num_arrived = int(arrived.sum())
        if load_gate is not None and isinstance(load, Load):
            load_gate.ended(load, num_arrived, share)
        self._rank.counters.reloaded_blocks += num_arrived
        self._rank.counters.reloaded_bytes += num_arrived * self._rank.memory.block_bytes
        self._rank.counters.failed_get_blocks += at - num_arrived
        return arrived, at
