"""Load or recompute: how many of its promised blocks a prompt is worth loading.

A block is loaded only where that is faster than computing its tokens, by what both took here of late.  Computing costs
the same or more with every token before, loading does not, and a later block is of no use without those before it: so
a step's hits are loaded whole or not at all.  What was not foreseen is met on the way: a load that may be felt begins
with a small piece, each later one is at most ``GROWTH`` times as large, and when the last one moved slower than
computing the rest ends it there; what arrived stays.

Every rank decides alike: what it measured travels with the lengths that the ranks agree on anyway (``tells``,
``hears``), the slowest rank's figures count for all, and so does the state below.  Nothing is judged by fewer than
``LEAST_LOADS`` loads, and before there are figures everything is loaded.  Once loading does not pay it is left alone,
until it takes less than ``COMES_BACK`` of computing; to find that out, one prompt is tried as a probe now and then.
Three loads may cost much where a pool is very slow: there a first load ``DOUBT`` times as slow as computing is the last
one, or before any the puts of late are.  Then a single probe that pays turns loading on: a first load may have stalled.

A step is not held up without bound (``_limit_s``): fences and loads of a step together take the budget at most, an
operator's or so many decode steps.  Where computing takes place in the same step, it would hold the step up longer yet
than a load that pays; so without an operator's budget a load may take as long as computing its blocks.

Step thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.core.held_up import BUDGET_STEPS, UNKNOWN_BUDGET_S
from mindie_kvpool_plugin.observability.cost_line import Line, fit
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.observability.tally import Lost

Lengths = npt.NDArray[np.int64]

NUM_FIGURES = 6
"""What ``tells`` and ``hears`` are about, in their order: seconds per decode step, computed token, loaded block and
load; whether loading is off; whether a probe is not due."""
PER_SECOND = 1e12  # figures travel as whole picoseconds

LOADS = 8
LEAST_LOADS = 3
COMES_BACK = 0.8
DOUBT = 4.0
PROBE_S = 10.0
PROBE_SHARE = 0.005
"""A probe that took long is repeated the later: of the time between two, at most this much is spent on them."""
BESIDE_SLOW_PUTS = 0.1
"""Of that share, while puts are far from what would pay: they tell at no cost that nothing has changed."""
FIRST_BLOCKS = 4
FIRST_S = 0.002  # where this many seconds move more blocks, calls of fewer would cost more than they tell
GROWTH = 4
UNFELT_S = 0.005
"""A step's loads that take no longer are made whatever computing takes: nobody feels so little, and what is measured of
it is mostly noise.  A step of a model in use takes several times that."""
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


class Figures(NamedTuple):
    """What all ranks know alike; seconds, 0 where nobody knows."""

    token_s: float = 0.0
    block_s: float = 0.0
    call_s: float = 0.0


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
        self._budget_s = budget_s
        self._is_hard = is_chunked or budget_s > 0
        self._step_s = self._left_s = 0.0
        self._clock = clock
        self._block_size = block_size
        self._pace = pace
        self._counters = counters
        self._figures = Figures()
        self._loads: deque[tuple[float, float]] = deque(maxlen=LOADS)  # blocks and seconds of each
        self._line = Line(0.0, 0.0)
        self.put_block_s: Callable[[], float] = lambda: 0.0
        self._is_on = True
        self._is_hasty = False
        self._is_probe_due = self._is_probe = False
        self._last_load_s = clock()
        self._probe_took_s = 0.0
        counters.load_is_on = 1

    # -- what ranks tell each other ---------------------------------------------------------------------

    def tells(self) -> Lengths:
        """int64 [NUM_FIGURES] of which the smallest of all ranks count: the more a rank has to say, the smaller."""
        is_due = self._clock() - self._last_load_s >= self._probe_every_s()
        pace = self._pace
        seconds = (
            pace.decode_s(),
            pace.token_s(),
            *((self._line.each_s, self._line.call_s) if self._is_judged() else (0.0, 0.0)),
        )
        figures = [-round(each * PER_SECOND) for each in seconds]
        is_off = not self._is_on or self._is_doubtful()
        return np.array([*figures, -int(is_off), -(not is_due)], dtype=np.int64)

    def hears(self, told: Lengths) -> None:
        """What all ranks together have told."""
        step, token, block, call, off, not_due = told.tolist()
        self._step_s = -step / PER_SECOND
        figures = Figures(-token / PER_SECOND, -block / PER_SECOND, -call / PER_SECOND)
        if not not_due:
            self._is_probe_due = True
            self._last_load_s = self._clock()
        pays, is_first = not off, not self._figures.block_s
        worth_s = figures.token_s * self._block_size
        if worth_s and figures.block_s:
            self._figures = figures
            pays = figures.block_s <= worth_s * (1.0 if pays else COMES_BACK)
            self._is_hasty = False
            self._tell(figures)
        if pays != self._is_on:
            self._is_hasty = is_first and not 0 < figures.block_s <= DOUBT * worth_s
            self._turn(pays)

    def _turn(self, is_on: bool) -> None:
        """What was measured before counts no more: it takes as many loads again to turn back."""
        takes_ms, compute_ms = (self._figures.block_s or self._seen_block_s()) * 1e3, self._worth_s() * 1e3
        done = "load" if self._figures.block_s or self._loads else "store"
        self._is_on = is_on
        self._loads.clear()
        self._counters.load_is_on = int(is_on)
        self._counters.load_switches += 1
        logger.info(
            "pool hits are %s: %s",
            "loaded again" if is_on else "computed until loading is faster, and one prompt is tried now and then",
            f"a block takes {takes_ms:.3g} ms to {done} and {compute_ms:.3g} to compute"
            if takes_ms
            else "as elsewhere",
        )

    def _tell(self, figures: Figures) -> None:
        self._counters.load_block_seconds = figures.block_s
        self._counters.load_call_seconds = figures.call_s
        self._counters.compute_block_seconds = figures.token_s * self._block_size

    def _is_judged(self) -> bool:
        return len(self._loads) >= (1 if self._is_hasty or self._is_doubtful() else LEAST_LOADS)

    def _is_doubtful(self) -> bool:
        """Whether nobody has judged yet, and what is known is far from paying."""
        is_first = self._is_on and not self._figures.block_s
        return is_first and self._is_far_from_paying(self._seen_block_s())

    def _is_far_from_paying(self, block_s: float) -> bool:
        worth_s = self._worth_s()
        return worth_s > 0 and block_s > max(UNFELT_S, DOUBT * worth_s)

    def _seen_block_s(self) -> float:
        return self._line.each_s if self._loads else self.put_block_s()

    def _probe_every_s(self) -> float:
        took_s, share, put_s = self._probe_took_s, PROBE_SHARE, self.put_block_s()
        if self._is_far_from_paying(put_s) and (not self._is_on or self._is_doubtful()):
            took_s, share = max(took_s, put_s), PROBE_SHARE * BESIDE_SLOW_PUTS
        return max(PROBE_S, took_s / share)

    # -- what a step asks --------------------------------------------------------------------------------

    def choose(self, computed: Lengths, promised: Lengths, held_s: float = 0.0) -> Lengths:
        """How far to load the step's hits of this rank's cache.

        Args:
            computed, promised: int64 [hits], leading blocks on the device, and with those in the pool.
            held_s: seconds that the step was held up already.

        Returns:
            int64 [hits], leading blocks of each prompt to have in the end: from ``computed`` to ``promised``.
        """
        figures, count = self._figures, int((promised - computed).sum())
        load_s = figures.call_s + figures.block_s * count
        compute_s = figures.token_s * self._block_size * count
        self._is_probe, self.left_out = False, Lost.CHEAPER
        self._left_s = max(0.0, self._limit_s(count) - held_s)
        pays = self._is_on and not self._is_doubtful() and (not figures.block_s or load_s <= compute_s)
        if pays or 0 < load_s <= UNFELT_S:
            return promised if load_s <= self._left_s else self._cut(computed, promised)
        chosen: Lengths = computed.copy()
        if self._is_probe_due:
            self._is_probe, self._is_probe_due = True, False
            self._counters.load_probes += 1
            first = int((promised > computed).argmax())
            chosen[first] = promised[first]
            share = 1 - (promised - computed)[first] / max(count, 1)
            load_s, compute_s = load_s * share, compute_s * share
        self._counters.declined_load_seconds += load_s
        self._counters.declined_compute_seconds += compute_s
        return chosen

    def _limit_s(self, count: int) -> float:
        """Seconds for which loading so many blocks may hold a step up, fences included."""
        limit_s = self._budget_s or BUDGET_STEPS * (self._step_s or self._pace.decode_s()) or UNKNOWN_BUDGET_S
        self._counters.reload_budget_seconds = limit_s
        return limit_s if self._is_hard else max(limit_s, self._worth_s() * count)

    def _worth_s(self) -> float:
        return self._token_s() * self._block_size

    def _token_s(self) -> float:
        return self._figures.token_s or self._pace.token_s()

    def _cut(self, computed: Lengths, promised: Lengths) -> Lengths:
        """As many leading blocks as there is time for, of one prompt after the other."""
        self.left_out = Lost.OVER_BUDGET
        room = int(max(0.0, self._left_s - self._figures.call_s) / self._figures.block_s)
        blocks = promised - computed
        chosen: Lengths = computed + np.clip(room - (np.cumsum(blocks) - blocks), 0, blocks)
        return chosen

    def begin(self, num_blocks: int, per_block: float) -> Load:
        """A load of some blocks begins.

        Args:
            num_blocks: this rank's.
            per_block: blocks of the prompts for each of them; more than 1 where others load their share.
        """
        worth_s = self._worth_s() * per_block
        block_s = self._figures.block_s * per_block
        first = 1 if self._is_probe or not block_s else max(FIRST_BLOCKS, int(FIRST_S / block_s))
        if first > 1 and self._figures.call_s + block_s * num_blocks <= UNFELT_S:
            first = num_blocks
        return Load(num_blocks, first, worth_s, self._left_s, self._clock)

    def ended(self, load: Load, num_arrived: int, per_block: float) -> None:
        """It is over.

        Args:
            load: as ``begin`` returned it.
            num_arrived: of its blocks.
            per_block: as ``begin`` was given it.
        """
        self._last_load_s = self._clock()
        if load.left and not load.is_slow:
            self.left_out = Lost.OVER_BUDGET
        if num_arrived or load.is_slow:
            count, seconds = num_arrived, load.taken_s
            if load.is_slow:  # it would have taken so long, had it gone on
                count, seconds = num_arrived + load.left, seconds + load.pace_s * load.left
            self._loads.append((count * per_block, seconds))
            self._line = fit(self._loads)
        if not self._is_on:
            self._probe_took_s = load.taken_s


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

    def moved(self, count: int) -> None:
        """That is done."""
        self.left -= count


class Load(Whole):
    """One that is watched on its way.

    Attributes:
        taken_s: seconds so far.
        pace_s: seconds per block of the last piece.
        is_slow: computing the rest is faster.
    """

    def __init__(self, num_blocks: int, first: int, worth_s: float, limit_s: float, clock: Callable[[], float]) -> None:
        super().__init__(num_blocks)
        self.taken_s = self.pace_s = 0.0
        self.is_slow = False
        self._next = first
        self._worth_s = worth_s
        self._limit_s = limit_s
        self._leeway_s = max(UNFELT_S, LEEWAY * worth_s * num_blocks)
        self._clock = clock
        self._began_s = 0.0

    def piece(self, at_most: int) -> int:
        """As above, and none once the last one was too slow."""
        self._began_s = self._clock()
        if self.is_slow:
            return 0
        # what would be left for a last piece of less than half its size goes along
        count = self._next if self.left > 1.5 * self._next else self.left
        if self.pace_s:
            count = min(count, int((self._limit_s - self.taken_s) / self.pace_s))
        return max(0, min(count, at_most))

    def moved(self, count: int) -> None:
        """As above, and judge by how long it took."""
        seconds = self._clock() - self._began_s
        super().moved(count)
        self._next *= GROWTH
        self.taken_s += seconds
        self.pace_s = seconds / count
        is_over = self.taken_s > self._leeway_s
        self.is_slow = bool(self.left and self._worth_s and is_over and self.pace_s > self._worth_s)
