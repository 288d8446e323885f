"""Every metric is moved by what it is about: on the simulated host, on the walks alone, and on the guards."""

import threading
from dataclasses import fields

import numpy as np
import pytest

from mindie_kvpool_plugin.core.held_up import HeldUp
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup
from mindie_kvpool_plugin.observability.counters import OPEN, Counters, Histogram
from mindie_kvpool_plugin.pools.base import Answers
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool
from mindie_kvpool_plugin.pools.guards.checked import CheckedPool
from mindie_kvpool_plugin.pools.guards.late import LatePool
from mindie_kvpool_plugin.pools.local_dram import LocalDram
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, drive, opened_pool
from tests.conftest import Memory
from tests.unit.core.parts import Rank, ScriptedPool, prompt
from tests.unit.core.test_load_gate import Node, PartedPool
from tests.unit.pools.guards.test_checked import KEYS, Damaging
from tests.walks.conftest import chat

WAIT_S = 30.0
TOKENS = prompt(100, 3)


def a_service():
    """Chats on a simulated host whose HBM is small; beams at the end."""
    config = EngineConfig(block_size=16, hbm_blocks=40, async_write=True)
    with opened_pool(RunConfig(config, chat())) as pooled, Engine(pooled) as engine:
        drive(engine, chat(turns=6)(), concurrency=4)
        engine.on_end = lambda request: None
        engine.submit(list(range(10, 74)), 4, n=2, beams=True)
        engine.run()
        plugin = engine.plugin("kv_pool")
        assert plugin.drain(WAIT_S)
        return plugin.counters


