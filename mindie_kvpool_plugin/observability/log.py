"""One logger for the package: plain lines on standard error, beside the host's own log.

``MINDIE_KVPOOL_LOG_LEVEL`` (DEBUG, INFO, WARNING, ERROR) sets what is shown; INFO if unset.
"""

from __future__ import annotations

import logging
import os
import threading
import time

LEVEL_VARIABLE = "MINDIE_KVPOOL_LOG_LEVEL"

logger = logging.getLogger("mindie_kvpool")
if not logger.handlers:
    _handler = logging.StreamHandler()
    _handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s [mindie-kvpool %(process)d] %(message)s"))
    logger.addHandler(_handler)
    logger.propagate = False
    _level = os.environ.get(LEVEL_VARIABLE, "INFO").upper()
    logger.setLevel(_level if _level in ("DEBUG", "INFO", "WARNING", "ERROR") else "INFO")


class RateLimited:
    """Lets a message through at most once in ``interval_s``, so that a fault does not flood the log."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._next: dict[str, float] = {}
        self._lock = threading.Lock()

    def warning(self, message: str, *args: object, exc_info: bool | BaseException = False) -> None:
        """Log a warning unless the same message was logged within the interval."""
        now = time.monotonic()
        with self._lock:
            if now < self._next.get(message, 0.0):
                return
            self._next[message] = now + self._interval_s
        logger.warning(message, *args, exc_info=exc_info)
