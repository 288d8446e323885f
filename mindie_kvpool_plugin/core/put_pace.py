"""How fast the pool takes blocks, by its last puts: it tells of those that wait, and of loads that nobody made yet.

The thread that runs spills learns; any other may read.
"""

from __future__ import annotations

import math
from collections import deque

from mindie_kvpool_plugin.observability.cost_line import Line, fit

PUTS = 8
LEAST_PUTS = 3
"""The first one connects, and one may stall: less is no pace."""
JOBS = 8


class PutPace:
    """One rank's.

    Attributes:
        line: seconds of a put and of each of its blocks; zeros: not known.
        share: of the blocks that wait, those which will be put: others are there already, or not admitted.
    """

    def __init__(self) -> None:
        self.line = Line(0.0, 0.0)
        self.share = 1.0
        self._puts: deque[tuple[float, float]] = deque(maxlen=PUTS)
        self._jobs: deque[tuple[int, int]] = deque(maxlen=JOBS)

    def put(self, num_blocks: int, seconds: float) -> None:
        """So many blocks went to the pool in one call."""
        self._puts.append((num_blocks, seconds))
        if len(self._puts) >= LEAST_PUTS:
            self.line = fit(self._puts)

    def job(self, num_waiting: int, num_put: int) -> None:
        """Of so many blocks that waited, these are put."""
        self._jobs.append((num_waiting, num_put))
        self.share = sum(put for _, put in self._jobs) / max(sum(waiting for waiting, _ in self._jobs), 1)

    def block_s(self) -> float:
        """Seconds that one more block takes; 0: not known."""
        return self.line.each_s

    def fits(self, seconds: float) -> float:
        """How many blocks one put moves in that time; without end while that is not known."""
        return (seconds - self.line.call_s) / self.line.each_s if self.line.each_s else math.inf

    def until_s(self, num_blocks: int) -> float:
        """Seconds until so many blocks that wait are through, about; 0: none does, or it is not known."""
        return self.line.call_s + self.line.each_s * self.share * num_blocks if num_blocks else 0.0