def a_host_that_stumbles():
    """Something unexpected in a hook, before the ranks agreed."""
    config = RunConfig(EngineConfig(hbm_blocks=40), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        plugin = engine.plugin("kv_pool")
        drive(engine, chat(turns=2)(), concurrency=4)
        engine.drop_hbm()
        plugin._worker.walks.prefill._reload._get = None
        drive(engine, chat(turns=2)(), concurrency=4)
        return plugin.counters


def an_unknown_adapter():
    """A prompt whose LoRA adapter is not known, in the middle of its life."""
    from types import SimpleNamespace

    config = RunConfig(EngineConfig(), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        engine.workers[0].generator.model_wrapper.adapter_manager = SimpleNamespace(adapter_info_registry={})
        plugin = engine.plugin("kv_pool")
        engine.submit(list(range(10, 90)), 8, "poet")
        engine.step()
        plugin._worker.sequences.clear()  # as after a repair of the device
        engine.run()
        return plugin.counters


def spilled(**about):
    rank = Rank(**about)
    rank.compute(1, TOKENS, [0, 1, 2])
    rank.free(1, TOKENS, [0, 1, 2])
    return rank


def load(rank):
    rank.directory.forget()
    rank.reload.load([rank.hit(TOKENS, [3, 4, 5], 1, 3)])


def blocks_that_do_not_arrive():
    """Evicted; then another rank's did not."""
    others = []
    rank = spilled(agree=lambda lengths: np.minimum(lengths, others[-1]) if others else lengths)
    for key in rank.pool.data_keys()[2:]:
        rank.pool.remove(key)
    load(rank)
    others.append(1)
    load(rank)
    return rank.counters


def ranks_that_cannot_agree():
    """One of them was late."""
    rank = spilled(agree=np.zeros_like)
    rank.can_agree = False
    load(rank)
    return rank.counters


def a_pool_left_alone(monkeypatch):
    """Neither asked nor given anything."""
    rank = spilled()
    monkeypatch.setattr(type(rank.pool), "is_available", property(lambda pool: False))
    load(rank)
    rank.compute(2, prompt(500, 3), [6, 7, 8])
    rank.free(2, prompt(500, 3), [6, 7, 8])
    return rank.counters


def blocks_that_are_used_for_the_first_time():
    """Where only a second use is worth a write."""
    config = RunConfig(EngineConfig(), chat(), section={"admission": "second_use"})
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        engine.submit(list(range(10, 90)), 8)
        engine.run()
        return engine.plugin("kv_pool").counters


def a_pool_slower_than_computing():
    """Until loading is turned off, and until it is tried again."""
    node = Node(slower=100.0)
    for _ in range(20):
        node.serve()
    return node.counters


def a_pool_slow_elsewhere():
    """So slow that computing is faster."""
    node = Node(slower=40.0, pool=PartedPool)
    for _ in range(8):
        node.serve_lying(*[1] * 64)
    return node.counters


def a_pool_fast_elsewhere():
    """With calls that take some time."""
    node = Node(slower=2.0, pool=PartedPool)
    node.pool.call_s = 0.005
    for count in (2, 64) * 4:
        node.serve_lying(*[1] * count)
    return node.counters


def a_step_without_time():
    """For half of a prompt."""
    node = Node(budget_s=0.02)
    for _ in range(6):
        node.serve()
    return node.counters


def a_step_that_stores_without_time():
    """What the first sequence leaves takes longer than all of it."""
    rank = Rank(held=HeldUp(budget_s=1e-9))
    for sequence_id, blocks in ((1, [0, 1]), (2, [2, 3])):
        rank.compute(sequence_id, prompt(100 * sequence_id, 2), blocks)
        rank.free(sequence_id, prompt(100 * sequence_id, 2), blocks)
    assert (rank.counters.spilled_blocks, rank.counters.dropped_over_budget) == (2, 2)
    return rank.counters


def a_pool_faster_than_computing():
    """For prompts of several sizes."""
    node = Node()
    for count in (1, 64, 64, 1):
        node.serve(count)
    return node.counters


def a_device_that_is_repaired():
    """Closed while blocks are freed and loaded; before that, busy."""
    rank = spilled()
    rank.is_idle = False
    load(rank)
    rank.reload._rank.gate.close()
    load(rank)
    rank.free(1, TOKENS, [0, 1, 2])
    rank.compute(2, TOKENS, [0, 1, 2])
    rank.free(2, TOKENS, [0, 1, 2])
    return rank.counters


def a_pool_that_hangs():
    """The queue fills, a step waits at the fence and takes back what has not begun."""
    reading, go_on = threading.Event(), threading.Event()
    pool = ScriptedPool()
    pool.before_put = lambda: (reading.set(), go_on.wait(WAIT_S))
    rank = Rank(pool=pool, queue=3, fence_timeout_s=0.01)
    for sequence, block in ((7, 1), (8, 2)):
        rank.compute(sequence, prompt(100 * sequence, 1), [block])
        rank.free(sequence, prompt(100 * sequence, 1), [block])
    assert reading.wait(WAIT_S)
    assert (rank.counters.queued_blocks, rank.counters.queued_bytes > 2 * 96) == (2, True)
    rank.compute(9, TOKENS, [3, 4, 5])
    rank.free(9, TOKENS, [3, 4, 5])
    rank.spill.before_write(10, np.array([2]))
    before = rank.counters.queued_blocks, rank.counters.queued_bytes
    go_on.set()
    assert rank.spill.drain(WAIT_S)
    assert (rank.counters.queued_blocks, rank.counters.queued_bytes) == (0, 0)
    rank.counters.queued_blocks, rank.counters.queued_bytes = before
    rank.spill.close()
    return rank.counters


def blocks_in_every_state():
    """Refused, kept, renewed, and of uncertain content."""
    rank = spilled()
    rank.pool.refuse_put = lambda key: True
    rank.compute(2, prompt(500, 3), [6, 7, 8])
    rank.free(2, prompt(500, 3), [6, 7, 8])
    rank.pool.refuse_put = lambda key: False
    rank.free(3, prompt(900, 1), [9])
    load(rank)
    rank.free(4, TOKENS, [3, 4, 5])
    return rank.counters


def renewed_blocks(monkeypatch):
    """Offered again, since nothing proves that the pool still has them."""
    monkeypatch.setattr(ScriptedPool, "put_proof_s", 0.0)
    rank = spilled()
    rank.reload.load([rank.hit(TOKENS, [3, 4, 5], 0, 3)])
    rank.free(4, TOKENS, [3, 4, 5])
    return rank.counters


class Refusing(LocalDram):
    """A backend whose service is gone."""

    def get(self, keys, buffers):
        return Answers([False] * len(keys), "planted", ["-900"] * len(keys))


def a_pool_in_trouble():
    """Its get fails once, which is enough here; then nobody is let through."""
    counters = Counters()
    pool = GuardedPool(Refusing(1 << 20), "gone", BreakerPolicy(failures=1, retry_s=3600.0), counters)
    memory = Memory(2)
    pool.put(["a", "b"], memory.buffers)
    pool.exists(["a"])
    pool.get(["a", "b"], memory.buffers)
    pool.exists(["a", "b", "c"])
    pool.close()
    assert counters.breaker_state == OPEN
    assert counters.refused_keys == 3
    assert counters.pool_failures == {("get", "service"): 1}
    assert counters.pool_errors == {("get", "-900"): 2}
    return counters


def a_damaged_block():
    """With verify_payload."""
    inner, counters = Damaging(), Counters()
    pool = CheckedPool(inner, counters)
    pool.put(KEYS, Memory(8).fill(1).buffers)
    inner.victim = (2, 1)
    pool.get(KEYS, Memory(8).buffers)
    return counters


def a_service_without_its_pool():
    """on_pool_unavailable is run_without."""

    def refuse():
        raise PoolError("not there")

    counters = Counters()
    LatePool(refuse, "absent", first_retry_s=3600.0, counters=counters).close()
    return counters


class Believed(LocalDram):
    answer_proof_s = 3600.0


def a_scheduler():
    """All, some, none, the same again, and an error."""
    pool = Believed(1 << 20)
    counters = Counters()
    lookup = SchedulerLookup(pool, "ns", 32, counters=counters)
    keys = [f"{number}_0_1_model" for number in range(1, 5)]
    pool.put([f"ns/model/{number}" for number in (1, 2)], Memory(2).buffers)
    assert lookup.batch_exist(keys[:2]) == [True, True]
    assert lookup.batch_exist(keys) == [True, True, False, False]
    assert lookup.batch_exist(keys[2:]) == [False, False]
    assert lookup.batch_exist(keys[:2]) == [True, True]
    assert (counters.answered_all, counters.answered_some, counters.answered_none) == (2, 1, 1)
    assert (counters.asked_keys, counters.found_keys, counters.remembered_questions) == (10, 6, 1)
    lookup._pool = None
    lookup.batch_exist(["9_0_1_model"])
    return counters


MOVED_BY = {
    a_service: {
        *("prompts", "promised_blocks", "promised_tokens", "loaded_tokens", "promised_depth", "loaded_depth"),
        *("reloaded_blocks", "reloaded_bytes", "reload_seconds", "saved_seconds", "prefill_token_seconds"),
        *("freed_blocks", "spilled_blocks", "spilled_bytes", "spill_seconds", "get_seconds"),
        *("put_seconds", "unpooled_beams"),
    },
    a_host_that_stumbles: {"hook_errors", "recomputed_error"},
    an_unknown_adapter: {"unpooled_adapter", "unpooled_unseen"},
    blocks_that_do_not_arrive: {"recomputed_not_delivered", "recomputed_other_rank", "failed_get_blocks"},
    ranks_that_cannot_agree: {"recomputed_ranks_disagree", "ranks_agree"},
    a_pool_left_alone: {"recomputed_pool_left_alone", "dropped_pool_left_alone"},
    blocks_that_are_used_for_the_first_time: {"unadmitted_blocks"},
    a_pool_slower_than_computing: {
        *("recomputed_cheaper", "load_is_on", "load_switches", "load_probes", "load_block_seconds"),
        *("compute_block_seconds", "declined_load_seconds", "declined_compute_seconds"),
    },
    a_pool_slow_elsewhere: {"load_elsewhere_is_on"},
    a_pool_fast_elsewhere: {"load_elsewhere_block_seconds", "load_elsewhere_call_seconds"},
    a_step_without_time: {"recomputed_over_budget", "reload_budget_seconds"},
    a_step_that_stores_without_time: {"dropped_over_budget"},
    a_pool_faster_than_computing: {"load_block_seconds", "load_call_seconds", "compute_block_seconds"},
    a_device_that_is_repaired: {"recomputed_device_closed", "recomputed_device_busy", "dropped_device_closed"},
    a_pool_that_hangs: {
        *("dropped_queue_full", "withdrawn_blocks", "fence_waits", "fence_seconds", "queued_blocks", "queued_bytes"),
    },
    blocks_in_every_state: {"failed_put_blocks", "unclaimed_blocks", "kept_blocks"},
    renewed_blocks: {"renewed_blocks"},
    a_pool_in_trouble: {
        *("breaker_state", "breaker_openings", "refused_keys", "pool_failures", "pool_errors", "exists_seconds"),
    },
    a_damaged_block: {"corrupt_blocks"},
    a_service_without_its_pool: {"pool_is_open"},
    a_scheduler: {
        *("answered_all", "answered_some", "answered_none", "remembered_questions", "asked_keys", "found_keys"),
        *("lookup_errors", "lookup_seconds"),
    },
}


def moved(counters):
    """Which counters are not as they begin."""

    def plain(value):
        return value.counts if isinstance(value, Histogram) else value

    fresh = Counters()
    return {f.name for f in fields(Counters) if plain(getattr(counters, f.name)) != plain(getattr(fresh, f.name))}


@pytest.mark.parametrize("scenario", MOVED_BY, ids=lambda scenario: scenario.__name__)
def test_metrics_move_when_what_they_count_happens(scenario, request):
    """Each by the scenario that is about it."""
    wanted = scenario.__code__.co_varnames[: scenario.__code__.co_argcount]
    counters = scenario(*(request.getfixturevalue(name) for name in wanted))
    assert MOVED_BY[scenario] - moved(counters) == set()


def test_every_metric_is_moved_by_a_test():
    """Here; those of a store by its own tests."""
    here = set().union(*MOVED_BY.values())
    assert {field.name for field in fields(Counters) if not field.name.startswith("store_")} == here


def test_what_was_promised_was_loaded_or_computed():
    """In blocks and in tokens, on the simulated host."""
    counters = a_service()
    assert counters.promised_tokens == 16 * counters.promised_blocks
    assert counters.loaded_tokens == 16 * (counters.promised_blocks - counters.recomputed_blocks)
    assert counters.promised_depth.total == counters.promised_blocks
    assert counters.net_seconds == counters.saved_seconds - counters.reload_seconds.total
