"""How many slices may be on their way to other processes at once, over all threads of this one.

Mooncake's TCP transport keeps a bounded queue per peer; a process that overruns it, with one call or
with several threads together, loses that peer for good (``wedge``).  So every transfer
passes this gate first.  Waiters are served in the order they came: no thread starves.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class SliceGate:
    """Counts slices in flight.

    Attributes:
        limit: slices that may be in flight; a call with more goes alone.
        in_flight: slices in flight now.
        peak: most that ever were.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_flight = 0
        self.peak = 0
        self._turns: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def passing(self, slices: int, timeout_s: float) -> Iterator[bool]:
        """Hold ``slices`` for the duration of the block; False if there was no room within the time."""
        granted = self._enter(slices, timeout_s)
        try:
            yield granted
        finally:
            if granted:
                with self._changed:
                    self.in_flight -= slices
                    self._changed.notify_all()

    def _enter(self, slices: int, timeout_s: float) -> bool:
        turn = object()
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._turns.append(turn)
            while self._turns[0] is not turn or not self._has_room(slices):
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    self._turns.remove(turn)
                    self._changed.notify_all()
                    return False
            self._turns.popleft()
            self.in_flight += slices
            self.peak = max(self.peak, self.in_flight)
            self._changed.notify_all()
            return True

    def _has_room(self, slices: int) -> bool:
        return self.in_flight == 0 or self.in_flight + slices <= self.limit
