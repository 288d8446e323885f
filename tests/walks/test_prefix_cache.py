"""The stand-in host without us: its own prefix cache must be right, or nothing measured on it means anything."""

import dataclasses

import pytest

from mindie_kvpool_plugin.simulator.block_manager import OutOfBlocksError
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, run_without_pool
from tests.walks.conftest import MODES, assert_right, assert_right_so_far, chat, counts

PROMPT = list(range(10, 90))


@pytest.mark.parametrize("engine", [mode for mode, _ in MODES], ids=[name for _, name in MODES])
def test_prefix_cache_answers_right_and_hits(engine):
    """Every mode and cache shape: hits, no wrong byte, no wrong answer, no lost block."""
    result = run_without_pool(RunConfig(engine, chat()))
    assert_right(result)
    assert result.requests == 24
    assert result.hbm_hit_tokens > 0
    assert result.prompt_tokens == result.hbm_hit_tokens + result.computed_tokens


def test_prefix_cache_recomputes_preempted_sequences():
    """With too few blocks sequences are preempted, prefilled again, and still answered right."""
    config = EngineConfig(hbm_blocks=24)
    with Engine(config) as engine:
        for first in range(3):
            engine.submit([first + 3, *PROMPT], 60)
        engine.run()
        assert engine.scheduler.preemptions > 0
        assert len(engine.done) == 3
        assert_right_so_far(engine)


def test_prefix_cache_recomputes_the_last_block_when_a_hit_covers_the_prompt():
    """A prompt that is all cached still has one block to compute, or there would be no answer."""
    with Engine(EngineConfig()) as engine:
        for _ in range(2):
            engine.submit(PROMPT, 4)
            engine.run()
        assert engine.done[1].hbm_blocks * engine.config.block_size == len(PROMPT)
        assert engine.computed_tokens == len(PROMPT) + engine.config.block_size
        assert_right_so_far(engine)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_aborted_sequences_give_their_blocks_back(async_scheduling):
    """A sequence whose client went away frees its blocks, and the workers hear of it after the next batch."""
    with Engine(EngineConfig(async_scheduling=async_scheduling)) as engine:
        aborted, kept = engine.submit(PROMPT, 30), engine.submit(PROMPT[:40], 30)
        for _ in range(4):
            engine.step()
        engine.abort(aborted)
        engine.run()
        assert aborted.state == "aborted"
        assert len(aborted.answer) < 30
        assert len(kept.answer) == 30
        context = engine.workers[0].generator.infer_context
        assert aborted.sequence_id not in context._batch_context.sequence_context_slot_map
        assert_right_so_far(engine)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_dummy_batches_change_nothing(async_scheduling):
    """A worker without work computes a dummy batch; running sequences do not notice."""
    with Engine(EngineConfig(async_scheduling=async_scheduling)) as engine:
        engine.submit(PROMPT, 12)
        while engine.step():
            engine.dummy_step()
        assert_right_so_far(engine)


def test_adapters_do_not_share_blocks():
    """The same prompt under another LoRA adapter has other KV, and is not a hit."""
    with Engine(EngineConfig()) as engine:
        for adapter in (None, "poet", "lawyer", "poet"):
            engine.submit(PROMPT, 4, adapter)
            engine.run()
        assert [request.hbm_blocks > 0 for request in engine.done] == [False, False, False, True]
        assert_right_so_far(engine)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_run_is_the_same_every_time(async_scheduling):
    """One configuration and one seed: the same counts; another seed: others."""
    config = RunConfig(EngineConfig(hbm_blocks=60, async_scheduling=async_scheduling), chat(seed=3))
    first, second = run_without_pool(config), run_without_pool(config)
    other = run_without_pool(dataclasses.replace(config, make_traffic=chat(seed=4)))
    assert counts(first) == counts(second)
    assert counts(first) != counts(other)


def test_request_that_never_fits_is_refused():
    """A prompt with more blocks than the device has ends the run with a clear error."""
    with Engine(EngineConfig(hbm_blocks=3)) as engine:
        engine.submit(PROMPT, 4)
        with pytest.raises(OutOfBlocksError, match="needs more device blocks"):
            engine.run()
