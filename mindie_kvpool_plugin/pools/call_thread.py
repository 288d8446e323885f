"""One thread that runs calls for others, who wait for an answer only so long.

A binding's call cannot be interrupted.  Run here, it may take as long as it likes, and its caller goes
on without it.  One call at a time, in order.  The thread starts with the first call and ends with
``close``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class _Job(Generic[Answer]):
    def __init__(self, run: Callable[[], Answer]) -> None:
        self.run = run
        self.answer: Answer | None = None
        self.done = threading.Lock()
        self.done.acquire()


class CallThread:
    """Runs calls, one at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, run: Callable[[], Answer], budget_s: float | None) -> Answer | None:
        """What ``run`` returns, or None when it did not within the budget; it runs to its end regardless.

        ``run`` must not raise.
        """
        job = _Job(run)
        with self._turn:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                self._thread.start()
            self._jobs.put(job)  # type: ignore[arg-type]
        if not job.done.acquire(timeout=-1 if budget_s is None else budget_s):
            return None
        return job.answer

    def close(self) -> None:
        """End the thread after the call it runs; not waited for."""
        with self._turn:
            self._thread = None
            self._jobs.put(None)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.answer = job.run()
            finally:
                job.done.release()
