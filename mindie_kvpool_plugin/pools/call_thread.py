"""One thread that runs calls for others.

Its callers wait for an answer only so long: a binding's call cannot be interrupted, but run here it may
take as long as it likes while its caller goes on without it.  One call at a time, in order.  The thread
starts with the first call and ends with ``close``.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from mindie_kvpool_plugin.pools.attempt import Failed, attempt

Answer = TypeVar("Answer")


class Job(Generic[Answer]):
    """A call that was handed in."""

    def __init__(self, run: Callable[[], Answer]) -> None:
        self._run = run
        self._outcome: Answer | Failed | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self, budget_s: float | None = None) -> Answer | None:
        """What the call returned, or None when it did not within the budget; it runs to its end regardless.

        Raises:
            Exception: the call's.
        """
        if not self._done.acquire(timeout=-1 if budget_s is None else budget_s):
            return None
        if isinstance(self._outcome, Failed):
            raise self._outcome.error
        return self._outcome

    def run(self) -> None:
        """Make the call."""
        try:
            self._outcome = attempt(self._run)
        finally:
            self._done.release()


class CallThread:
    """Runs calls, one at a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, run: Callable[[], Answer]) -> Job[Answer]:
        """Hand a call in.

        Raises:
            RuntimeError: no thread can be started.
        """
        job = Job(run)
        with self._turn:
            if self._thread is None:
                thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.put(job)  # type: ignore[arg-type]
        return job

    def close(self) -> None:
        """End the thread after the call it runs; not waited for."""
        with self._turn:
            self._thread = None
            self._jobs.put(None)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
