"""Bytes of a block and shared shards, from a model's config.json."""

import pytest

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.kv_shape import num_shards
from mindie_kvpool_plugin.planning.model_config import read_shape
from mindie_kvpool_plugin.simulator.model_shape import ModelShape

DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "torch_dtype": "bfloat16",
}
QWEN = {
    "model_type": "qwen2",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


def test_deepseek_has_the_same_bytes_on_every_rank():
    """61 layers x 128 tokens x (512 + 64) elements x 2 bytes, whatever tp is; one shard."""
    shape = read_shape(DEEPSEEK, "config.json")
    assert shape.block_bytes(128, 8) == shape.block_bytes(128, 1) == 61 * 128 * 576 * 2
    assert num_shards(DEEPSEEK, 8) == 1


def test_a_draft_layer_is_one_layer_more():
    """However many tokens mtp guesses, as the host counts it."""
    plain, drafting = (read_shape(DEEPSEEK, "config.json", draft_layers=count) for count in (0, 3))
    assert drafting.layers == plain.layers + 1


@pytest.mark.parametrize(("tp", "heads", "shards"), [(4, 2, 4), (8, 1, 8), (16, 1, 8)])
def test_heads_are_spread_over_ranks(tp, heads, shards):
    """8 heads: fewer than ranks are held by groups."""
    shape = read_shape(QWEN, "config.json")
    assert shape.heads_per_rank(tp) == heads
    assert shape.block_bytes(128, tp) == 80 * 128 * heads * 2 * 128 * 2
    assert num_shards(QWEN, tp) == shards


def test_what_cannot_be_told_differs_everywhere():
    """6 heads over 4 ranks, or no number at all."""
    assert num_shards({"num_key_value_heads": 6}, 4) == 4
    assert num_shards({"num_key_value_heads": 3}, 4) == 4
    assert num_shards({}, 4) == 4


def test_nz_pads_to_whole_pieces():
    """A head of 24 elements takes 32, as two pieces of 16."""
    config = {**QWEN, "hidden_size": 24, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
    assert read_shape(config, "c").block_bytes(128, 1) == 128 * 2 * 24 * 2
    assert read_shape(config, "c", is_nz=True).block_bytes(128, 1) == 128 * 2 * 32 * 2


def test_quantised_caches_are_smaller():
    """C8 and FAQuant store int8; FAKQuant the key alone."""
    plain = read_shape(DEEPSEEK, "c").block_bytes(128, 1)
    whole = read_shape({**DEEPSEEK, "quantization_config": {"kv_quant_type": "C8"}}, "c").block_bytes(128, 1)
    key = read_shape({**DEEPSEEK, "quantization_config": {"fa_quant_type": "FAKQuant"}}, "c")
    assert whole == plain // 2
    assert key.block_bytes(128, 1) == 61 * 128 * (512 + 64 * 2)
    assert key.is_nz


def test_the_index_of_sparse_attention_counts_with_torch():
    """A third tensor per layer, which only that backend has."""
    config = {**DEEPSEEK, "index_head_dim": 128}
    atb, torch = (read_shape(config, "c", is_torch=is_torch).block_bytes(128, 8) for is_torch in (False, True))
    assert torch - atb == 61 * 128 * 128 * 2


def test_head_dim_counts_for_qwen3_only():
    """Other ATB models divide the hidden size."""
    config = {**QWEN, "head_dim": 64}
    assert read_shape(config, "c").key == 128
    assert read_shape({**config, "model_type": "qwen3"}, "c").key == 64
    assert read_shape(config, "c", is_torch=True).key == 64


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(
    "simulated",
    [ModelShape(), ModelShape(num_kv_heads=2), ModelShape(mla=(32, 16)), ModelShape(nz=True, head_size=16)],
    ids=["heads", "few heads", "latent", "nz"],
)
def test_the_simulated_host_counts_alike(simulated, tp):
    """Its cache is built from tensors, this from a formula."""
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": simulated.num_layers,
        "num_attention_heads": 8,
        "num_key_value_heads": simulated.num_kv_heads,
        "head_dim": simulated.head_size,
        "torch_dtype": simulated.dtype,
    }
    if simulated.mla:
        config |= {"kv_lora_rank": simulated.mla[0], "qk_rope_head_dim": simulated.mla[1]}
    shape = read_shape(config, "config.json", is_nz=simulated.nz)
    assert shape.block_bytes(16, tp) == simulated.block_bytes(16, tp)
    assert num_shards(config, tp) == len({simulated.shard(rank, tp) for rank in range(tp)})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is None, expected a whole number of at least 1"),
        ({"num_hidden_layers": "61"}, "num_hidden_layers is '61'"),
        ({"qk_rope_head_dim": 0}, "qk_rope_head_dim is 0"),
        ({"torch_dtype": "fp8"}, "torch_dtype is 'fp8', expected one of float16"),
    ],
)
def test_a_wrong_number_is_named_with_its_file(change, named):
    """Place, value seen, value expected."""
    with pytest.raises(ConfigError, match=r"weights/config\.json: ") as caught:
        read_shape({**DEEPSEEK, **change}, "weights/config.json")
    assert named in str(caught.value)
