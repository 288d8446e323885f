"""How long lookups may hold the scheduler up: for one a while, for all slow ones a small share of the time.

The scheduler's thread waits for every lookup, and all its sequences with it.  A pool that answers within the lookup
budget but takes most of it never opens the breaker, and would stop the service for as long as prompts keep coming.  So
after a slow lookup the next one waits until as much time as it took was saved up; until then prompts are computed.  One
that is fast ends that.  Answers that come too late are the breaker's.

Scheduler's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from mindie_kvpool_plugin.core.patience import Patience
from mindie_kvpool_plugin.observability.log import RateLimited

SHARE = 1 / 20
"""Of the time: what a pool may cost where it saves nothing."""

SLOW_S = 0.02
"""A healthy lookup takes a tenth of a millisecond to a few of them; a decode step of a model in use takes this long."""


class SlowLookups:
    """One scheduler's.

    Args:
        budget_s: longest wait for an answer, and what may be saved up.
        clock: seconds, monotonic.
    """

    def __init__(self, budget_s: float, clock: Callable[[], float]) -> None:
        self._budget_s = budget_s
        self._clock = clock
        self._patience = Patience(budget_s, clock, SHARE)
        self._needed_s = 0.0
        self._log = RateLimited()

    def may_ask(self) -> bool:
        """Whether the scheduler can afford a lookup that takes as long as the last one."""
        return not self._needed_s or self._needed_s <= self._patience.left_s()

    def watch(self, ask: Callable[[], int]) -> int:
        """Look something up, and learn from how long it takes."""
        began_s = self._clock()
        found = ask()
        seconds = self._clock() - began_s
        if seconds < self._budget_s:
            self._needed_s = seconds if seconds > SLOW_S else 0.0
            self._pay(self._needed_s)
        return found

    def _pay(self, seconds: float) -> None:
        self._patience.spend(min(seconds, self._patience.left_s()))
        if not self.may_ask():
            self._log.warning(
                "a pool lookup took %.2f s; the pool is asked again when that is a %.0fth of the time since",
                seconds,
                1 / SHARE,
            )
