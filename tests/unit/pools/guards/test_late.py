"""A pool that cannot be opened now is taken up when it can, with all memory that was registered meanwhile."""

import threading

import pytest

from mindie_kvpool_plugin.blocks import Region
from mindie_kvpool_plugin.errors import ConfigError, PoolError
from mindie_kvpool_plugin.pools.guards.late import LatePool
from mindie_kvpool_plugin.pools.local_dram import LocalDram
from tests.conftest import Memory, wait_until

KEYS = ["a", "b"]
REGIONS = [Region(4096, 64), Region(8192, 64)]


class Service:
    """Opens pools once it runs; a pool may refuse memory."""

    def __init__(self):
        self.runs = threading.Event()
        self.refusals = 0
        self.attempts = 0
        self.registered = []

    def open_pool(self):
        self.attempts += 1
        if not self.runs.is_set():
            raise PoolError("no master at 192.0.2.1:50051")
        service = self

        class Pool(LocalDram):
            def register(self, regions):
                if service.refusals:
                    service.refusals -= 1
                    raise PoolError("refused")
                service.registered.append(list(regions))

        return Pool(1 << 20)


@pytest.fixture
def late():
    opened = []

    def open_one(service):
        opened.append(LatePool(service.open_pool, "planted", first_retry_s=0.01))
        return opened[-1]

    yield open_one
    for pool in opened:
        pool.close()


def test_answers_no_until_the_pool_is_there_and_then_works(late):
    """The memory registered before is registered with the pool, once, before anything is moved."""
    service, memory = Service(), Memory(2).fill(1)
    pool = late(service)
    pool.register(REGIONS)
    assert not pool.is_available
    assert pool.put(KEYS, memory.buffers) == pool.get(KEYS, memory.buffers) == pool.exists(KEYS) == [False, False]
    service.runs.set()
    wait_until(lambda: pool.is_available, 30, "the pool is taken up")
    assert service.registered == [REGIONS]
    assert pool.put(KEYS, memory.buffers) == pool.get(KEYS, Memory(2).buffers) == pool.exists(KEYS) == [True, True]


def test_a_pool_that_refuses_the_memory_is_tried_again(late):
    """At start and later."""
    service = Service()
    service.runs.set()
    service.refusals = 2
    pool = late(service)
    pool.register(REGIONS)
    wait_until(lambda: pool.is_available, 30, "the pool is taken up")
    assert service.attempts == 3
    assert service.registered == [REGIONS]


def test_close_ends_the_attempts(late):
    """Also while the next one is far away."""
    service = Service()
    pool = LatePool(service.open_pool, "planted", first_retry_s=3600)
    pool.close()
    assert not pool._retrier.is_alive()


def test_configuration_errors_are_never_run_without():
    """Trying again would not help."""

    def open_pool():
        raise ConfigError("planted")

    with pytest.raises(ConfigError):
        LatePool(open_pool, "planted")
