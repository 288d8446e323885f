"""Ranks whose agreement failed meet again, on a thread of their own, while their prompts are computed.

As a rule one of them was only late: stopped for a while, or stuck in a step.  Each waits until all others have failed
and are here too; then they open another group.  All are asked the same questions in the same order, since they run the
same batches, and each counts them.  So they need only name a question that none of them has reached, and begin with it
together: the latest that any has reached and some more.  Each says whether it is still before it, and only if all are
does it count.

A rank that has not heard the others' word when it comes to that question is a late rank like any other: the others give
the hit up, and all of them the group.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from mindie_kvpool_plugin.host import gloo
from mindie_kvpool_plugin.observability.log import logger

POLL_S = 1.0
"""How often a rank looks whether the others are here: a file, or one question to rank 0."""

AHEAD = (16, 256)
"""Questions between the latest and the first one, by attempt; ranks hear each other within milliseconds."""

WaitFor = Callable[[Callable[[], bool]], bool]
"""Waits until something is so; False: it is waited for no more."""


class Offer:
    """A group, and the question with which all ranks begin to use it.

    Args:
        first: number of that question.
        group: Gloo's.
    """

    def __init__(self, first: int, group: Any) -> None:
        self.first = first
        self.group = group
        self._counts = False
        self._is_settled = threading.Event()

    def settle(self, counts: bool) -> None:
        """Say whether all ranks are before that question."""
        self._counts = counts
        self._is_settled.set()

    def counts(self, timeout_s: float) -> bool:
        """Whether they are; the other ranks' word is waited for."""
        return self._is_settled.wait(timeout_s) and self._counts


class MeetingAgain:
    """One rank's part; begins at once.

    Args:
        open_group: opens the other group once all ranks are there, for which it is given how to wait; None: too late.
        asked: number of the last question.
        timeout_s: how long another rank may take, once all are here.
        pause_s: what passes before.
    """

    def __init__(
        self, open_group: Callable[[WaitFor], Any | None], asked: int, timeout_s: float, pause_s: float
    ) -> None:
        self._open_group = open_group
        self._asked = asked
        self._timeout = timedelta(seconds=timeout_s)
        self._pause_s = pause_s
        self._offer: Offer | None = None
        self._lock = threading.Lock()  # ``_asked`` and ``_offer``
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvpool-meet-again", daemon=True)
        atexit.register(self.close)
        self._thread.start()

    def group_from(self, number: int, timeout_s: float) -> Any | None:
        """The group, if this is the question with which all ranks begin to use it.  Step thread.

        Args:
            number: of the question.
            timeout_s: longest wait for the other ranks' word, which has been there for long as a rule.
        """
        with self._lock:
            self._asked = number
            offer = self._offer
        return offer.group if offer is not None and offer.first == number and offer.counts(timeout_s) else None

    def close(self) -> None:
        """Look for nobody any more.

        A thread that comes back from C++ into an interpreter that has ended takes the process down with SIGABRT.
        """
        self._is_over.set()
        self._thread.join(POLL_S)

    def _run(self) -> None:
        try:
            group = None if self._is_over.wait(self._pause_s) else self._open_group(self._wait_for)
            if group is not None:
                first = self._find_first(group)
                logger.warning("all ranks are here again; they agree on pool hits from question %d on", first)
        except (RuntimeError, ValueError, OSError) as error:
            logger.error("ranks could not meet again (%s); pool hits are off until the service restarts", error)
        finally:
            atexit.unregister(self.close)

    def _wait_for(self, is_so: Callable[[], bool]) -> bool:
        while not is_so():
            if self._is_over.wait(POLL_S):
                return False
        return True

    def _find_first(self, group: Any) -> int:
        """Settle with which question all begin."""
        for ahead in AHEAD:
            first = ahead - self._smallest(group, -self._asked)
            offer = Offer(first, group)
            with self._lock:
                is_before = self._asked < first
                if is_before:
                    self._offer = offer
            are_before = False
            try:
                are_before = bool(self._smallest(group, int(is_before)))
            finally:
                offer.settle(are_before)
            if are_before:
                return first
        raise RuntimeError(f"one of them went through {AHEAD[-1]} questions meanwhile")

    def _smallest(self, group: Any, value: int) -> int:
        told = torch.tensor([value], dtype=torch.int64)
        gloo.reduce_to_minimum(group, told, self._timeout).wait(self._timeout)
        return int(told[0])
