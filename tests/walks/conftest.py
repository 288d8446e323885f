"""Engines and runs the walks share."""

from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.run import Result, RunConfig, wrong_answers
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


def run_config(engine, traffic, **more):
    return RunConfig(engine, traffic, **more)
