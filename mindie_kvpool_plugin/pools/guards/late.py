"""A pool that may come later: the service starts without it and takes it up when it can be opened.

Used when ``on_pool_unavailable`` is "run_without".  Until the pool is there every key is answered False,
so the walks run as always: what a scheduler promised is lowered to what the device has, by the same
agreement of all ranks as for any other loss.  A thread tries again after ``FIRST_RETRY_S``, then twice as
late each time: opening a client can stop every Python thread for as long as a silent master is waited for.

Ownership: ``inner`` and ``_regions`` under ``_lock``; a pool is published only after it took the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.pools.attempt import Failed, attempt
from mindie_kvpool_plugin.pools.base import PoolBackend, PoolWrapper

FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 300.0


class NoPool(PoolBackend):
    """Stands in while there is no pool: nothing is there, nothing is stored."""

    is_available = False

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """No."""
        return [False] * len(keys)

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """Nothing stored."""
        return [False] * len(keys)

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Nothing delivered."""
        return [False] * len(keys)

    def register(self, regions: Sequence[Region]) -> None:
        """Nothing to tell."""

    def close(self) -> None:
        """Nothing to let go of."""


NO_POOL = NoPool()


class LatePool(PoolWrapper):
    """Opens a pool now or later.

    Args:
        open_pool: opens it; raises PoolError when it cannot be had now, ConfigError when it never can.
        name: for the log.
        first_retry_s: seconds to the second attempt.
        counters: where it is told whether there is a pool.

    Raises:
        ConfigError: from ``open_pool``.
    """

    def __init__(
        self,
        open_pool: Callable[[], PoolBackend],
        name: str,
        first_retry_s: float = FIRST_RETRY_S,
        counters: Counters | None = None,
    ) -> None:
        super().__init__(NO_POOL)
        self._counters = counters or Counters()
        self._open_pool = open_pool
        self._name = name
        self._first_retry_s = first_retry_s
        self._regions: list[Region] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._retrier: threading.Thread | None = None
        try:
            self.inner = open_pool()
        except PoolError as error:
            self._try_later(error)

    def register(self, regions: Sequence[Region]) -> None:
        """Register with the pool, now or when it comes; a pool that refuses is tried again later."""
        with self._lock:
            self._regions.extend(regions)
            inner = self.inner
        try:
            inner.register(regions)
        except PoolError as error:
            self.inner = NO_POOL
            inner.close()
            self._try_later(error)

    def close(self) -> None:
        """Stop trying, and close the pool if it is there."""
        self._closing.set()
        if self._retrier is not None:
            self._retrier.join()
        with self._lock:
            inner, self.inner = self.inner, NO_POOL
        inner.close()

    def _try_later(self, error: PoolError) -> None:
        self._counters.pool_is_open = 0
        logger.error(
            "running without the pool (on_pool_unavailable is run_without), next attempt in %.0f s: %s",
            self._first_retry_s,
            error,
        )
        self._retrier = threading.Thread(target=self._retry, name="kvpool-late", daemon=True)
        self._retrier.start()

    def _retry(self) -> None:
        wait_s = self._first_retry_s
        while not self._closing.wait(wait_s):
            wait_s = min(2 * wait_s, LONGEST_RETRY_S)
            outcome = attempt(lambda: self._take_up(self._open_pool()))
            if not isinstance(outcome, Failed):
                logger.warning("the pool %s is there now and used from here on", self._name)
                return
            logger.warning("still without the pool, next attempt in %.0f s: %s", wait_s, outcome.error)

    def _take_up(self, pool: PoolBackend) -> None:
        done = 0
        try:
            while True:
                with self._lock:
                    new = self._regions[done:]
                    if not new:
                        self.inner = pool
                        self._counters.pool_is_open = 1
                        return
                pool.register(new)
                done += len(new)
        except PoolError:
            pool.close()
            raise
