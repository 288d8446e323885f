"""The breaker: trouble is paid for once, then everything is answered at once until the pool works again."""

import threading
import time
from dataclasses import replace

import pytest

from mindie_kvpool_plugin.assemble import open_scheduler_pool, open_worker_pool
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.base import Answers, PoolBackend
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool, State
from tests.conftest import Memory, mooncake_keys, wait_until, write_pool_file

SOON_S = 0.01


class Backend(PoolBackend):
    """Answers as it is told, and counts; a call can be held."""

    def __init__(self):
        self.trouble = None
        self.error = None
        self.answer = True
        self.asked = []
        self.held = threading.Event()
        self.held.set()
        self.entered = threading.Event()

    def _do(self, what, count):
        self.asked.append(what)
        self.entered.set()
        self.held.wait(30)
        if self.error:
            raise self.error
        return Answers([self.answer and not self.trouble] * count, self.trouble)

    def exists(self, keys):
        return self._do("probe" if keys[0].startswith("mindie-kvpool/") else "exists", len(keys))

    def lie_elsewhere(self, keys):
        return self._do("where", len(keys))

    def put(self, keys, buffers, groups=None):
        return self._do("put", len(keys))

    def get(self, keys, buffers):
        return self._do("get", len(keys))

    def register(self, regions):
        pass

    def close(self):
        self.held.set()


@pytest.fixture
def guarded():
    opened = []

    def open_one(**policy):
        counters = Counters()
        patient = {"retry_s": 60.0, "slow_call_s": 60.0}  # on a busy machine, too, nothing is slow by itself
        pool = GuardedPool(Backend(), "scripted", BreakerPolicy(**{**patient, **policy}), counters)
        opened.append(pool)
        return pool, pool.inner, counters

    yield open_one
    for pool in opened:
        pool.close()


MEMORY = Memory(2)
KEYS = ["a", "b"]


def get(pool):
    return pool.get(KEYS, MEMORY.buffers)


def put(pool):
    return pool.put(KEYS, MEMORY.buffers)


def test_a_miss_is_not_a_failure(guarded):
    """However often nothing is there, the pool is asked."""
    pool, backend, counters = guarded(failures=2)
    backend.answer = False
    for _ in range(10):
        assert get(pool) == pool.exists(KEYS) == [False, False]
    assert pool.state is State.CLOSED
    assert counters.breaker_openings == 0


@pytest.mark.parametrize("how", ["reported", "raised", "wrong length"])
def test_opens_after_failed_calls_in_a_row_and_asks_no_more(guarded, monkeypatch, how):
    """Three failures, then every key is answered without touching the backend."""
    pool, backend, counters = guarded(failures=3)
    if how == "reported":
        backend.trouble = "planted"
    elif how == "raised":
        backend.error = RuntimeError("planted")
    else:
        monkeypatch.setattr(backend, "_do", lambda what, count: backend.asked.append(what) or [True])
    assert [get(pool), put(pool), get(pool), put(pool), pool.exists(KEYS)] == [[False, False]] * 5
    assert backend.asked == ["get", "put", "get"]
    assert not pool.is_available
    assert (counters.breaker_openings, counters.refused_keys) == (1, 4)


def out_of_threads(monkeypatch):
    refused = RuntimeError("can't start new thread")
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(refused))


def test_a_lookup_that_finds_no_thread_is_a_failed_call_and_no_more(guarded, monkeypatch):
    """Else it would count as one that never returns, and the pool would be left alone for good."""
    pool, backend, _ = guarded(lookup_budget_s=30.0, failures=3)
    with monkeypatch.context() as patch:
        out_of_threads(patch)
        assert pool.exists(KEYS) == [False, False]
    assert pool.is_available
    assert pool.exists(KEYS) == [True, True]
    assert backend.asked == ["exists"]


@pytest.mark.parametrize("ask", [get, lambda pool: pool.is_available], ids=["call", "question"])
def test_a_breaker_that_finds_no_thread_asks_again_once_there_is_one(guarded, monkeypatch, ask):
    """The call that opens it fails like any other, and whoever comes next sees to it that somebody asks."""
    pool, backend, _ = guarded(failures=1, retry_s=SOON_S)
    backend.trouble = "the service is gone"
    with monkeypatch.context() as patch:
        out_of_threads(patch)
        assert get(pool) == [False, False]
        assert pool.state is State.OPEN
    backend.trouble = None
    ask(pool)
    wait_until(lambda: pool.state is State.HALF_OPEN, 30, "the pool is asked")
    assert get(pool) == [True, True]


