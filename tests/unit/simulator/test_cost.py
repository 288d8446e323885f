"""Simulated time: it adds up, and everybody who measures by it sees the same."""

import itertools
import math
import threading
import zlib

import numpy as np
import pytest

from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.base import Answers
from mindie_kvpool_plugin.pools.local_dram import LocalDram
from mindie_kvpool_plugin.simulator.cost import CALL_S, LOOKUP_S, PROFILES, Costs
from mindie_kvpool_plugin.simulator.cost_clock import SimulatedTime
from mindie_kvpool_plugin.simulator.cost_link import CostedFence, CostedQueue
from mindie_kvpool_plugin.simulator.cost_pool import ASK_S, DEAD_CALL_S, Costed, CostedPool
from tests.unit.core.parts import ArrayMemory

PROFILE = PROFILES["qwen-7b"]
BLOCK = 16
MEMORY = ArrayMemory()
BLOCK_S = BLOCK * 32 * PROFILE.kv_bytes / 20e9


def _ints(*values):
    return np.array(values, dtype=np.int64)


def _on(name, work):
    """Do it on a thread of this name."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()), name=name)
    thread.start()
    thread.join()
    return found[0]


def _shared(scale=32, **more):
    time = SimulatedTime(Costs(PROFILE, scale), None)
    return time, Costed(time, BLOCK, "dict", lookup_budget_s=0.5, **more)


def _pool(shared, role="worker"):
    return CostedPool(LocalDram(1 << 20), shared, shared.link(0) if role == "worker" else None)


def _blocks(*ids):
    with MEMORY.read(_ints(*ids)) as buffers:
        return buffers


@pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))
def test_profile_loads_faster_than_it_computes_and_fits_its_memory(profile):
    """Else there would be nothing to show; a prompt's tokens cost more the more come before them."""
    first, later = (profile.prefill_s(_ints(begin), _ints(8192)) for begin in (0, 100_000))
    assert 8192 * profile.kv_bytes / 20e9 < first / 4 < later / 4
    assert profile.prefill_s(_ints(0, 0), _ints(100, 100)) == pytest.approx(2 * profile.prefill_s(_ints(0), _ints(100)))
    assert 0.01 < profile.decode_s(_ints(1000)) < profile.decode_s(_ints(*[8000] * 100)) < 1
    assert 131_072 < profile.hbm_tokens < profile.pool_tokens()
    assert profile.pool_tokens(is_every_copy=True) == pytest.approx(
        profile.pool_tokens() * profile.shards / profile.ranks, abs=1
    )


def test_computing_in_two_parts_takes_as_long_as_in_one():
    """Attention to what was computed before is counted."""
    whole = PROFILE.prefill_s(_ints(0), _ints(10_000))
    assert PROFILE.prefill_s(_ints(0), _ints(4_000)) + PROFILE.prefill_s(_ints(4_000), _ints(6_000)) == pytest.approx(
        whole
    )


def test_hook_takes_what_its_thread_computed_without_the_copies():
    """Processor time as it is measured; ``now`` in the hook has it so far; modelled time comes on top."""
    ticks = itertools.count(0.0, 1.0)
    time = SimulatedTime(Costs(PROFILE), lambda: next(ticks)).of(0)
    with time.in_hook():  # 0
        time.spend(10.0)
        assert time.now() == 11.0
        with time.not_counted():  # 2, 3
            pass
    assert time.now() == time.base_s == 13.0  # 4, without the one of the copy


def test_rank_that_waits_has_the_latest_ones_time():
    """At the end of a step."""
    time = SimulatedTime(Costs(PROFILE), None)
    time.of(0).spend(1.0)
    time.of(1).spend(3.0)
    assert time.meet() == time.of(0).now() == 3.0


def test_request_interrupts_decoding_after_the_step_that_runs():
    """The rest is owed and paid before the next decode; nothing is lost."""
    time = SimulatedTime(Costs(PROFILE, 32), None)
    rank, step_s = time.of(0), PROFILE.decode_s(_ints(320))
    time.expect(2.5 * step_s)
    rank.decode(_ints(10))
    assert rank.now() == pytest.approx(3 * step_s)
    assert rank.owed_s == pytest.approx(29 * step_s)
    time.expect(4.5 * step_s)
    time.pay()
    assert rank.now() == pytest.approx(5 * step_s)
    time.expect(math.inf)
    assert time.is_decoding
    time.pay()
    assert (rank.now(), time.is_decoding) == (pytest.approx(32 * step_s), False)
    rank.decode(_ints(10))
    assert (rank.now(), rank.owed_s) == (pytest.approx(64 * step_s), 0.0)


def test_get_holds_its_step_for_call_and_bytes():
    """As many bytes as the profile's blocks have; what is not there is not waited for."""
    time, shared = _shared()
    pool = _pool(shared)
    _on("inference", lambda: pool.put(["a", "b"], _blocks(1, 2)))
    before = time.now_s
    assert before == pytest.approx(CALL_S + 2 * BLOCK_S)
    assert pool.clock() == before
    assert _on("inference", lambda: pool.get(["a", "x", "b"], _blocks(3, 4, 5))) == [True, False, True]
    assert time.now_s - before == pytest.approx(CALL_S + 2 * BLOCK_S)


