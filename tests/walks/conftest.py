"""Engines and runs the walks share."""

import time

import numpy as np
import pytest

from mindie_kvpool_plugin.host import step_view
from mindie_kvpool_plugin.pools.local_dram import LocalDram
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.run import Result, RunConfig, run_with_pool, wrong_answers
from mindie_kvpool_plugin.simulator.traffic import Chat

SHAPES = {
    "gqa": ModelShape(),
    "gqa-fewer-heads-than-ranks": ModelShape(num_kv_heads=2),
    "mla": ModelShape(num_kv_heads=1, mla=(32, 8), dtype="bfloat16"),
    "int8-keys": ModelShape(int8_key_layers=(0,)),
    "sparse": ModelShape(index_head_size=8),
}

MODES = [
    (EngineConfig(tp=tp, async_scheduling=async_scheduling, shape=SHAPES[shape]), f"{shape}-tp{tp}-{how}")
    for how, async_scheduling in (("sync", False), ("async", True))
    for shape, tp in (
        ("gqa", 1),
        ("gqa", 2),
        ("gqa-fewer-heads-than-ranks", 4),
        ("mla", 2),
        ("int8-keys", 1),
        ("sparse", 1),
    )
]
"""Engine configurations with their names."""


def chat(speakers=8, turns=3, seed=0):
    return lambda: Chat(speakers, turns, seed=seed)


def counts(result):
    """What must not differ between two runs of the same."""
    return {name: getattr(result, name) for name in Result.__slots__ if name not in {"hook_seconds", "seconds"}}


def assert_right(result):
    assert (result.corruptions, result.wrong_answers, result.leaked_blocks) == (0, 0, 0)


def assert_recomputed(result):
    """Right though gets failed: what they did not bring was computed, the rest was used."""
    assert_right(result)
    assert result.hook_errors == 0
    assert result.failed_get_blocks > 0
    assert result.recomputed_blocks > 0
    assert result.reloaded_blocks > 0


def assert_right_so_far(engine):
    assert not engine.oracle.events
    assert engine.leaked_blocks == 0
    assert not [request for request in engine.done if wrong_answers(request, engine.config.shape)]


def assert_next_turn_hits(host, prompt):
    """On nodes that have nothing left but the pool, every full block of prompt and answer is found."""
    first = host.submit(prompt, 40)
    host.run()
    host.drop_hbm()
    again = host.submit(prompt + first.answer, 3)
    host.run()
    assert again.hbm_blocks == 0
    assert again.pool_blocks == (len(prompt) + len(first.answer) - 1) // host.config.block_size
    assert_right_so_far(host)


def run_config(engine, traffic, **more):
    return RunConfig(engine, traffic, **more)


def run_with_slow_puts(monkeypatch, config, put_s):
    """With a pool whose puts take that long."""
    put = LocalDram.put

    def slow_put(pool, *args):
        time.sleep(put_s)
        return put(pool, *args)

    with monkeypatch.context() as patch:
        patch.setattr(LocalDram, "put", slow_put)
        return run_with_pool(config)


def run_until_corrupt(monkeypatch, config):
    """Without a guard, and with puts slow enough to be overtaken; a busy machine needs slower ones."""
    for put_s in (0.003, 0.01, 0.05, 0.2):
        result = run_with_slow_puts(monkeypatch, config, put_s)
        if result.corruptions > 0:
            break
    return result


@pytest.fixture
def promises_believed(monkeypatch):
    """Whatever arrived, the host is told that every hit did."""
    lower_hits = step_view.lower_hits

    def believe(metadata, inputs, lengths, *more):
        if metadata.remote_computed_blocks is not None:
            promised = np.asarray(metadata.remote_computed_blocks)
            lengths = promised.sum(axis=1) if promised.ndim > 1 else promised  # dealt out: each rank's share
        lower_hits(metadata, inputs, lengths, *more)

    monkeypatch.setattr(step_view, "lower_hits", believe)
