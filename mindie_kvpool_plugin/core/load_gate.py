"""Load or recompute: how many of its promised blocks a prompt is worth loading.

A block is loaded only where that is faster than computing its tokens, by what both took here of late, from its own
part of the pool or from elsewhere (``load_pace``).  A later block is of no use without those before it: so of each
prompt that prefix is loaded which saves most, blocks that cost more than they save included where enough that pay come
after them.  Computing costs the same or more with every token before, loading does not: where all blocks of a step lie
in one place, its hits are loaded whole or not at all.  What was not foreseen is met on the way: a load that may be felt
begins with a small piece of each place, each later one is at most ``GROWTH`` times as large, and when the last one
moved so much slower than foreseen that computing the rest is faster, it ends there; what arrived stays.

Every rank decides alike: what it measured travels with the lengths that the ranks agree on anyway (``tells``,
``hears``), the slowest rank's figures count for all, and so does each place's verdict.  Where blocks lie each rank asks
for its own, and only where that makes a difference; the shortest prefix that one of them chose is what all use.

A step is not held up without bound (``_limit_s``): fences and loads of a step together take the budget at most, an
operator's or so many decode steps.  Where computing takes place in the same step, it would hold the step up longer yet
than a load that pays; so without an operator's budget a load may take as long as computing its blocks.

Step thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.core.block_directory import Mask
from mindie_kvpool_plugin.core.held_up import BUDGET_STEPS, UNKNOWN_BUDGET_S
from mindie_kvpool_plugin.core.load_pace import COMES_BACK, NUM_TOLD, PER_SECOND, UNFELT_S, LoadPace
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.tally import Lost
from mindie_kvpool_plugin.pools.base import NOTHING, Elsewhere

Lengths = npt.NDArray[np.int64]
Seconds = npt.NDArray[np.float64]

NUM_FIGURES = 2 + 2 * NUM_TOLD
"""What ``tells`` and ``hears`` are about, in their order: seconds per decode step and computed token; then what there
is to tell of loads from the own part of the pool, and from elsewhere."""

OWN, ELSEWHERE = 0, 1
"""Places, where there is something of each."""

FIRST_BLOCKS = 4
FIRST_S = 0.002  # where this many seconds move more blocks, calls of fewer would cost more than they tell
GROWTH, SURE_GROWTH, SURE = 4, 16, 2.0
"""How many times as many blocks the next piece may have; and where one that pays took ``SURE`` times what was known."""
LEEWAY = 0.05
"""Of what computing all of it takes: as long a load may go on before its pace is judged, for a first call is slow."""


class HostPace(Protocol):
    """What the host's own steps take (``observability.prefill_clock``)."""

    def token_s(self) -> float:
        """Seconds that a prefill step takes longer for one more token; 0: not known."""
        ...

    def decode_s(self) -> float:
        """Seconds of a decode step; 0: not known."""
        ...


class Moved(NamedTuple):
    """What a load has brought.

    Attributes:
        blocks: that arrived.
        elsewhere: of these, what came from elsewhere.
    """

    blocks: int
    elsewhere: Elsewhere = NOTHING


class _Choice(NamedTuple):
    """One way to load a step's hits.

    Attributes:
        wanted: bool [blocks], which of all promised blocks, one prompt after the other.
        is_cut: some were left out only because the step would be held up too long.
        probed: the place from which a block is loaded only to see what it takes, and ``probe_at``, that block.
        declined_s: what loading those that do not pay would take.
    """

    wanted: Mask
    is_cut: bool = False
    probed: LoadPace | None = None
    probe_at: int = -1
    declined_s: float = 0.0


