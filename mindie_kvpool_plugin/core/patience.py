"""How long steps may wait for spills: for one a while, for all of them a small share of the time.

A spill that has to wait for bandwidth is worth a moment of a step, since what it saves is a later hit.  Where the pool
takes blocks slower than they are needed, every step would wait that moment.  So waiting is paid from what was saved up:
``SHARE`` of the time that passes, and no more than the longest single wait.

Step thread.
"""

from __future__ import annotations

from collections.abc import Callable

SHARE = 1 / 128


class Patience:
    """One rank's.

    Args:
        longest_s: of one wait, and what may be saved up.
        clock: seconds, monotonic.
        share: of the time, what is saved up.
    """

    def __init__(self, longest_s: float, clock: Callable[[], float], share: float = SHARE) -> None:
        self._longest_s = self._left_s = longest_s
        self._share = share
        self._clock = clock
        self._asked_s = clock()

    def left_s(self) -> float:
        """Seconds that a step may wait now."""
        now = self._clock()
        self._left_s = min(self._longest_s, self._left_s + self._share * (now - self._asked_s))
        self._asked_s = now
        return self._left_s

    def spend(self, seconds: float) -> None:
        """A step waited so long."""
        self._left_s = max(0.0, self._left_s - seconds)
