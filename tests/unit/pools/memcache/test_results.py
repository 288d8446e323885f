"""MemCache's codes and directions become one bool per key, and a pool in trouble is told from one that is full."""

from dataclasses import replace

import numpy as np
import pytest

from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.base import Answers
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool, State
from mindie_kvpool_plugin.pools.memcache import codes
from tests.conftest import CAPACITY_BYTES, Memory
from tests.memcache_standin import G2H, G2L, H2G, L2G, loaded


@pytest.mark.parametrize(
    ("answers", "good", "expected"),
    [
        ([0, 0], 0, None),
        ([codes.NOT_FOUND, codes.WRONG_SIZE], 0, None),
        ([codes.FAILED], 0, None),
        ([codes.BAD_KEY, codes.NOT_OPEN], 0, None),
        ([codes.NO_LINK, codes.NO_LINK], 1, "no connection to the meta service"),
        ([codes.INVALID], 0, "meta service is gone"),
        ([codes.WRONG_DIRECTION], 0, "another kind"),
        ([0, codes.NO_LINK], 0, None),
        ([0, 0], 1, None),
        ([codes.WRONG_LENGTH], 0, "wrong length"),
        ([-4711], 0, "-4711"),
    ],
)
def test_trouble_is_what_says_something_about_the_pool(answers, good, expected):
    """Misses, other sizes and a full pool are ordinary; a service that is gone is not."""
    found = codes.trouble(answers, good)
    assert found is expected if expected is None else expected in (found or "")


def test_keys_of_a_wrong_length_fail_alone(open_memcache):
    """One key that MemCache refuses would fail the whole call; the length counts in bytes."""
    pool, source, target = open_memcache(), Memory(5).fill(1), Memory(5)
    keys = ["x" * 256, "x" * 257, "good", "", "\u00e4" * 129]
    expected = [True, False, True, False, False]
    assert pool.put(keys, source.buffers) == expected
    assert pool.exists(keys) == expected
    assert pool.get(keys, target.buffers) == expected
    assert np.array_equal(target.bytes[[0, 2]], source.bytes[[0, 2]])


def test_host_memory_is_copied_in_the_hosts_directions(open_memcache):
    """3 and 2: what staging buffers and a cache in host memory need."""
    pool, memory = open_memcache(), Memory(2).fill(2)
    pool.register([memory.region])
    assert pool.put(["a", "b"], memory.buffers) == [True] * 2
    assert pool.get(["a", "b"], memory.buffers) == [True] * 2
    assert loaded().calls == [("put", H2G), ("get", G2H)]


def test_device_memory_is_copied_in_the_devices_directions(open_memcache):
    """0 and 1 for regions that are an NPU's, whatever else is registered."""
    pool, device, host = open_memcache(), Memory(2).fill(3), Memory(2).fill(4)
    for memory, is_device in ((host, False), (device, True)):
        pool.register([replace(memory.region, is_device=is_device)])
    loaded().device.append((device.region.address, device.region.address + device.region.size_bytes))
    assert pool.put(["a", "b"], device.buffers) == [True] * 2
    assert pool.put(["c", "d"], host.buffers) == [True] * 2
    assert pool.get(["c", "d"], device.buffers) == [True] * 2
    assert np.array_equal(device.bytes, host.bytes)
    assert loaded().calls == [("put", L2G), ("put", H2G), ("get", G2L)]


def test_memory_of_the_other_kind_is_trouble(open_memcache):
    """What MemCache refuses for its direction fails call by call: the breaker must hear of it."""
    pool, memory = open_memcache(), Memory(1).fill(5)
    loaded().device.append((memory.region.address, memory.region.address + memory.region.size_bytes))
    answers = pool.put(["a"], memory.buffers)
    assert answers == [False]
    assert isinstance(answers, Answers)
    assert "direction" in (answers.trouble or "")


def test_full_pool_is_no_trouble(open_memcache):
    """A block that can never fit is a put that failed, and nothing more."""
    answers = open_memcache().put(["large"], Memory(1, 1, CAPACITY_BYTES + 1).buffers)
    assert (answers, answers.trouble) == ([False], None)


def test_breaker_opens_when_the_meta_service_is_killed(open_memcache, service):
    """All calls answer at once with no, and after three of them the pool is left alone."""
    memory, counters = Memory(1).fill(6), Counters()
    pool = GuardedPool(open_memcache(), "memcache", BreakerPolicy(retry_s=60), counters)
    assert pool.put(["a"], memory.buffers) == [True]
    service.kill()
    assert pool.exists(["a"]) == [False]
    assert pool.put(["b"], memory.buffers) == [False]
    assert pool.state is State.CLOSED
    assert pool.get(["a"], memory.buffers) == [False]
    assert pool.state is State.OPEN
    assert counters.breaker_openings == 1
    pool.close()


def test_closed_pool_calls_nothing(open_memcache):
    """After close the binding is not called any more, and the client is closed once."""
    pool, memory = open_memcache(), Memory(1).fill(7)
    pool.close()
    pool.close()
    assert pool.put(["a"], memory.buffers) == [False]
    assert pool.exists(["a"]) == [False]
    assert loaded().calls == []
    assert loaded().closes == 1


def test_client_lives_until_its_last_pool_closes(open_memcache):
    """MemCache has one client per process: closing one pool must not close the other's."""
    first, second, memory = open_memcache(), open_memcache("scheduler"), Memory(1).fill(8)
    first.put(["a"], memory.buffers)
    first.close()
    assert first.exists(["a"]) == [False]
    assert second.exists(["a"]) == [True]
    assert loaded().closes == 0
    second.close()
    assert loaded().closes == 1
