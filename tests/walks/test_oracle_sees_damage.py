"""Damage planted on purpose must be seen: a check that cannot fail checks nothing."""

import pytest

from mindie_kvpool_plugin.host.in_flight import InFlight
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.oracle import reference_answer
from mindie_kvpool_plugin.simulator.run import RunConfig, run_with_pool
from tests.walks.conftest import SHAPES, assert_right, chat

PROMPT = list(range(10, 90))
LONG_HOLD_S = 5.0
SHORT_HOLD_S = 0.02


def test_one_flipped_byte_is_a_corruption_and_a_wrong_answer():
    """One byte of one head of one layer of a cached block, and the next reader's answer is wrong."""
    with Engine(EngineConfig(tp=2)) as engine:
        first = engine.submit(PROMPT, 6)
        engine.step()
        block_id = first.blocks.block_ids[1]
        engine.run()
        key = engine.kv_cache(rank=1)[1][0]
        key.view(-1).view(dtype=_bytes())[block_id * key[0].numel() * key.element_size()] ^= 1
        second = engine.submit(PROMPT, 6)
        engine.run()
        assert engine.oracle.corruptions == 1
        assert "rank 1" in engine.oracle.events[0]
        right = reference_answer(PROMPT, 6, engine.config.shape.vocab_size)
        assert (first.answer == right, second.answer == right) == (True, False)


@pytest.mark.parametrize("shape", SHAPES)
def test_stale_block_is_a_corruption(shape):
    """A block that still holds another prefix's KV is wrong at each of its positions."""
    with Engine(EngineConfig(shape=SHAPES[shape])) as engine:
        first = engine.submit(PROMPT, 2)
        engine.step()
        stale, good = first.blocks.block_ids[0], first.blocks.block_ids[2]
        engine.run()
        for layer in engine.kv_cache():
            for tensor in layer:
                tensor[good] = tensor[stale]
        engine.submit(PROMPT, 2)
        engine.run()
        assert engine.oracle.corruptions == engine.config.block_size


def test_damage_travels_with_the_blocks_of_a_damaged_sequence():
    """What a damaged sequence computes is wrong for others too, once they reuse it."""
    with Engine(EngineConfig()) as engine:
        first = engine.submit(PROMPT, 2)
        engine.step()
        block_id = first.blocks.block_ids[0]
        engine.run()
        engine.kv_cache()[0][0][block_id].zero_()
        engine.submit(PROMPT + list(range(200, 248)), 2)
        engine.run()
        before = engine.oracle.corruptions
        third = engine.submit(PROMPT + list(range(200, 260)), 2)
        engine.run()
        assert engine.oracle.corruptions - before > engine.config.block_size
        assert third.answer != reference_answer(third.prompt, 2, engine.config.shape.vocab_size)


def test_wrong_inputs_are_seen(monkeypatch):
    """A plugin that changes a token id is found out although every KV byte is right."""
    with Engine(EngineConfig()) as engine:
        plugin = engine.plugin("prefix_cache")
        update = plugin.model_inputs_update

        def spoil(model_inputs, *args, **kwargs):
            changed, mask = update(model_inputs, *args, **kwargs)
            changed.input_ids = changed.input_ids + 1
            return changed, mask

        monkeypatch.setattr(plugin, "model_inputs_update", spoil)
        engine.submit(PROMPT, 1)
        engine.run()
        assert engine.oracle.input_errors == 1
        assert "token ids" in engine.oracle.events[0]


def test_reload_that_does_not_wait_for_the_batch_in_flight_is_a_corruption(monkeypatch):
    """Asynchronous scheduling: the batch in flight writes over blocks that were loaded too early."""
    monkeypatch.setattr(InFlight, "wait", lambda self, timeout_s: True)
    engine = EngineConfig(hbm_blocks=40, async_scheduling=True, hold_s=LONG_HOLD_S)
    result = run_with_pool(RunConfig(engine, chat(10, 4)))
    assert result.corruptions > 0
    assert result.wrong_answers > 0


def test_reload_that_waits_for_the_batch_in_flight_is_right():
    """The same traffic with the wait: as many pool hits, and nothing wrong."""
    engine = EngineConfig(hbm_blocks=40, async_scheduling=True, hold_s=SHORT_HOLD_S)
    result = run_with_pool(RunConfig(engine, chat(10, 4)))
    assert_right(result)
    assert result.reloaded_blocks > 0


def _bytes():
    import torch

    return torch.uint8