def test_where_blocks_lie_is_not_known_of_a_pool_in_trouble(guarded):
    """Not an ordinary no, which would mean its own part; three such questions open it, and it is left alone."""
    pool, backend, counters = guarded(failures=3)
    assert pool.lie_elsewhere(KEYS) == [True, True]
    backend.trouble = "planted"
    assert pool.lie_elsewhere(KEYS) == pool.lie_elsewhere(KEYS) == []
    backend.trouble, backend.error = None, RuntimeError("planted")
    assert pool.lie_elsewhere(KEYS) == pool.lie_elsewhere(KEYS) == []
    assert backend.asked == ["where"] * 4
    assert (counters.breaker_openings, counters.refused_keys) == (1, 2)


def test_a_success_in_between_starts_the_count_anew(guarded):
    """Two failures, one success, two failures: still asked."""
    pool, backend, _ = guarded(failures=3)
    for trouble in ("planted", "planted", None, "planted", "planted"):
        backend.trouble = trouble
        get(pool)
    assert pool.state is State.CLOSED


def test_an_open_pool_asks_nobody(guarded):
    """Ten thousand calls end at the breaker; what each costs is a row of ``bench_lookup``."""
    pool, backend, counters = guarded(failures=1)
    backend.trouble = "planted"
    get(pool)
    for _ in range(10_000):
        assert get(pool) == [False, False]
    assert backend.asked == ["get"]
    assert counters.refused_keys == 20_000


def test_one_slow_call_opens(guarded):
    """It delivered, but nobody wants to wait like that again."""
    pool, _, counters = guarded(slow_call_s=1e-9)
    assert pool.exists(KEYS) == [True, True]
    assert pool.state is State.OPEN
    assert counters.breaker_openings == 1


def test_nothing_is_started_while_a_call_hangs_and_the_call_is_waited_for(guarded):
    """One thread sits in a get that writes into the device; the others are answered no at once."""
    pool, backend, counters = guarded(slow_call_s=SOON_S, retry_s=SOON_S)
    backend.held.clear()
    answers = []
    caller = threading.Thread(target=lambda: answers.append(get(pool)))
    caller.start()
    backend.entered.wait(30)
    wait_until(lambda: not pool.is_available, 30, "the call is overdue")
    assert put(pool) == [False, False]
    assert pool.state is State.OPEN
    assert caller.is_alive()
    assert backend.asked == ["get"], "not even a probe is started"
    backend.held.set()
    caller.join(30)
    assert answers == [[True, True]], "what was begun is waited for"
    # a trial that takes longer than it may, because the machine is busy, is not the last one
    wait_until(lambda: put(pool) == [True, True] and pool.state is State.CLOSED, 60, "the breaker closes")
    assert counters.breaker_openings == 1


def test_probes_run_beside_and_one_trial_decides(guarded):
    """Only a thread of its own asks an open pool; after its answer one call passes, the others do not."""
    pool, backend, _ = guarded(failures=1, retry_s=SOON_S)
    backend.trouble = "planted"
    get(pool)
    wait_until(lambda: backend.asked.count("probe") >= 3, 30, "probes")
    assert backend.asked.count("get") == 1
    backend.trouble = None
    wait_until(lambda: pool.state is State.HALF_OPEN, 30, "a probe is answered")
    backend.held.clear()
    backend.entered.clear()
    trial = threading.Thread(target=get, args=(pool,))
    trial.start()
    backend.entered.wait(30)
    assert put(pool) == [False, False], "one trial at a time"
    backend.held.set()
    trial.join(30)
    assert pool.state is State.CLOSED
    assert put(pool) == [True, True]


def test_a_trial_that_fails_waits_twice_as_long(guarded):
    """The master answers probes but transfers fail: the price of trying falls."""
    pool, backend, counters = guarded(failures=1, retry_s=SOON_S)
    backend.trouble = "planted"
    get(pool)
    for trial in range(3):
        backend.trouble = None
        wait_until(lambda: pool.state is State.HALF_OPEN, 30, "a probe is answered")
        backend.trouble = "planted"
        get(pool)
        assert pool._retry_s == SOON_S * 2 ** (trial + 1)
    assert counters.breaker_openings == 1, "it was never well in between"


