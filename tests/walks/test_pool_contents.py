"""What is in the pool after a run, and how far the next prompt gets with it."""

import pytest

from mindie_kvpool_plugin.pools.local_dram import pool_of
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool
from tests.walks.conftest import SHAPES, assert_right_so_far, chat

PROMPT = list(range(10, 90))  # five blocks of 16


def stored(pool_file):
    """Key -> bytes of everything in the pool."""
    pool = pool_of(pool_file)
    return {key: len(pool.value(key)) for key in list(pool.keys())}


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_the_next_turn_hits_the_pool_through_the_end_of_the_answer(async_scheduling):
    """HBM is lost between two turns: all full blocks of prompt and answer come from the pool."""
    config = RunConfig(EngineConfig(async_scheduling=async_scheduling), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        first = engine.submit(PROMPT, 40)
        engine.run()
        engine.drop_hbm()
        history = [*PROMPT, *first.answer]
        second = engine.submit([*history, 7, 8, 9], 8)
        engine.run()
        # of the answer's last token no KV was ever computed
        assert second.pool_blocks == (len(history) - 1) // 16
        assert second.pool_blocks > len(PROMPT) // 16
        assert second.hbm_blocks == 0
        assert_right_so_far(engine)


@pytest.mark.parametrize(
    ("shape", "tp", "shards"),
    [
        (SHAPES["mla"], 4, 1),
        (ModelShape(num_kv_heads=2), 8, 2),
        (ModelShape(num_kv_heads=4), 4, 4),
        (ModelShape(num_kv_heads=8), 2, 2),
    ],
    ids=["mla-tp4", "2-kv-heads-tp8", "4-kv-heads-tp4", "8-kv-heads-tp2"],
)
def test_ranks_with_the_same_bytes_store_them_once(shape, tp, shards):
    """The pool's bytes per block are those of the distinct shards, whatever the number of ranks."""
    config = RunConfig(EngineConfig(shape=shape, tp=tp), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        engine.submit(PROMPT, 40)
        engine.run()
        num_blocks = (len(PROMPT) + 40 - 1) // 16
        data = {key: size for key, size in stored(pooled.pool_file).items() if key.count("/") == 3}
        assert len(data) == num_blocks * shards
        assert sum(data.values()) == num_blocks * shards * shape.block_bytes(16, tp)
        engine.drop_hbm()
        again = engine.submit(PROMPT, 8)
        engine.run()
        assert again.pool_blocks == len(PROMPT) // 16
        assert_right_so_far(engine)


@pytest.mark.parametrize("damage", ["flipped byte", "stale block"])
def test_damage_in_the_pool_is_seen_by_the_oracle(damage):
    """The check behind "0 corruptions" can fail: one byte, or right bytes under the wrong key, and it says so."""
    config = RunConfig(EngineConfig(), chat())
    with opened_pool(config) as pooled:
        with Engine(pooled) as engine:
            engine.submit(PROMPT, 8)
            engine.run()
        pool = pool_of(pooled.pool_file)
        one, two = [pool.value(key) for key in list(pool.keys()) if key.count("/") == 3][:2]
        if damage == "flipped byte":
            one[5] ^= 1
        else:
            one[:], two[:] = bytes(two), bytes(one)
        with Engine(pooled) as engine:
            engine.submit(PROMPT, 8)
            engine.run()
            assert engine.plugin("kv_pool").counters.reloaded_blocks == 5
            assert engine.oracle.corruptions > 0
