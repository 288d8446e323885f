"""Which ranks share bytes, and what makes two deployments different."""

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


def facts(**changed):
    values = {
        "model_name": "m",
        "weights": "w",
        "backend_type": "atb",
        "host_version": "3.0.0",
        "block_size": 128,
        "segments": [[128, 1, 64, "torch.float16"]],
        "device_format": "2",
        "shard_count": 1,
    }
    return fingerprint(model_facts.fingerprint_facts(**{**values, **changed}))


@pytest.mark.parametrize(
    "change",
    [
        {"model_name": "n"},
        {"weights": "v"},
        {"backend_type": "torch"},
        {"host_version": "3.1.0"},
        {"block_size": 64},
        {"segments": [[128, 1, 64, "torch.bfloat16"]]},
        {"device_format": "29"},
        {"shard_count": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_that_changes_a_blocks_bytes_changes_its_key(change):
    """Each fact alone makes another fingerprint."""
    assert facts(**change) != facts()


def test_a_model_config_that_is_not_there_says_nothing(tmp_path):
    """Every rank is then taken to hold other bytes."""
    assert model_facts.read_model_config(str(tmp_path / "nowhere")) == {}