def test_a_lookup_past_its_budget_is_no_and_runs_on_elsewhere(guarded):
    """The scheduler goes on after its budget; nobody asks again before the late answer is there."""
    pool, backend, counters = guarded(lookup_budget_s=SOON_S)
    backend.held.clear()
    assert pool.exists(KEYS) == [False, False]
    assert backend.entered.wait(30)
    wait_until(lambda: not pool.is_available, 30, "the lookup is late")
    for _ in range(100):
        assert pool.exists(KEYS) == [False, False]
    assert backend.asked == ["exists"], "no call waits for another budget"
    pool._policy = replace(pool._policy, lookup_budget_s=60.0)  # no other one is late
    backend.held.set()
    wait_until(lambda: pool.exists(KEYS) == [True, True], 30, "lookups again")
    assert counters.breaker_openings == 0, "one late answer is no outage"


def test_late_lookups_in_a_row_open(guarded):
    """Each was answered no after its budget."""
    pool, backend, counters = guarded(failures=2, lookup_budget_s=SOON_S)
    for lookup in (1, 2):
        backend.held.clear()
        assert pool.exists(KEYS) == [False, False]
        wait_until(lambda: not pool.is_available, 30, "the lookup is late")
        backend.held.set()
        wait_until(lambda: not pool._running, 30, "it has returned")
        assert counters.breaker_openings == lookup - 1
    assert pool.state is State.OPEN


def test_state_changes_are_one_log_line_each_way(guarded, caplog):
    """Backend, reason and seconds; nothing per call."""
    pool, backend, _ = guarded(failures=2, retry_s=SOON_S)
    from mindie_kvpool_plugin.observability.log import logger

    logger.addHandler(caplog.handler)
    try:
        backend.trouble = "the master does not answer"
        for _ in range(50):
            get(pool)
        backend.trouble = None
        wait_until(lambda: get(pool) == [True, True], 30, "it works again")
    finally:
        logger.removeHandler(caplog.handler)
    first, last = [record.getMessage() for record in caplog.records]
    assert "scripted: 2 calls in a row failed, the last one get: the master does not answer" in first
    assert "scripted: works again after" in last


def test_close_ends_probes_and_refuses(guarded):
    """No thread stays."""
    pool, backend, _ = guarded(failures=1, retry_s=3600.0)
    backend.trouble = "planted"
    get(pool)
    prober = pool._prober
    pool.close()
    prober.join(30)
    assert not prober.is_alive()
    assert get(pool) == [False, False]


def test_a_killed_master_costs_one_call_and_comes_back_within_10_s(own_master, tmp_path):
    """Worker and scheduler on a real master: paid once, then at once; hits again soon after the restart."""
    keys = mooncake_keys(own_master)
    pool_file = write_pool_file(tmp_path, **keys)
    counters = Counters()
    worker, scheduler = open_worker_pool("mooncake", pool_file, counters), open_scheduler_pool("mooncake", pool_file)
    try:
        memory = Memory(2).fill(1)
        assert worker.put(KEYS, memory.buffers) == [True, True]
        wait_until(lambda: scheduler.exists(KEYS) == [True, True], 60, "an answer within the budget")
        own_master.kill()
        for _ in range(3):
            began = time.monotonic()
            assert scheduler.exists(KEYS) == [False, False]
            assert time.monotonic() - began < 3.0, "its budget of 0.5 s, not the 4.3 s of a dead master"
            if worker.state is State.CLOSED:
                assert worker.get(KEYS, Memory(2).buffers) == [False, False]
        assert worker.state is State.OPEN
        wait_until(lambda: not any(scheduler.exists(KEYS)) and scheduler.state is State.OPEN, 60, "it opens")
        refused = counters.refused_keys
        for _ in range(200):
            assert worker.get(KEYS, memory.buffers) == worker.put(KEYS, memory.buffers) == [False, False]
        assert counters.refused_keys - refused == 800, "none of them met the master"
        own_master.start()

        def hits():
            stored = worker.put(KEYS, memory.buffers) == [True, True]
            return stored and scheduler.exists(KEYS) == [True, True] == worker.get(KEYS, Memory(2).buffers)

        wait_until(hits, 60, "pool hits")
    finally:
        scheduler.close()
        worker.close()
