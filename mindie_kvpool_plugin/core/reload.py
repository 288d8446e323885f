"""The way back from the pool: pool hits of new prompts -> device blocks.

The scheduler promised blocks it believes to be in the pool.  What really arrives may be less; then
the hit is shortened to its longest good prefix, to the same length on every rank, and the host
computes the rest in the same step.  Nothing that did not arrive whole is ever part of a hit.  What is faster to
compute than to load is not asked for (``load_gate``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import BlockIds, Digests, PoolHit
from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.block_directory import Mask
from mindie_kvpool_plugin.core.load_gate import Load, LoadGate, Moved, Whole
from mindie_kvpool_plugin.core.rank import Rank
from mindie_kvpool_plugin.observability import causes
from mindie_kvpool_plugin.observability.log import RateLimited
from mindie_kvpool_plugin.observability.tally import Lost, Tally
from mindie_kvpool_plugin.pools.base import NOTHING, answers, from_elsewhere

Lengths = npt.NDArray[np.int64]

_CAUSES = {
    Lost.CHEAPER: causes.CHEAPER_TO_COMPUTE,
    Lost.OVER_BUDGET: causes.OVER_BUDGET,
    Lost.POOL_LEFT_ALONE: causes.LEFT_ALONE,
}


class _Blocks(NamedTuple):
    """Some of a step's promised blocks that lie on this rank, in the order of their prompts and tokens.

    Attributes:
        prompts: int64 [n], which of the hits each belongs to.
        indexes: int64 [n], which block of that prompt.
        places: int64 [n], which of all promised blocks, those on other ranks included.
        ids: int64 [n], where on the device.
        digests: uint64 [n, 2], their content.
    """

    prompts: Lengths
    indexes: Lengths
    places: Lengths
    ids: BlockIds
    digests: Digests

    def take(self, rows: Lengths | Mask) -> _Blocks:
        """Some of them."""
        prompts, indexes, places, ids, digests = self
        return _Blocks(prompts[rows], indexes[rows], places[rows], ids[rows], digests[rows])


class Reload:
    """One rank's way back from the pool.  Step thread.

    Args:
        rank: what it works on.
        agree: the minimum of each entry over all ranks.
        load_gate: what is worth loading; None: everything.
        can_agree: whether ``agree`` may answer anything but zeros; nothing is loaded for those.
    """

    def __init__(
        self,
        rank: Rank,
        agree: Callable[[Lengths], Lengths],
        load_gate: LoadGate | None = None,
        can_agree: Callable[[], bool] = lambda: True,
    ) -> None:
        self._rank = rank
        self._agree = agree
        self._can_agree = can_agree
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
        self._rank.counters.ranks_agree = int(self._can_agree())
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
        for is_out, cause, reason in (
            (not self._rank.gate.is_open(), causes.DEVICE_BUSY, Lost.DEVICE_CLOSED),
            (not self._can_agree(), causes.RANKS_DISAGREE, Lost.RANKS_DISAGREE),
            (not self._rank.pool.is_available, causes.LEFT_ALONE, Lost.POOL_LEFT_ALONE),
        ):
            if is_out:
                return promised, self._give_up(computed, cause, reason)
        named = functools.cache(lambda: self._named(hits, computed, promised))
        chosen = self._choose(computed, promised, named)
        if (chosen == computed).all():
            return computed, computed
        if not self._rank.device_idle():
            self._log.warning(
                "the batch before failed or did not leave the device in time; %d pool hits are recomputed", len(hits)
            )
            return promised, self._give_up(computed, causes.DEVICE_BUSY, Lost.DEVICE_BUSY)
        asked, arrived = self._bring(hits, named(), computed, chosen)
        if not self._rank.gate.is_open():
            # closed meanwhile: what the blocks hold is nobody's knowledge any more
            return promised, self._give_up(computed, causes.DEVICE_BUSY, Lost.DEVICE_CLOSED)
        return asked, arrived

    def _choose(self, computed: Lengths, promised: Lengths, named: Callable[[], _Blocks]) -> Lengths:
        """How far to load each prompt."""
        if self._load_gate is None:
            return promised

        def find() -> Mask | None:
            blocks, began = named(), self._rank.clock()
            told = self._rank.pool.lie_elsewhere(self._keys(blocks))
            self._rank.held.seconds += self._rank.clock() - began
            if len(told) != len(blocks.ids):
                return None
            # a block on another rank is taken to lie as this rank's next one does
            lies, all_places = np.array([*told, False], dtype=np.bool_), np.arange(int((promised - computed).sum()))
            found: Mask = lies[np.searchsorted(blocks.places, all_places)]
            return found

        held_s = self._rank.held.seconds
        return self._load_gate.choose(computed, promised, held_s, find if self._rank.pool.has_own_part else None)

    def _named(self, hits: Sequence[PoolHit], computed: Lengths, promised: Lengths) -> _Blocks:
        """All promised blocks of this rank, and what they are to contain."""
        size = self._rank.keys.block_size
        parts = []
        begins = np.cumsum(promised - computed) - promised  # place of block 0 of each prompt
        for row, hit in enumerate(hits):
            # a scheduler that promises more than the prompt's full blocks is believed as far as they go
            end = min(hit.promised, len(hit.tokens) // size)
            chain = block_keys.digests_of(hit.tokens[: end * size], size, hit.hashed, hit.adapter)
            index, ids = hit.indexes[hit.indexes < end], hit.block_ids[hit.indexes < end]
            parts.append((np.full_like(index, row), index, begins[row] + index, ids, chain[index]))
        return _Blocks(*map(np.concatenate, zip(*parts, strict=True)))

    def _bring(
        self, hits: Sequence[PoolHit], named: _Blocks, computed: Lengths, chosen: Lengths
    ) -> tuple[Lengths, Lengths]:
        """Load each prompt's blocks as far as chosen; answers like ``_fetch``."""
        blocks = named.take(named.indexes < chosen[named.prompts])
        share = int((chosen - computed).sum()) / max(len(blocks.ids), 1)
        good, begun = self._fill(blocks, share)
        arrived, asked = computed.copy(), chosen.copy()
        bounds = np.searchsorted(blocks.prompts, np.arange(len(hits) + 1)).tolist()
        for row, hit in enumerate(hits):
            own = slice(bounds[row], bounds[row + 1])
            index, end = blocks.indexes[own], min(int(chosen[row]), len(hit.tokens) // self._rank.keys.block_size)
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

    def _keys(self, blocks: _Blocks) -> list[str]:
        return self._rank.keys.data(block_keys.hex_digests(blocks.digests))

    def _fill(self, blocks: _Blocks, share: float) -> tuple[Mask, Mask]:
        """Bring each block to hold its digest's bytes: which ones do, and for which it was tried.

        Args:
            blocks: to fill.
            share: blocks of the prompts for each of these.
        """
        # two prompts of one step may share a block: it is loaded once, and only if they mean the same
        _, first, inverse = np.unique(blocks.ids, return_index=True, return_inverse=True)
        meant = (blocks.digests == blocks.digests[first][inverse]).all(axis=1)
        held = self._rank.directory.holds(blocks.ids[first], blocks.digests[first])
        begun = np.ones_like(held)
        # a load that fails would undo what its sequence has computed of a block that it shares (SplitFuse)
        missing = np.nonzero(~held & ~self._rank.directory.is_computed_now(blocks.ids[first]))[0]
        if len(missing):
            missing = missing[np.argsort(first[missing])]  # a load may end early: leading blocks first
            with self._rank.way.taken():
                arrived, num_begun = self._get(blocks.take(first[missing]), share)
            held[missing] = arrived
            begun[missing[num_begun:]] = False
        good: Mask = held[inverse] & meant
        return good, begun[inverse]

    def _get(self, blocks: _Blocks, share: float) -> tuple[Mask, int]:
        """Load as many as pay, in order: which of them arrived, and how many were asked for."""
        keys, count = self._keys(blocks), len(blocks.ids)
        arrived = np.zeros(count, dtype=np.bool_)
        load_gate = self._load_gate
        load = Whole(count) if load_gate is None else load_gate.begin(blocks.places, share)
        at = num_asked = 0
        elsewhere, began = NOTHING, self._rank.clock()
        while piece := load.piece(self._rank.memory.max_blocks_per_call):
            rows = slice(at, at + piece)
            with self._rank.gate.passing() as may_write:
                if not may_write:
                    num_asked = count  # what is not there now is the closed device's doing
                    break
                with self._rank.memory.write(blocks.ids[rows]) as buffers:
                    told = self._rank.pool.get(keys[rows], buffers)
            arrived[rows] = answers(piece, told)
            load.moved(piece, from_elsewhere(told))
            elsewhere = elsewhere.plus(from_elsewhere(told))
            at += piece
        self._rank.held.seconds += self._rank.clock() - began
        self._rank.directory.fill(blocks.ids[arrived], blocks.digests[arrived], self._rank.pool.put_proof_s)
        num_arrived = int(arrived.sum())
        if load_gate is not None and isinstance(load, Load):
            load_gate.ended(load, Moved(num_arrived, elsewhere), share)
        self._rank.counters.reloaded_blocks += num_arrived
        self._rank.counters.reloaded_bytes += num_arrived * self._rank.memory.block_bytes
        self._rank.counters.failed_get_blocks += at - num_arrived
        return arrived, max(at, num_asked)
