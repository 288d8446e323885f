"""The stack of guards around a backend: the only place that knows which there are and in which order.

From the inside: a pool that may come late, the breaker, the checksums.  The breaker is outside the late
one, so that a pool which opens badly is left alone like any other; the checksums are outside the breaker,
because damaged bytes are a matter of blocks and no sign of a pool in trouble.
"""

from __future__ import annotations

from collections.abc import Callable

from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.pools.base import PoolBackend, Role
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool
from mindie_kvpool_plugin.pools.guards.checked import CheckedPool, load_hash
from mindie_kvpool_plugin.pools.guards.late import LatePool


def guarded(
    open_pool: Callable[[], PoolBackend], name: str, role: Role, options: KvPoolOptions, counters: Counters
) -> PoolBackend:
    """Open a backend and put its guards around it.

    Args:
        open_pool: opens the backend, now or later.
        name: the backend's, for the log.
        role: a scheduler waits no longer than ``lookup_budget_s`` and reads no bytes; a worker does both.
        options: which guards, and their bounds.
        counters: where they count.

    Raises:
        ConfigError: from ``open_pool``, or ``verify_payload`` lacks its package.
        PoolError: from ``open_pool``, unless the service may run without its pool.
    """
    is_checked = options.verify_payload and role == "worker"
    if is_checked:
        load_hash()  # before a pool is opened that nobody would close
    if options.on_pool_unavailable == "run_without":
        pool: PoolBackend = LatePool(open_pool, name, counters=counters)
    else:
        pool = open_pool()
    policy = BreakerPolicy(
        failures=options.breaker_failures,
        slow_call_s=options.breaker_slow_call_s,
        retry_s=options.breaker_retry_s,
        lookup_budget_s=options.lookup_budget_s if role == "scheduler" else None,
    )
    pool = GuardedPool(pool, name, policy, counters)
    return CheckedPool(pool, counters) if is_checked else pool
