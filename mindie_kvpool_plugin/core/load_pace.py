"""What loads from one place take, and whether loading from there pays: of one rank, and by the slowest of all.

A pool's blocks lie in this process's own part of it, which is a copy in memory, or elsewhere, which is a network: what
is measured of one says nothing of the other.  ``load_gate`` weighs with both.

Ranks tell each other (``tells``, ``hears``), so that all of them have the same figures and the same verdict.  Nothing
is judged by fewer than ``LEAST_LOADS`` loads, and before there are figures loading pays.  Once it does not, it is left
alone until it takes less than ``COMES_BACK`` of computing; to find that out, one prompt is tried as a probe now and
then.  Three loads may cost much where a pool is very slow: there a first load ``DOUBT`` times as slow as computing is
the last one, or before any the puts of late are.  Then a single probe that pays turns loading on: a first load may have
stalled.

Step thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from mindie_kvpool_plugin.observability.cost_line import Line, fit
from mindie_kvpool_plugin.observability.log import logger

NUM_TOLD = 4
"""What ``tells`` and ``hears`` are about, in their order: seconds per loaded block and load; whether loading is off;
whether a probe is not due."""
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
UNFELT_S = 0.005
"""A step's loads that take no longer are made whatever computing takes: nobody feels so little, and what is measured of
it is mostly noise.  A step of a model in use takes several times that."""


class Figures(NamedTuple):
    """What all ranks know alike; seconds, 0 where nobody knows."""

    block_s: float = 0.0
    call_s: float = 0.0


class LoadPace:
    """Of one place.

    Args:
        told: the place, as the log calls what is loaded from there.
        worth_s: seconds that computing a block takes; 0: not known.
        clock: seconds, monotonic.

    Attributes:
        is_on: whether loading from there was last found to pay.
        figures: of the slowest rank.
        is_probe_due: one prompt may be tried although it does not pay.
        num_switches: times that ``is_on`` changed.
        put_block_s: seconds that a block takes to there; 0: not known.
    """

    def __init__(self, told: str, worth_s: Callable[[], float], clock: Callable[[], float]) -> None:
        self.is_on = True
        self.figures = Figures()
        self.is_probe_due = False
        self.num_switches = 0
        self.put_block_s: Callable[[], float] = lambda: 0.0
        self._told = told
        self._worth_s = worth_s
        self._clock = clock
        self._loads: deque[tuple[float, float]] = deque(maxlen=LOADS)  # blocks and seconds of each
        self._line = Line(0.0, 0.0)
        self._is_hasty = False
        self._last_load_s = clock()
        self._probe_took_s = 0.0

    @property
    def pays(self) -> bool:
        """Whether to load from there."""
        return self.is_on and not self._is_doubtful()

    # -- what ranks tell each other ---------------------------------------------------------------------

    def tells(self) -> list[int]:
        """NUM_TOLD numbers of which the smallest of all ranks count: the more a rank has to say, the smaller."""
        is_due = self._clock() - self._last_load_s >= self._probe_every_s()
        seconds = (self._line.each_s, self._line.call_s) if self._is_judged() else (0.0, 0.0)
        return [*(-round(each * PER_SECOND) for each in seconds), -int(not self.pays), -(not is_due)]

    def hears(self, told: Sequence[int], worth_s: float) -> None:
        """What all ranks together have told.

        Args:
            told: as many numbers as ``tells`` has.
            worth_s: what all of them know of computing a block; 0: nothing.
        """
        block, call, off, not_due = told
        if not not_due:
            self.is_probe_due = True
            self._last_load_s = self._clock()
        figures = Figures(-block / PER_SECOND, -call / PER_SECOND)
        pays, is_first = not off, not self.figures.block_s
        if worth_s and figures.block_s:
            self.figures = figures
            pays = figures.block_s <= worth_s * (1.0 if pays else COMES_BACK)
            self._is_hasty = False
        if pays != self.is_on:
            self._is_hasty = is_first and not 0 < figures.block_s <= DOUBT * worth_s
            self._turn(pays)

    def _turn(self, is_on: bool) -> None:
        """What was measured before counts no more: it takes as many loads again to turn back."""
        takes_ms, compute_ms = (self.figures.block_s or self._seen_block_s()) * 1e3, self._worth_s() * 1e3
        done = "load" if self.figures.block_s or self._loads else "store"
        self.is_on = is_on
        self._loads.clear()
        self.num_switches += 1
        logger.info(
            "%s are %s: %s",
            self._told,
            "loaded again" if is_on else "computed until loading is faster, and one prompt is tried now and then",
            f"a block takes {takes_ms:.3g} ms to {done} and {compute_ms:.3g} to compute"
            if takes_ms
            else "as on other ranks",
        )

    # -- what this rank measured ---------------------------------------------------------------------------

    def took(self, count: float, seconds: float) -> None:
        """So many blocks took so long."""
        self._loads.append((count, seconds))
        self._line = fit(self._loads)

    def tried(self, seconds: float) -> None:
        """A load from there is over, whatever it brought."""
        self._last_load_s = self._clock()
        if not self.is_on:
            self._probe_took_s = seconds

    def _is_judged(self) -> bool:
        return len(self._loads) >= (1 if self._is_hasty or self._is_doubtful() else LEAST_LOADS)

    def _is_doubtful(self) -> bool:
        """Whether nobody has judged yet, and what is known is far from paying."""
        is_first = self.is_on and not self.figures.block_s
        return is_first and self._is_far_from_paying(self._seen_block_s())

    def _is_far_from_paying(self, block_s: float) -> bool:
        worth_s = self._worth_s()
        return worth_s > 0 and block_s > max(UNFELT_S, DOUBT * worth_s)

    def _seen_block_s(self) -> float:
        return self._line.each_s if self._loads else self.put_block_s()

    def _probe_every_s(self) -> float:
        took_s, share, put_s = self._probe_took_s, PROBE_SHARE, self.put_block_s()
        if self._is_far_from_paying(put_s) and not self.pays:
            took_s, share = max(took_s, put_s), PROBE_SHARE * BESIDE_SLOW_PUTS
        return max(PROBE_S, took_s / share)
