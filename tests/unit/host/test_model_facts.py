"""Which ranks share bytes, and what makes two deployments different."""

import json

import pytest

from mindie_kvpool_plugin.core.block_keys import fingerprint
from mindie_kvpool_plugin.host import model_facts
from mindie_kvpool_plugin.host.model_facts import find_shard

MLA = {"kv_lora_rank": 512, "num_key_value_heads": 128}
GQA = {"num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("config", "tp", "heads", "shards"),
    [
        (MLA, 8, 1, [0] * 8),
        (GQA, 8, 1, [0, 0, 0, 0, 1, 1, 1, 1]),
        (GQA, 2, 1, [0, 1]),
        ({"num_key_value_heads": 8}, 4, 2, [0, 1, 2, 3]),
        ({"num_key_value_heads": 3}, 4, 1, [0, 1, 2, 3]),
        ({}, 4, 1, [0, 1, 2, 3]),
        ({"num_key_value_heads": "two"}, 4, 1, [0, 1, 2, 3]),
    ],
    ids=["mla", "2 heads on 8", "2 heads on 2", "8 heads on 4", "3 heads on 4", "unknown", "nonsense"],
)
def test_find_shard_groups_ranks_with_the_same_bytes(config, tp, heads, shards):
    """Where the weight directory does not say, every rank is taken to be different."""
    found = [find_shard(config, rank, tp, heads, share=True) for rank in range(tp)]
    assert [shard.index for shard in found] == shards
    assert {shard.count for shard in found} == {len(set(shards))}
    for index in set(shards):
        group = [shard.replica for shard in found if shard.index == index]
        assert [replica.index for replica in group] == list(range(len(group)))
        assert {replica.count for replica in group} == {len(group)}
    assert [shard.replica.writes_alias for shard in found] == [shard.index == 0 for shard in found]


def test_find_shard_keeps_ranks_apart_when_told_to():
    """The option shards = per_rank."""
    assert find_shard(MLA, 3, 8, 1, share=False).name == "3of8"


def facts(directory, **changed):
    values = {
        "model_name": "m",
        "weight_directory": str(directory),
        "block_size": 128,
        "segments": [[128, 1, 64, "torch.float16"]],
        "device_format": "2",
        "shard_count": 1,
    }
    return fingerprint(model_facts.fingerprint_facts(**{**values, **changed}))


def test_fingerprint_tells_weights_of_one_name_apart(tmp_path):
    """Same model name, another config.json or another list of tensors."""
    one, two, three = tmp_path / "1", tmp_path / "2", tmp_path / "3"
    for directory in (one, two, three):
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps({"model_type": "qwen2", "quantize": None}))
    (two / "config.json").write_text(json.dumps({"model_type": "qwen2", "quantize": "w8a8"}))
    (three / "model.safetensors.index.json").write_text("{}")
    assert len({facts(one), facts(two), facts(three)}) == 3
    assert facts(one) == facts(one)


def test_fingerprint_of_equal_weights_does_not_depend_on_their_place(tmp_path):
    """Two machines keep the same model under different paths and share their blocks."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert facts(tmp_path / "a") == facts(tmp_path / "b")


def test_a_missing_weight_directory_is_no_error(tmp_path):
    """Blocks are then told apart by name and layout only."""
    assert facts(tmp_path / "nowhere") == facts(tmp_path / "elsewhere")
    assert model_facts.read_model_config(str(tmp_path / "nowhere")) == {}
    assert model_facts.read_model_config(None) == {}