class LoadGate:
    """One rank's.

    Args:
        block_size: tokens per block.
        pace: of the host's steps.
        counters: where it is told what was decided, and by which figures.
        clock: seconds, monotonic.
        budget_s: an operator's, for loads and fences of a step; 0: none.
        is_chunked: prompts are computed over several steps, between decodes (SplitFuse).

    Attributes:
        left_out: why the last choice, or the load after it, left promised blocks out.
        own, elsewhere: loads from this process's part of the pool, or from a pool that has no such part; and others.
        put_block_s: seconds that a block takes to the pool; 0: not known.
    """

    def __init__(
        self,
        block_size: int,
        pace: HostPace,
        counters: Counters,
        clock: Callable[[], float] = time.monotonic,
        budget_s: float = 0.0,
        is_chunked: bool = False,
    ) -> None:
        self.left_out = Lost.CHEAPER
        self.own = LoadPace("pool hits", self._worth_s, clock)
        self.elsewhere = LoadPace("pool hits that lie elsewhere", self._worth_s, clock)
        self.put_block_s: Callable[[], float] = lambda: 0.0
        # where a pool has parts, nobody knows to which of them puts went
        self.own.put_block_s = lambda: 0.0 if self._has_parts else self.put_block_s()
        self._has_parts = False
        self._budget_s = budget_s
        self._is_hard = is_chunked or budget_s > 0
        self._step_s = self._left_s = self._known_token_s = 0.0
        self._clock = clock
        self._block_size = block_size
        self._pace = pace
        self._counters = counters
        self._is_elsewhere: Mask = np.zeros(0, dtype=np.bool_)
        self._probed: LoadPace | None = None
        self._probe_at = -1
        self._tell()

    # -- what ranks tell each other ---------------------------------------------------------------------

    def tells(self) -> Lengths:
        """int64 [NUM_FIGURES] of which the smallest of all ranks count."""
        host = [-round(each * PER_SECOND) for each in (self._pace.decode_s(), self._pace.token_s())]
        return np.array([*host, *self.own.tells(), *self.elsewhere.tells()], dtype=np.int64)

    def hears(self, told: Lengths) -> None:
        """What all ranks together have told."""
        step, token, *places = told.tolist()
        self._step_s, token_s = -step / PER_SECOND, -token / PER_SECOND
        self._known_token_s = token_s or self._known_token_s
        self.own.hears(places[:NUM_TOLD], token_s * self._block_size)
        self.elsewhere.hears(places[NUM_TOLD:], token_s * self._block_size)
        self._tell()

    def _tell(self) -> None:
        counters, own, elsewhere = self._counters, self.own, self.elsewhere
        counters.load_is_on, counters.load_elsewhere_is_on = int(own.is_on), int(elsewhere.is_on)
        counters.load_switches = own.num_switches + elsewhere.num_switches
        counters.load_block_seconds, counters.load_call_seconds = own.figures
        counters.load_elsewhere_block_seconds, counters.load_elsewhere_call_seconds = elsewhere.figures
        if own.figures.block_s or elsewhere.figures.block_s:
            counters.compute_block_seconds = self._worth_s()

    def _worth_s(self) -> float:
        return (self._known_token_s or self._pace.token_s()) * self._block_size

    # -- what a step asks --------------------------------------------------------------------------------

    def choose(
        self,
        computed: Lengths,
        promised: Lengths,
        held_s: float = 0.0,
        find: Callable[[], Mask | None] | None = None,
    ) -> Lengths:
        """How far to load the step's hits of this rank's cache.

        Args:
            computed, promised: int64 [hits], leading blocks on the device, and with those in the pool.
            held_s: seconds that the step was held up already.
            find: asks the pool which of the promised blocks lie elsewhere: bool [blocks], one prompt after the other;
                answers None if the pool did not.  None where the pool has no own part.

        Returns:
            int64 [hits], leading blocks of each prompt to have in the end: from ``computed`` to ``promised``.
        """
        blocks = promised - computed
        count = int(blocks.sum())
        self._left_s = max(0.0, self._limit_s(count) - held_s)
        self._is_elsewhere = np.zeros(count, dtype=np.bool_)
        choice = self._weigh(blocks, self._is_elsewhere)
        self._has_parts = find is not None
        if find is not None and (choice.wanted.any() or self._weigh(blocks, ~self._is_elsewhere).wanted.any()):
            began_s = self._clock()
            found = find()
            self._left_s = max(0.0, self._left_s - (self._clock() - began_s))
            if found is None:
                self.left_out = Lost.POOL_LEFT_ALONE
                return computed
            self._is_elsewhere = found
            choice = self._weigh(blocks, found)
        return computed + self._take(blocks, choice)

    def _limit_s(self, count: int) -> float:
        """Seconds for which loading so many blocks may hold a step up, fences included."""
        limit_s = self._budget_s or BUDGET_STEPS * (self._step_s or self._pace.decode_s()) or UNKNOWN_BUDGET_S
        self._counters.reload_budget_seconds = limit_s
        return limit_s if self._is_hard else max(limit_s, self._worth_s() * count)

    def _weigh(self, blocks: Lengths, is_elsewhere: Mask) -> _Choice:
        """The best way if they lie there: blocks of each prompt, and for each block of all of them where it is."""
        worth_s, each_s = self._worth_s(), self._each_s(is_elsewhere)
        price_s = np.where(is_elsewhere, _price_s(self.elsewhere, worth_s), _price_s(self.own, worth_s))
        wanted = _best_prefixes(blocks, worth_s - price_s)
        if worth_s and self._calls_s(wanted, is_elsewhere) + each_s[wanted].sum() > worth_s * wanted.sum():
            wanted[:] = False
        everything = np.ones_like(wanted)
        if each_s.all() and self._calls_s(everything, is_elsewhere) + each_s.sum() <= UNFELT_S:
            wanted = everything
        left_s = max(0.0, self._left_s - self._calls_s(wanted, is_elsewhere))
        in_time = np.cumsum(each_s * wanted) <= left_s
        if not in_time.all():
            return _Choice(wanted & in_time, is_cut=True)
        probed, probe_at = self._due(wanted, is_elsewhere)
        if probed is not None:
            of = _prompts(blocks)
            wanted |= of == of[probe_at]
        declined_s = self._calls_s(~wanted, is_elsewhere) + float(each_s[~wanted].sum())
        return _Choice(wanted, False, probed, probe_at, declined_s)

    def _each_s(self, is_elsewhere: Mask) -> Seconds:
        """What each block takes; 0: not known."""
        return np.where(is_elsewhere, self.elsewhere.figures.block_s, self.own.figures.block_s)

    def _calls_s(self, wanted: Mask, is_elsewhere: Mask) -> float:
        """What a load of these takes beside its blocks."""
        own_s = self.own.figures.call_s * bool((wanted & ~is_elsewhere).any())
        return own_s + self.elsewhere.figures.call_s * bool((wanted & is_elsewhere).any())

    def _due(self, wanted: Mask, is_elsewhere: Mask) -> tuple[LoadPace | None, int]:
        """A place of which nothing is loaded and which is to be tried again, and its first block."""
        for place, lies_there in ((self.own, ~is_elsewhere), (self.elsewhere, is_elsewhere)):
            if place.is_probe_due and lies_there.any() and not (wanted & lies_there).any():
                return place, int(lies_there.argmax())
        return None, -1

    def _take(self, blocks: Lengths, choice: _Choice) -> Lengths:
        """Go that way: how many blocks of each prompt are loaded."""
        self.left_out = Lost.OVER_BUDGET if choice.is_cut else Lost.CHEAPER
        self._probed, self._probe_at = choice.probed, choice.probe_at
        if choice.probed is not None:
            choice.probed.is_probe_due = False
            self._counters.load_probes += 1
        if not choice.is_cut:
            self._counters.declined_load_seconds += choice.declined_s
            self._counters.declined_compute_seconds += self._worth_s() * int((~choice.wanted).sum())
        loaded: Lengths = np.bincount(_prompts(blocks)[choice.wanted], minlength=len(blocks))
        return loaded

    def begin(self, places: Lengths, per_block: float) -> Load:
        """A load of some blocks begins.

        Args:
            places: int64 [n], which of the blocks of the last choice they are, counted like ``find``'s; this rank's.
            per_block: blocks of the prompts for each of them; more than 1 where others load their share.
        """
        is_elsewhere = self._is_elsewhere[places]
        each_s = self._each_s(is_elsewhere) * per_block
        firsts = self._first(self.own, per_block), self._first(self.elsewhere, per_block)
        calls_s = self._calls_s(np.ones_like(is_elsewhere), is_elsewhere)
        if self._probed is None and each_s.all() and calls_s + each_s.sum() <= UNFELT_S:
            firsts = len(places), len(places)
        paces_s = self.own.figures.block_s * per_block, self.elsewhere.figures.block_s * per_block
        probe_at = int((places >= self._probe_at).argmax()) if self._probed is not None else -1
        return Load(is_elsewhere, paces_s, firsts, probe_at, self._worth_s() * per_block, self._left_s, self._clock)

    def _first(self, place: LoadPace, per_block: float) -> int:
        """Blocks from there that begin a load."""
        block_s = place.figures.block_s * per_block
        return max(FIRST_BLOCKS, int(FIRST_S / block_s)) if block_s and place is not self._probed else 1

    def ended(self, load: Load, moved: Moved, per_block: float) -> None:
        """It is over.

        Args:
            load: as ``begin`` returned it.
            moved: what it brought.
            per_block: as ``begin`` was given it.
        """
        if load.left and not load.is_slow:
            self.left_out = Lost.OVER_BUDGET
        own_blocks, elsewhere_s = moved.blocks - moved.elsewhere.blocks, min(moved.elsewhere.seconds, load.taken_s)
        if elsewhere_s and not own_blocks:
            elsewhere_s = load.taken_s
        for place, blocks, seconds, (left, left_s) in (
            (self.own, own_blocks, load.taken_s - elsewhere_s, load.rest(OWN)),
            (self.elsewhere, moved.elsewhere.blocks, elsewhere_s, load.rest(ELSEWHERE)),
        ):
            if not (blocks or seconds):  # nothing was begun there
                continue
            place.tried(seconds)
            # a slow one would have taken so long, had it gone on
            count, all_s = (blocks + left, seconds + left_s) if load.is_slow else (blocks, seconds)
            if count:
                place.took(count * per_block, all_s)


