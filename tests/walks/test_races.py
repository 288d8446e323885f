"""Races over a block's life, each run twice: with the guard nothing wrong is read, without it something is.

A guard is taken away by monkeypatching the one place that holds it, so each test also shows that its
traffic reaches the race.  The reload into blocks of a batch in flight is in ``test_oracle_sees_damage``;
puts that fail half way over a batch and chunks that are withdrawn are in ``tests/unit/core/test_spill.py``.
"""

import threading

import numpy as np
import pytest

from mindie_kvpool_plugin.core.block_directory import BlockDirectory, Claim
from mindie_kvpool_plugin.core.reload import Reload
from mindie_kvpool_plugin.core.spill import Spill
from mindie_kvpool_plugin.core.spill_queue import SpillQueue
from mindie_kvpool_plugin.host.in_flight import InFlight
from mindie_kvpool_plugin.pools.local_dram import LocalDram
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool
from tests.unit.core.parts import Rank, ScriptedPool, prompt
from tests.walks.conftest import assert_right, assert_right_so_far, chat

JOIN_S = 30.0
PROMPT = list(range(10, 90))

guarded = pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "naive"])
scheduling = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


class HeldPool(ScriptedPool):
    """Every put waits until it is released."""

    def __init__(self):
        super().__init__()
        self.entered, self.released = threading.Event(), threading.Event()
        self.before_put = lambda: (self.entered.set(), self.released.wait(JOIN_S))


def load_elsewhere(pool, tokens, blocks):
    """Another rank loads the prompt: how many blocks arrived, how many of them are wrong."""
    rank = Rank(pool=pool)
    ids = list(range(4, 4 + blocks))
    length = int(rank.reload.load([rank.hit(tokens, ids, 0, blocks)])[0])
    return length, sum(not rank.is_right(tokens, ids, index) for index in range(length))


@guarded
def test_a_block_is_handed_out_again_while_its_spill_reads(monkeypatch, is_guarded):
    """The step that reuses block 0 waits at the fence; without it other bytes go under the old key."""
    if not is_guarded:
        monkeypatch.setattr(Spill, "wait", lambda self, block_ids: None)
    pool = HeldPool()
    rank, tokens = Rank(pool=pool, queue=100), prompt(100, 1)
    rank.compute(1, tokens, [0])
    rank.free(1, tokens, [0])
    assert pool.entered.wait(JOIN_S)

    def next_step():
        rank.spill.before_write(2, np.array([0]))
        rank.compute(2, prompt(900, 1), [0])

    step = threading.Thread(target=next_step)
    step.start()
    if not is_guarded:
        step.join(JOIN_S)  # it does not wait: the block is overwritten before the pool has read it
    pool.released.set()
    step.join(JOIN_S)
    assert rank.spill.drain(JOIN_S)
    rank.spill.close()
    assert load_elsewhere(pool, tokens, 1) == (1, 0 if is_guarded else 1)


@guarded
def test_the_plugin_is_torn_down_with_spills_queued(monkeypatch, is_guarded):
    """After close nothing reads the cache any more, so what happens to its memory cannot reach the pool."""
    monkeypatch.setattr("mindie_kvpool_plugin.core.spill.DRAIN_TIMEOUT_S", 0.01)
    if not is_guarded:
        monkeypatch.setattr(SpillQueue, "close", lambda self, timeout_s: True)
    pool = HeldPool()
    rank = Rank(pool=pool, queue=100)
    prompts = {1: prompt(100, 2), 2: prompt(300, 2)}
    for sequence_id, tokens in prompts.items():
        blocks = [2 * sequence_id, 2 * sequence_id + 1]
        rank.compute(sequence_id, tokens, blocks)
        rank.free(sequence_id, tokens, blocks)
    assert pool.entered.wait(JOIN_S)
    closing = threading.Thread(target=rank.spill.close)
    closing.start()
    if not is_guarded:
        closing.join(JOIN_S)
        for segment in rank.memory.segments:  # somebody else has the memory now
            segment[:] = 0xEE
    pool.released.set()
    closing.join(JOIN_S)
    assert rank.spill.drain(JOIN_S)
    for segment in rank.memory.segments:
        segment[:] = 0xEE
    loaded = [load_elsewhere(pool, tokens, 2) for tokens in prompts.values()]
    assert sum(wrong for _, wrong in loaded) == (0 if is_guarded else 4)
    if is_guarded:
        assert loaded[0] == (2, 0), "what was being read is stored whole"


def lose(monkeypatch, every):
    """Each n-th get of a key that a lookup found just now fails, as if it had been evicted in between."""
    counts = {"asked": 0, "lost": 0}
    get = LocalDram.get

    def get_some(self, keys, buffers):
        arrived = get(self, keys, buffers)
        for row in range(len(keys)):
            counts["asked"] += 1
            if counts["asked"] % every == 0:
                counts["lost"] += arrived[row]
                arrived[row] = False
                for segment, size in enumerate(buffers.sizes.tolist()):  # its bytes are undefined
                    poison(int(buffers.addresses[row, segment]), size)
        return arrived

    monkeypatch.setattr(LocalDram, "get", get_some)
    return counts


def poison(address, size):
    import ctypes

    ctypes.memset(address, 0xEE, size)


