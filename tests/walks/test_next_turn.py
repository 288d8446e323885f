"""The next turn of a conversation comes before the blocks of the last one are in the pool.

The spill thread is held in its first put.  What the device still has is a hit as ever; what it has given away is
computed again, since the scheduler finds no alias and promises nothing: the blocks that wait, and none beside.
"""

import threading

import pytest

from mindie_kvpool_plugin.pools.local_dram import pool_of
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool
from tests.walks.conftest import assert_right_so_far, chat

JOIN_S = 30.0
PROMPT = list(range(10, 90))
ANSWER = 40
SECTION = {"staging": "on", "breaker_slow_call_s": 2 * JOIN_S}
"""Blocks are copied before the put that is held, so that the next turn may overwrite them."""

scheduling = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


class Conversation:
    """Two turns on one engine."""

    def __init__(self, engine):
        self.engine = engine
        self.first = self._turn(PROMPT, ANSWER)
        self.history = PROMPT + self.first.answer
        self.full_blocks = (len(self.history) - 1) // engine.config.block_size
        # under asynchronous scheduling the host itself finds only prompts on the device
        is_async = engine.config.async_scheduling
        self.on_device = len(PROMPT) // engine.config.block_size if is_async else self.full_blocks

    def next(self):
        return self._turn([*self.history, 5, 6, 7], 3)

    def _turn(self, prompt, max_tokens):
        request = self.engine.submit(prompt, max_tokens)
        self.engine.run()
        return request


@pytest.fixture
def held(monkeypatch):
    """Holds the spill thread in its first put."""
    entered, released = threading.Event(), threading.Event()

    def hold(engine):
        pool = pool_of(engine.config.pool_file)
        put = pool.put

        def held_put(*args):
            entered.set()
            assert released.wait(JOIN_S)
            return put(*args)

        monkeypatch.setattr(pool, "put", held_put)

    yield hold, entered, released
    released.set()


@scheduling
@pytest.mark.parametrize("is_on_device", [True, False], ids=["on-device", "gone"])
def test_a_turn_that_overtakes_the_spill_loses_what_waits_at_most(held, async_scheduling, is_on_device):
    """asyncWrite: what is on the device hits; gone from there, nothing does; once it is stored, everything."""
    hold, entered, released = held
    config = EngineConfig(async_write=True, async_scheduling=async_scheduling, hbm_blocks=64)
    with opened_pool(RunConfig(config, chat(), section=SECTION)) as pooled, Engine(pooled) as engine:
        hold(engine)
        talk = Conversation(engine)
        assert entered.wait(JOIN_S)
        if not is_on_device:
            engine.drop_hbm()
        second = talk.next()
        assert (second.hbm_blocks, second.pool_blocks) == (talk.on_device if is_on_device else 0, 0)
        released.set()
        assert engine.plugin("kv_pool").drain(JOIN_S)
        engine.drop_hbm()
        third = talk.next()
        assert (third.hbm_blocks, third.pool_blocks) == (0, talk.full_blocks)
        assert_right_so_far(engine)


@scheduling
def test_a_turn_cannot_overtake_a_spill_of_the_step(async_scheduling):
    """Without asyncWrite the blocks are in the pool when the answer ends: the next turn hits wherever it looks."""
    config = EngineConfig(async_write=False, async_scheduling=async_scheduling, hbm_blocks=64)
    with opened_pool(RunConfig(config, chat())) as pooled, Engine(pooled) as engine:
        talk = Conversation(engine)
        engine.drop_hbm()
        second = talk.next()
        assert (second.hbm_blocks, second.pool_blocks) == (0, talk.full_blocks)
        assert_right_so_far(engine)
