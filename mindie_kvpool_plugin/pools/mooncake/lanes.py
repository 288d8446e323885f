"""Work done on the caller's thread and, if it is free, on a helper thread beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from mindie_kvpool_plugin.pools.call_thread import CallThread

Result = TypeVar("Result")


class Lanes:
    """One or two lanes."""

    def __init__(self, name: str) -> None:
        self._second = CallThread(name)

    def run(self, work: Callable[[], Result], *, both: bool) -> list[Result]:
        """Run ``work``, in both lanes at once if wanted; what each returned.

        A helper that is busy with another call is not waited for, and at the process's limit of threads one lane
        does it all.

        Raises:
            Exception: what ``work`` raised in either lane, after both have ended.
        """
        second = None
        if both:
            with contextlib.suppress(RuntimeError):
                second = self._second.start(work)
        results: list[Result] = []
        try:
            results.append(work())
        finally:
            if second is not None and not second.take_back():
                beside = second.wait()
                if beside is not None:
                    results.append(beside)
        return results

    def close(self) -> None:
        """End the helper thread."""
        self._second.close()
