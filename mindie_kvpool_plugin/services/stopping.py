"""The wish to stop: the first signal is a request, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from mindie_kvpool_plugin.services.child import KILLED

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopping:
    """Takes SIGTERM and SIGINT over for the rest of the process.  Main thread only.

    Attributes:
        number: of the first signal; 0 as long as nobody asked.
    """

    def __init__(self) -> None:
        self.number = 0
        self._asked = threading.Event()
        for number in SIGNALS:
            signal.signal(number, self._heard)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first signal; whether it came."""
        return self._asked.wait(timeout_s)

    def _heard(self, number: int, _: FrameType | None) -> None:
        if self.number:
            os._exit(KILLED + number)
        self.number = number
        self._asked.set()
