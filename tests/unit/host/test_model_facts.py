"""Which ranks share bytes, and what makes two deployments different."""

from types import SimpleNamespace

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
        "computing": {},
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
        {"computing": {"deepseekv2.eplb.level": 3}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_everything_that_changes_a_blocks_bytes_changes_its_key(change):
    """Each fact alone makes another fingerprint."""
    assert facts(**change) != facts()


def test_a_model_config_that_is_not_there_says_nothing(tmp_path):
    """Every rank is then taken to hold other bytes."""
    assert model_facts.read_model_config(str(tmp_path / "nowhere")) == {}


class Section:
    """A part of the host's configuration as it was merged (configuration_utils.py, SectionConfig)."""

    def __init__(self, options):
        self._options = options

    def to_dict(self):
        return self._options


def computing(positions=None, **models):
    runner = SimpleNamespace(llm_config=SimpleNamespace(models=Section(models)))
    wrapper = SimpleNamespace(model_runner=runner, max_position_embeddings=positions)
    return model_facts.computing_options(wrapper, {"max_position_embeddings": 4096})


@pytest.mark.parametrize(
    "asked",
    [
        {"deepseekv2": {"eplb": {"level": 3, "expert_map_file": ""}}},
        {"qwen_moe": {"eplb": {"level": 3}, "ep_level": 2}},
        {"deepseekv2": {"enable_init_routing_cutoff": True, "topk_scaling_factor": 0.5}},
        {"deepseekv2": {"enable_init_routing_cutoff": True, "topk_scaling_factor": 0.25}},
        {"positions": 8192},
        {"positions": 16384},
    ],
)
def test_options_that_make_the_same_weights_compute_other_numbers_are_told(asked):
    """A service that measures with forced balance, or whose positions are scaled otherwise, has blocks of its own."""
    others = [computing(), computing(4096), computing(deepseekv2={"topk_scaling_factor": 1.0})]
    assert others == [{}] * 3
    told = facts(computing=computing(**asked))
    assert told != facts()
    assert told == facts(computing=computing(**asked))


def test_each_such_option_is_told_apart_from_the_others():
    """Half of the experts' tokens dropped are not a quarter of them."""
    cut = [{"enable_init_routing_cutoff": True, "topk_scaling_factor": share} for share in (0.5, 0.25)]
    half, quarter = (computing(deepseekv2=options) for options in cut)
    assert len({facts(computing=each) for each in (half, quarter, computing(8192), computing(16384))}) == 4


@pytest.mark.parametrize(
    "options",
    [
        {"deepseekv2": {"eplb": {"level": 1, "expert_map_file": "/map.json"}, "ep_level": 2}},
        {"deepseekv2": {"communication_backend": {"prefill": "hccl"}, "mix_shared_routing": True}},
        {"deepseekv2": {"enable_init_routing_cutoff": False, "topk_scaling_factor": 0.5}},
        {"qwen2": None},
    ],
)
def test_what_says_where_is_computed_parts_no_nodes(options):
    """A prefill and a decode node differ in it, and each finds what the other one stored."""
    assert facts(computing=computing(**options)) == facts()


@pytest.mark.parametrize("wrapper", [SimpleNamespace(), SimpleNamespace(model_runner=SimpleNamespace(llm_config=None))])
def test_a_wrapper_without_such_a_configuration_was_told_nothing(wrapper):
    """Not every one has it."""
    assert model_facts.computing_options(wrapper, {}) == {}
