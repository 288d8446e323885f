"""Which batch is still on the device, under asynchronous scheduling.

The host prepares batch k+1 while batch k runs.  A sequence that ended in batch k-1 is still part of
batch k and writes one more position into blocks the scheduler may already have given to batch k+1.
So a reload for batch k+1 must not begin before batch k has left the device.

Step thread: ``launch``, ``wait``, ``reset``; a transfer thread may wait, too.  Forward thread: ``meet`` when it
starts sampling a batch, ``land`` once that batch's tokens are known, which is after its last write.  With tokens
that stay on the device ``land`` carries an event.  A batch the host gave up on never lands; the next one stands
for it.  When the device fails, or the host pauses for its repair, there is no next one: the host's plugin manager
knows, and is asked while somebody waits.
"""

from __future__ import annotations

import threading
import time
from typing import Any

POLL_S = 0.02
"""How often the host is asked: short beside a step of a large model, and only while a batch is waited for."""


class InFlight:
    """Tickets of launched and landed batches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._launched = 0
        self._landed = 0
        self._event: Any | None = None
        self._tickets: dict[int, int] = {}  # id of a batch's metadata -> ticket
        self._current = 0  # ticket of the batch on the forward thread
        self._plugin_manager: Any | None = None

    def follow(self, plugin_manager: Any) -> None:
        """Ask the host's plugin manager whether batches have failed."""
        self._plugin_manager = plugin_manager

    def is_broken(self) -> bool:
        """Whether the host knows that what is in flight will not land: the device has failed, or is repaired."""
        plugin_manager = self._plugin_manager
        return plugin_manager is not None and bool(
            plugin_manager.error_code_collected_in_async is not None or plugin_manager.is_inference_pause
        )

    def launch(self, batch: object) -> None:
        """The step thread is done preparing ``batch``."""
        with self._changed:
            self._launched += 1
            self._tickets[id(batch)] = self._launched

    def meet(self, batch: object) -> None:
        """The forward thread works on ``batch`` now."""
        with self._changed:
            self._current = self._tickets.pop(id(batch), self._current)
            self._tickets = {key: ticket for key, ticket in self._tickets.items() if ticket > self._current}

    def land(self, event: Any | None) -> None:
        """The batch on the forward thread has written everything, or will have when ``event`` is reached."""
        with self._changed:
            self._landed = max(self._landed, self._current)
            self._event = event
            self._changed.notify_all()

    def reset(self) -> None:
        """Nothing is on the device any more, whatever became of the batches that were (recovery)."""
        with self._changed:
            self._landed = self._current = self._launched
            self._event = None
            self._tickets.clear()
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until every batch launched so far has left the device; False when they did not in time, or will not."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            last = self._launched
            while not (landed := self._landed >= last) and not self.is_broken():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, POLL_S))
            event = self._event
        if landed and event is not None:
            event.synchronize()
        return landed
