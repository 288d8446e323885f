"""Questions to a pool that nobody waits for: they reach the backend beside the breaker.

A breaker judges by the calls it lets through, and opens for all.  A question asked out of curiosity must not count: not
when it fails, and not when it is slow.  While the pool is left alone nothing is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from mindie_kvpool_plugin.pools.attempt import Failed, attempt
from mindie_kvpool_plugin.pools.base import Answers, PoolBackend, PoolWrapper
from mindie_kvpool_plugin.pools.guards.breaker import GuardedPool


class Aside:
    """A guarded pool, as the curious may use it.  Any thread that can wait as long as the backend takes.

    Args:
        pool: with its guards (``guards.stack``).
    """

    def __init__(self, pool: PoolBackend) -> None:
        self._pool = pool
        self._behind = _behind_breaker(pool)

    @property
    def is_available(self) -> bool:
        """Whether a question would reach the backend."""
        return self._pool.is_available

    def exists(self, keys: Sequence[str]) -> list[bool] | None:
        """One bool per key; None while the pool is left alone, and when it did not answer."""
        if not keys or not self.is_available:
            return None
        answers = attempt(lambda: self._behind.exists(keys))
        if isinstance(answers, Failed) or len(answers) != len(keys):
            return None
        return None if isinstance(answers, Answers) and answers.trouble else [bool(answer) for answer in answers]


def _behind_breaker(pool: PoolBackend) -> PoolBackend:
    """What the breaker guards; the pool itself when there is none."""
    inner = pool
    while isinstance(inner, PoolWrapper):
        is_breaker, inner = isinstance(inner, GuardedPool), inner.inner
        if is_breaker:
            return inner
    return pool
