"""The scheduler's question for 256 blocks at tp 8 to a real master, against the raw client's batch_is_exist."""

import statistics
import time

import numpy as np

from benchmarks import measure, parts, service
from mindie_kvpool_plugin.core.block_keys import alias_keys
from mindie_kvpool_plugin.host.recent_answers import RecentAnswers
from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.base import Answers
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool
from tests.conftest import Memory

BLOCKS, RANKS, FIRST = 256, 8, 32
MODEL = "DeepSeek-R1-W8A8"
ROUNDS, IN_A_ROW = 20, 20


class Question:
    """Host keys with fresh strings for every call, as the host builds them."""

    def __init__(self, hashes):
        self.hashes = hashes

    def keys(self):
        return [f"{value}_{rank}_{RANKS}_{MODEL}" for value in self.hashes for rank in range(RANKS)]

    def aliases(self, count=BLOCKS):
        return alias_keys("default", MODEL, self.hashes[:count])


def rows():
    hashes = np.random.default_rng(0).integers(1 << 60, 1 << 62, BLOCKS).tolist()
    stored, unknown = Question(hashes), Question([value + 1 for value in hashes])
    taken = {}

    def timed(name, call, argument):
        began = time.perf_counter()
        call(argument)
        taken.setdefault(name, []).append(time.perf_counter() - began)

    with service.mooncake(256 << 20, clients=2) as (owner, pool):
        assert all(owner.put(stored.aliases(), Memory(BLOCKS, 1, 16).buffers))
        store, _ = service.raw(pool)

        limited_pool = GuardedPool(pool, "mooncake", BreakerPolicy(lookup_budget_s=0.5), Counters())
        steady, limited, alternating = (
            SchedulerLookup(asked, "default", FIRST) for asked in (pool, limited_pool, pool)
        )

        def ask(name, lookup, question):
            """As if for the first time: nothing is remembered."""
            lookup._recent = RecentAnswers(pool.answer_proof_s, "0_", time.monotonic)
            timed(name, lookup.batch_exist, question.keys())

        waiting = SchedulerLookup(pool, "default", FIRST)
        for _ in range(ROUNDS):
            for _ in range(IN_A_ROW):
                timed("raw", store.batch_is_exist, stored.aliases())
                ask("hits", steady, stored)
                ask("limited hits", limited, stored)
            for _ in range(IN_A_ROW):
                timed("raw first", store.batch_is_exist, unknown.aliases(FIRST))
                ask("miss", steady, unknown)
                ask("limited miss", limited, unknown)
            ask("alternating hits", alternating, stored)
            ask("alternating miss", alternating, unknown)
            timed("raw all ranks", store.batch_is_exist, stored.keys())
            timed("waiting", waiting.batch_exist, stored.keys())
    taken["left alone"] = _left_alone()
    median = {name: statistics.median(values) for name, values in taken.items()}
    return [
        measure.at_most("256 blocks at tp 8, all hit, against 256 keys", median["hits"], median["raw"], 1.3),
        measure.at_most(
            "- the same within lookup_budget_s, on a thread of its own", median["limited hits"], median["raw"], 1.3
        ),
        measure.at_most("first block missing, against 32 keys", median["miss"], median["raw first"], 2),
        measure.at_most(
            "- the same within lookup_budget_s, on a thread of its own", median["limited miss"], median["raw first"], 2
        ),
        measure.at_most("all hit, every other prompt a miss (two calls)", median["alternating hits"], median["raw"], 2),
        measure.at_most("all hit, against asking for all 2,048 keys", median["hits"], median["raw all ranks"], 1.3),
        measure.at_most("a waiting request asked again, against 256 keys", median["waiting"], median["raw"], 1),
        measure.below("get, put and exists of a pool that is left alone", median["left alone"], 100e-6),
    ]


def _left_alone():
    """Seconds of three calls that end at an open breaker."""
    pool = GuardedPool(parts.NoMovePool(), "scripted", BreakerPolicy(failures=1, retry_s=3600.0), Counters())
    pool.inner.get = lambda keys, buffers: Answers([False] * len(keys), "planted")
    buffers, seconds = Memory(2).buffers, []
    assert not any(pool.get(["a", "b"], buffers))
    assert not pool.is_available
    for _ in range(1000):
        began = time.perf_counter()
        pool.get(["a", "b"], buffers)
        pool.put(["a", "b"], buffers)
        pool.exists(["a", "b"])
        seconds.append(time.perf_counter() - began)
    pool.close()
    return seconds


if __name__ == "__main__":
    measure.main("bench_lookup", rows)