def test_spill_is_there_when_it_is_through_and_holds_its_blocks_until_then():
    """Nobody waits for the spill thread's put but who overwrites its blocks, and the scheduler finds them later."""
    time, shared = _shared()
    pool, scheduler = _pool(shared), _pool(shared, "scheduler")
    scheduler.inner = pool.inner
    fence = CostedFence(8, shared.link(0))
    fence.close(_ints(1, 2))

    def spill():
        pool.put(["a", "b"], _blocks(1, 2))
        fence.open(_ints(1, 2))

    _on("kvpool-spill", spill)
    assert time.now_s == 0.0
    assert scheduler.exists(["a", "b"]) == [False, False]
    assert time.now_s == LOOKUP_S
    assert fence.is_open(_ints(3, 4))
    assert not fence.is_open(_ints(2, 3))
    assert not fence.wait(_ints(2), 0.0001)
    assert time.now_s == pytest.approx(LOOKUP_S + 0.0001)
    assert fence.wait(_ints(1), None)
    assert time.now_s == pytest.approx(CALL_S + BLOCK_S)
    assert not fence.is_open(_ints(1, 2))
    assert fence.wait(_ints(1, 2), 1.0)
    assert time.now_s == pytest.approx(CALL_S + 2 * BLOCK_S)
    assert scheduler.exists(["a", "b"]) == [True, True]


def test_spill_that_has_not_begun_is_withdrawn_and_the_next_move_up():
    """As from the real queue: the fence opens, the pool never has it, and the time is there for others."""
    time, shared = _shared()
    pool, link, counters = _pool(shared), shared.link(0), Counters()
    fence = CostedFence(8, link)
    queue = CostedQueue(link, shared.withdrawn, print, lambda: None, 10, 1 << 30, counters)

    def spill():
        for names, ids in ((["a", "b", "c"], _ints(1, 2, 3)), (["d"], _ints(4))):
            fence.close(ids)
            pool.put(names, _blocks(*ids.tolist()))
            fence.open(ids)

    _on("kvpool-spill", spill)
    assert link.waiting_blocks == 4
    assert queue.room(0, 96) == 6
    time.reach(CALL_S + 0.5 * BLOCK_S)  # the first one is being read
    assert queue.withdraw(_ints(1, 2)) == 1
    assert fence.is_open(_ints(2))
    assert not fence.is_open(_ints(1))
    time.reach(2 * CALL_S + 3.01 * BLOCK_S)
    assert fence.is_open(_ints(1, 2, 3, 4))
    assert _on("inference", lambda: pool.get(["a", "b", "c", "d"], _blocks(5, 6, 7, 0))) == [True, False, True, True]
    queue.close(1.0)


def test_dead_master_fails_every_call_and_takes_its_time():
    """From the moment on at which it dies."""
    time, shared = _shared(troubles={"killed": 1.0})
    pool, scheduler = _pool(shared), _pool(shared, "scheduler")
    assert _on("inference", lambda: pool.put(["a"], _blocks(1))) == [True]
    time.reach(1.0)
    got = _on("inference", lambda: pool.get(["a"], _blocks(1)))
    assert isinstance(got, Answers)
    assert (list(got), bool(got.trouble)) == ([False], True)
    assert time.now_s == pytest.approx(1.0 + DEAD_CALL_S)
    assert scheduler.exists(["a"]) == [False]
    assert time.now_s == pytest.approx(1.5 + DEAD_CALL_S)


def test_peer_that_hangs_is_asked_by_one_get():
    """The first that meets its blocks waits for an answer; later ones are told no at once."""
    time, shared = _shared(troubles={"frozen": 1.0})
    pool = _pool(shared)
    keys = [key for key in map(str, range(50)) if zlib.crc32(key.encode()) % 2][:2]
    assert _on("inference", lambda: [pool.put([key], _blocks(1)) for key in keys]) == [[True], [True]]
    time.reach(1.0)
    took_s = []
    for key in (keys[0], keys[1], keys[0]):
        began_s = time.now_s
        assert _on("inference", lambda key=key: pool.get([key], _blocks(1))) == [False]
        took_s.append(time.now_s - began_s)
        assert shared.is_hanging()
        time.reach(time.now_s + 6.0)
    assert took_s == pytest.approx([ASK_S + CALL_S, CALL_S, CALL_S])


def test_peer_that_hangs_is_asked_by_a_put_of_the_spill_thread():
    """Puts ask those they know; no step waits."""
    time, shared = _shared(troubles={"frozen": 0.0})
    pool = _pool(shared)
    key = next(key for key in map(str, range(50)) if zlib.crc32(key.encode()) % 2)
    assert _on("kvpool-spill", lambda: pool.put([key], _blocks(1))) == [False]
    assert time.now_s == 0.0
    assert _on("inference", lambda: pool.get([key], _blocks(1))) == [False]
    assert time.now_s == pytest.approx(CALL_S)