def _price_s(place: LoadPace, worth_s: float) -> float:
    """What a block from there is taken to cost: where loading pays, computing it at most; else more than that."""
    block_s = place.figures.block_s
    if place.pays:
        return min(block_s, worth_s)
    return max(block_s, worth_s / COMES_BACK) if block_s else math.inf


def _best_prefixes(blocks: Lengths, gain_s: Seconds) -> Mask:
    """Which blocks to load: of each prompt the prefix that saves most, the longest of several."""
    wanted = np.zeros(len(gain_s), dtype=np.bool_)
    ends = np.cumsum(blocks).tolist()
    for end, count in zip(ends, blocks.tolist(), strict=True):
        saved_s = np.cumsum(gain_s[end - count : end])[::-1]
        if count and saved_s.max() >= 0:
            wanted[end - count : end - int(saved_s.argmax())] = True
    return wanted


def _prompts(blocks: Lengths) -> Lengths:
    """Which prompt each of the blocks belongs to."""
    return np.repeat(np.arange(len(blocks)), blocks)


class Whole:
    """A load of everything, in pieces only as large as one call may be.

    Attributes:
        left: blocks not begun.
    """

    def __init__(self, num_blocks: int) -> None:
        self.left = num_blocks

    def piece(self, at_most: int) -> int:
        """Blocks to load next; 0: no more.  A call of ``moved`` follows once they were."""
        return min(self.left, at_most)

    def moved(self, count: int, elsewhere: Elsewhere = NOTHING) -> None:
        """That is done.

        Args:
            count: blocks of the piece.
            elsewhere: what came from there, as far as the pool told.
        """
        del elsewhere
        self.left -= count