@guarded
@scheduling
@pytest.mark.parametrize("tp", [1, 2])
def test_blocks_are_evicted_between_lookup_and_get(monkeypatch, is_guarded, async_scheduling, tp):
    """A promise is used as far as it was kept, on all ranks; taken at its word it is wrong."""
    counts = lose(monkeypatch, every=5)
    if not is_guarded:
        fetch = Reload._fetch

        def believe(self, hits):
            fetch(self, hits)
            promised = np.array([hit.promised for hit in hits], dtype=np.int64)
            return promised, promised

        monkeypatch.setattr(Reload, "_fetch", believe)
    result = run_with_pool(RunConfig(EngineConfig(hbm_blocks=48, tp=tp, async_scheduling=async_scheduling), chat()))
    assert counts["lost"] > 5
    if is_guarded:
        assert_right(result)
    else:
        assert result.corruptions > 0


@scheduling
def test_two_prompts_of_one_batch_share_a_new_prefix(monkeypatch, async_scheduling):
    """The second hits blocks that the first is about to load, some of which do not come."""
    counts = lose(monkeypatch, every=3)
    config = RunConfig(EngineConfig(async_scheduling=async_scheduling), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        for _ in range(6):
            pair = [engine.submit([*PROMPT, *tail], 6) for tail in ((1, 2), (1, 2), (3,))]
            engine.run()
            assert_right_so_far(engine)
            engine.drop_hbm()
            engine.plugin("kv_pool")._worker.walks.directory.forget()  # or the bytes still on the device would do
        assert pair[0].pool_blocks == 5
        assert pair[1].hbm_blocks + pair[1].pool_blocks >= 5
    assert counts["lost"] > 3


@scheduling
def test_a_prompt_hits_blocks_whose_spill_is_pending(monkeypatch, async_scheduling):
    """The blocks are read by the spill and by the model at once, then freed a second time while it is still pending."""
    entered, released = threading.Event(), threading.Event()
    put = LocalDram.put

    def held_put(self, *args):
        entered.set()
        released.wait(JOIN_S)
        return put(self, *args)

    monkeypatch.setattr(LocalDram, "put", held_put)
    config = RunConfig(EngineConfig(async_write=True, async_scheduling=async_scheduling), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        first = engine.submit(PROMPT, 3)
        engine.run()
        assert entered.wait(JOIN_S)
        for length in (3, 9):
            again = engine.submit([*PROMPT, *first.answer, 5], length)
            engine.run()
            assert again.hbm_blocks == 5
            assert again.pool_blocks == 0
        released.set()
        assert engine.plugin("kv_pool").drain(JOIN_S)
        engine.drop_hbm()
        last = engine.submit(PROMPT, 3)
        engine.run()
        assert last.pool_blocks == 5
        assert_right_so_far(engine)


def claim_everything(self, sequence_id, block_ids, given):
    """What a plugin without a directory would store: every full block of the table it remembers."""
    return Claim(
        block_ids=block_ids,
        written=np.ones(len(block_ids), dtype=np.bool_),
        known=np.zeros(len(block_ids), dtype=np.bool_),
        digests=np.zeros((len(block_ids), 2), dtype=np.uint64),
        pooled=np.zeros(len(block_ids), dtype=np.bool_),
        epochs=self._epochs[block_ids],
    )


def preempted(engine):
    for first in range(8):
        engine.submit([first % 4 + 3, *PROMPT], 60)
    engine.run()
    assert engine.scheduler.preemptions > 0
    for first in range(4):
        engine.drop_hbm()
        engine.submit([first + 3, *PROMPT], 60)
        engine.run()


@guarded
def test_a_preempted_sequence_is_computed_again_elsewhere(monkeypatch, is_guarded):
    """Its old blocks belong to others before the worker hears of it; only what it still owns is stored."""
    if not is_guarded:
        monkeypatch.setattr(BlockDirectory, "claim", claim_everything)
        monkeypatch.setattr(Spill, "_spill_abandoned", lambda self, *where: None)
        monkeypatch.setattr(BlockDirectory, "check_integrity", lambda self: None)
    config = RunConfig(EngineConfig(hbm_blocks=24), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        preempted(engine)
        if is_guarded:
            assert_right_so_far(engine)
        else:
            assert engine.oracle.corruptions > 0


@guarded
def test_a_sequence_is_aborted_while_it_is_computed_or_loaded(monkeypatch, is_guarded):
    """Asynchronous scheduling: the batch is still on the device when the worker hears of the abort."""
    if not is_guarded:
        monkeypatch.setattr(InFlight, "wait", lambda self, timeout_s: True)
    config = RunConfig(EngineConfig(hbm_blocks=64, async_scheduling=True, hold_s=0.02), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        for turn in range(12):
            request = engine.submit([turn % 4 + 3, *PROMPT], 12)
            engine.step()
            engine.abort(request)
            engine.run()
            engine.drop_hbm()
        if is_guarded:
            assert engine.plugin("kv_pool").counters.reloaded_blocks > 0
            assert_right_so_far(engine)
        else:
            assert engine.oracle.corruptions > 0


def test_a_put_that_fails_half_way_announces_only_what_is_there():
    """Two of four blocks are stored; even a promise of all four would deliver just these two."""
    pool, tokens = ScriptedPool(), prompt(100, 4)
    rank = Rank(pool=pool)
    seen = []
    pool.refuse_put = lambda key: key.count("/") == 3 and (seen.append(key) or len(seen) > 2)
    rank.compute(1, tokens, [0, 1, 2, 3])
    rank.free(1, tokens, [0, 1, 2, 3])
    assert len(pool.data_keys()) == len(pool.alias_keys()) == 2
    assert load_elsewhere(pool, tokens, 4) == (2, 0)
