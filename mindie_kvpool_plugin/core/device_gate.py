"""Whether the walks may touch the device's blocks now.

The host closes a device to repair it (recovery: pages are replaced, everything in them is lost).  From then on
nothing of ours may read or write there, and what is under way has to end first.  So every copy between blocks and
pool passes here: one entry per call of the pool, not per block.

Any thread.  Entering never waits; closing waits for those inside, whose calls the pool bounds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class DeviceGate:
    """Open until somebody closes it."""

    def __init__(self) -> None:
        self._is_open = True
        self._inside = self._closed = 0
        self._changed = threading.Condition()

    def is_open(self) -> bool:
        """Whether a copy that began now would be let in."""
        return self._is_open

    def mark(self) -> int | None:
        """Now, for ``stayed_open``; None while the device is closed."""
        with self._changed:
            return self._closed if self._is_open else None

    def stayed_open(self, mark: int | None) -> bool:
        """Whether the device was open at ``mark`` and nobody has closed it since."""
        return mark is not None and mark == self.mark()

    @contextmanager
    def passing(self) -> Iterator[bool]:
        """Whether the caller may touch the device inside the ``with``."""
        with self._changed:
            may_enter = self._is_open
            self._inside += may_enter
        try:
            yield may_enter
        finally:
            with self._changed:
                self._inside -= may_enter
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more, and wait until everybody has left."""
        with self._changed:
            self._is_open = False
            self._closed += 1
            self._changed.wait_for(lambda: self._inside == 0)

    def open(self) -> None:
        """The device may be touched again."""
        with self._changed:
            self._is_open = True
