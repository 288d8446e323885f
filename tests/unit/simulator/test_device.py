"""Unit tests of simulator/device.py and simulator/model_shape.py."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from mindie_kvpool_plugin.simulator.device import Device
from mindie_kvpool_plugin.simulator.model_shape import ModelShape, write_weights
from mindie_kvpool_plugin.simulator.oracle import Oracle, Row, Step

NEVER_S = 60.0
PROMPT = np.arange(10, 18, dtype=np.int64)


def _inputs():
    """A prefill of ``PROMPT`` into block 1 of blocks of 8 tokens."""
    return SimpleNamespace(
        input_ids=PROMPT,
        position_ids=np.arange(8, dtype=np.int32),
        slots=np.arange(8, 16, dtype=np.int32),
        block_tables=np.array([[1]], dtype=np.int32),
        context_length=np.array([8], dtype=np.int32),
        is_prefill=True,
    )


def test_asynchronous_device_writes_only_when_the_next_inputs_are_ready():
    """Until then the block keeps its old bytes: a host-side write in between is overtaken."""
    device = Device(ModelShape(), Oracle(64, 1024), block_size=8, asynchronous=True, hold_s=NEVER_S)
    cache = device.allocate_cache(2)
    device.steps.put(Step(0, True, [Row(1, PROMPT)]))
    device.inputs_prepared()
    logits = device.forward(_inputs(), cache)
    assert not cache[0][0].any()
    assert not logits.any()
    device.inputs_prepared()
    device.synchronize()
    assert cache[0][0][1].any()
    assert not cache[0][0][0].any()
    assert logits.sum() == 1
    device.close()


def test_device_without_a_successor_runs_after_the_hold():
    """A host that waits for this batch before it prepares the next one is not blocked for ever."""
    device = Device(ModelShape(), Oracle(64, 1024), block_size=8, asynchronous=True, hold_s=0.001)
    device.steps.put(Step(0, True, [Row(1, PROMPT)]))
    logits = device.forward(_inputs(), device.allocate_cache(2))
    device.synchronize()
    assert logits.sum() == 1
    device.close()


def test_failure_on_the_device_surfaces_where_the_logits_are_needed():
    """A batch the scheduler did not announce like that."""
    device = Device(ModelShape(), Oracle(64, 1024), block_size=8, asynchronous=True, hold_s=0.001)
    device.steps.put(Step(0, True, [Row(1, PROMPT), Row(2, PROMPT)]))
    device.forward(_inputs(), device.allocate_cache(2))
    with pytest.raises(RuntimeError, match="2 sequences were scheduled, the model got 1"):
        device.synchronize()
    device.close()


@pytest.mark.parametrize(
    ("shape", "tp", "shards"),
    [
        (ModelShape(num_kv_heads=4), 2, [0, 1]),
        (ModelShape(num_kv_heads=2), 4, [0, 0, 1, 1]),
        (ModelShape(num_kv_heads=1), 4, [0, 0, 0, 0]),
        (ModelShape(mla=(32, 8)), 2, [0, 0]),
    ],
)
def test_ranks_of_one_shard_hold_identical_bytes(shape, tp, shards):
    """Fewer heads than ranks, and MLA: replicas are equal bit for bit, shards are not."""
    caches = []
    for rank in range(tp):
        device = Device(shape, Oracle(64, 1024), block_size=8, rank=rank, tp=tp)
        cache = device.allocate_cache(2)
        device.steps.put(Step(0, True, [Row(1, PROMPT)]))
        device.forward(_inputs(), cache)
        caches.append(cache[0][0].numpy().tobytes())
    assert [shape.shard(rank, tp) for rank in range(tp)] == shards
    assert [[caches[a] == caches[b] for b in range(tp)] for a in range(tp)] == [
        [a == b for b in shards] for a in shards
    ]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (ModelShape(num_kv_heads=2), {"model_type": "simulated", "num_key_value_heads": 2, "num_attention_heads": 8}),
        (ModelShape(mla=(32, 8)), {"model_type": "simulated_mla", "kv_lora_rank": 32, "qk_rope_head_dim": 8}),
    ],
)
def test_weight_directory_says_how_heads_are_spread(tmp_path, shape, expected):
    """What a plugin may conclude replication from."""
    write_weights(shape, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert expected.items() <= config.items()


def test_block_bytes_count_every_segment():
    """An int8 key tensor is half as wide, a third tensor adds to it."""
    plain = ModelShape(num_layers=1, num_kv_heads=4, head_size=8)
    assert plain.block_bytes(16, tp=1) == 16 * 2 * 4 * 8 * 2
    assert ModelShape(1, 4, 8, int8_key_layers=(0,)).block_bytes(16, tp=2) == 16 * 2 * 8 * (1 + 2)
    assert ModelShape(1, 4, 8, index_head_size=8).block_bytes(16, tp=1) == 16 * (2 * 4 * 8 * 2 + 8 * 2)