class Load(Whole):
    """One that is watched on its way.

    Args:
        is_elsewhere: bool [blocks], where each lies.
        paces_s: seconds that a block takes from the own part and from elsewhere; 0: not known.
        firsts: how many from the own part and from elsewhere the first piece has at most.
        probe_at: the block that is loaded only to see what it takes; -1: none.
        worth_s: seconds that computing one takes; 0: not known.
        limit_s: seconds it may take.
        clock: seconds, monotonic.

    Attributes:
        taken_s: seconds so far.
        pace_s: seconds that each of the blocks left takes, by the last pieces; 0: not known.
        is_slow: computing the rest is faster.
    """

    def __init__(
        self,
        is_elsewhere: Mask,
        paces_s: tuple[float, float],
        firsts: tuple[int, int],
        probe_at: int,
        worth_s: float,
        limit_s: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(len(is_elsewhere))
        self.taken_s = self.pace_s = 0.0
        self.is_slow = False
        self._num_blocks = self.left
        # how many of each place are among so many leading blocks
        self._before = [np.append(0, np.cumsum(lies)) for lies in (~is_elsewhere, is_elsewhere)]
        self._paces_s = list(paces_s)
        self._next = list(firsts)
        self._probe_at = probe_at
        self._worth_s = worth_s
        self._limit_s = limit_s
        self._leeway_s = max(UNFELT_S, LEEWAY * worth_s * self.left)
        self._clock = clock
        self._began_s = 0.0

    def piece(self, at_most: int) -> int:
        """As above, and none once the last one was too slow."""
        self._began_s = self._clock()
        if self.is_slow:
            return 0
        at, count = self._num_blocks - self.left, self.left
        for before, most in zip(self._before, self._next, strict=True):
            # what would be left for a last piece of less than half its size goes along
            if before[-1] - before[at] > 1.5 * most:
                count = min(count, int(np.searchsorted(before, before[at] + most, side="right")) - 1 - at)
        if self.pace_s:
            count = min(count, int((self._limit_s - self.taken_s) / self.pace_s))
        return max(0, min(count, at_most))

    def moved(self, count: int, elsewhere: Elsewhere = NOTHING) -> None:
        """As above, and judge by how long it took."""
        seconds, at = self._clock() - self._began_s, self._num_blocks - self.left
        super().moved(count)
        self.taken_s += seconds
        own, others = (int(before[at + count] - before[at]) for before in self._before)
        elsewhere_s = min(elsewhere.seconds, seconds) if own else seconds
        for place, blocks, took_s in ((OWN, own, seconds - elsewhere_s), (ELSEWHERE, others, elsewhere_s)):
            if blocks:
                is_sure = took_s <= min(SURE * self._paces_s[place], self._worth_s) * blocks
                self._paces_s[place] = took_s / blocks
                self._next[place] *= SURE_GROWTH if is_sure else GROWTH
        # nobody expects what is probed to pay: on the way to it, only what comes before it is judged
        end = self._probe_at if at + count <= self._probe_at else self._num_blocks
        left = max(end - at - count, 1)
        self.pace_s = sum(self.rest(place, end)[1] for place in (OWN, ELSEWHERE)) / left
        is_over = self.taken_s > self._leeway_s
        self.is_slow = bool(self.left and self._worth_s and is_over and self.pace_s > self._worth_s)

    def rest(self, place: int, end: int | None = None) -> tuple[int, float]:
        """How many blocks of a place are left, up to one of all blocks, and the seconds they would take."""
        at, before = self._num_blocks - self.left, self._before[place]
        blocks = int(before[self._num_blocks if end is None else end] - before[at])
        return blocks, blocks * (self._paces_s[place] or self._paces_s[1 - place])
