"""The whole plugin on the stand-in host: less computing, nothing wrong."""

import dataclasses

import pytest

from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, compare, opened_pool, run_with_pool
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE, read_trace
from mindie_kvpool_plugin.simulator.traffic import few_shot, replay
from tests.walks.conftest import MODES, assert_right, assert_right_so_far, chat, counts

PROMPT = list(range(10, 90))


@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
@pytest.mark.parametrize("engine", [mode for mode, _ in MODES], ids=[name for _, name in MODES])
def test_pool_saves_computing_and_changes_no_answer(engine, async_write):
    """Every mode and cache shape, with an HBM too small for the traffic."""
    engine = dataclasses.replace(engine, hbm_blocks=56, async_write=async_write)
    comparison = compare(RunConfig(engine, chat(10, 3)))
    assert_right(comparison.without_pool)
    assert_right(comparison.with_pool)
    assert comparison.with_pool.reloaded_blocks > 0
    assert comparison.with_pool.computed_tokens < comparison.without_pool.computed_tokens


def test_replayed_trace_gains_from_the_pool():
    """The bundled trace in a small HBM: at least a quarter less to compute."""
    recorded = read_trace(BUNDLED_TRACE, 300)
    config = RunConfig(EngineConfig(hbm_blocks=120), lambda: replay(recorded))
    comparison = compare(config)
    assert_right(comparison.with_pool)
    assert comparison.with_pool.computed_tokens < 0.75 * comparison.without_pool.computed_tokens


def test_run_with_a_pool_is_the_same_every_time():
    """Spills before the step returns leave nothing to chance."""
    config = RunConfig(EngineConfig(hbm_blocks=56), chat(seed=5))
    assert counts(run_with_pool(config)) == counts(run_with_pool(config))


def test_smaller_pool_gains_less_and_is_right():
    """What the pool evicts is computed again."""
    config = RunConfig(EngineConfig(hbm_blocks=56), chat(10, 4))
    large, small = run_with_pool(config), run_with_pool(dataclasses.replace(config, pool_blocks=40))
    assert_right(small)
    assert small.pool_hit_tokens < large.pool_hit_tokens


def test_few_shot_prompts_are_right_with_a_pool():
    """Long shared examples leave HBM and come back."""
    config = RunConfig(EngineConfig(hbm_blocks=40), lambda: few_shot(48, examples=6), concurrency=2)
    result = run_with_pool(config)
    assert_right(result)
    assert result.pool_hit_tokens > 0


def test_pool_survives_a_restart_of_the_host():
    """After HBM was lost the pool still has the conversation."""
    config = RunConfig(EngineConfig(), chat())
    with opened_pool(config) as pooled:
        with Engine(pooled) as engine:
            engine.submit(PROMPT, 8)
            engine.run()
        with Engine(pooled) as engine:
            again = engine.submit(PROMPT, 8)
            engine.run()
            assert again.hbm_blocks == 0
            assert again.pool_blocks * engine.config.block_size == len(PROMPT)
            assert_right_so_far(engine)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_aborts_and_dummies_are_right_with_a_pool(async_scheduling):
    """Aborted sequences' blocks may be handed out before the workers hear of it; nothing wrong is stored."""
    config = RunConfig(EngineConfig(hbm_blocks=48, async_scheduling=async_scheduling), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        for first in range(24):
            engine.submit([first % 5 + 3, *PROMPT[: 40 + first]], 12)
        turn = 0
        while engine.step() or not engine.scheduler.idle:
            turn += 1
            if turn % 5 == 0 and engine.scheduler.running:
                engine.abort(engine.scheduler.running[turn % len(engine.scheduler.running)])
            if turn % 7 == 0:
                engine.dummy_step()
        assert any(request.state == "aborted" for request in engine.done)
        assert_right_so_far(engine)


def test_preempted_sequences_are_right_with_a_pool():
    """A preempted sequence leaves its blocks to the pool and may take them back."""
    config = RunConfig(EngineConfig(hbm_blocks=24), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        for first in range(6):
            engine.submit([first + 3, *PROMPT], 60)
        engine.run()
        assert engine.scheduler.preemptions > 0
        assert_right_so_far(engine)
