"""What a worker finds out about its deployment, and which deployments are refused."""

import pytest

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import modes
from mindie_kvpool_plugin.support import MODES
from tests.unit.host.deployment import active


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, set()),
        ({"tp": 8, "dp": 2}, {"tp", "dp"}),
        ({"dp": 2, "distributed": True}, {"dp_servers"}),
        ({"distributed": True}, set()),
        ({"cp": 2, "sp": 8, "tp": 8}, {"cp", "sp", "tp"}),
        ({"is_async": True, "plugin_type": "mtp,prefix_cache,kv_pool"}, {"async_scheduling", "mtp"}),
        ({"plugin_type": "prefix_cache, la,kv_pool"}, {"la"}),
        ({"model_role": "prefill"}, {"pd_prefill"}),
        ({"model_role": "flex"}, {"pd_flex"}),
        ({"layerwise_disaggregated": True}, {"layerwise"}),
        ({"multimodal": True, "backend": "torch"}, {"multimodal", "backend_torch"}),
    ],
)
def test_active_modes_are_what_the_hosts_objects_say(settings, found):
    """By the keys of the support table."""
    assert active(**settings) == found
    assert found <= {mode.key for mode in MODES}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"layerwise_disaggregated": True}, r"layerwise disaggregation .*set layerwiseDisaggregated to false"),
        ({"multimodal": True}, r"multimodal models: for an image MindIE-LLM puts the random name"),
    ],
)
def test_refused_modes_end_the_start_with_reason_and_fix(settings, words):
    """Before any pool is opened."""
    with pytest.raises(HostCompatError, match=words):
        modes.refuse_unsupported(active(**settings))


@pytest.mark.parametrize(
    ("model_config", "is_refused"),
    [
        ('{"model_type": "internvl_chat", "vision_config": {"hidden_size": 8}}', True),
        ('{"model_type": "qwen2_vl"}', True),
        ('{"model_type": "deepseek_v3"}', False),
        ('{"model_type": "qwen3_moe", "vision_config": null}', False),
    ],
)
def test_a_model_that_takes_images_is_known_by_its_weights(model_config, is_refused, tmp_path):
    """The host's own word is false for some of them."""
    (tmp_path / "config.json").write_text(model_config)
    assert ("multimodal" in active(weights=str(tmp_path))) == is_refused


LLAMA3 = '{"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}'


@pytest.mark.parametrize(
    ("model_config", "max_seq_len", "is_refused"),
    [
        ('{"max_position_embeddings": 32768, "rope_scaling": {"rope_type": "dynamic", "factor": 6.0}}', 8192, True),
        (LLAMA3, 131072, False),
        (LLAMA3, 131073, True),
        ('{"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}}', 131072, False),
        ('{"max_position_embeddings": 32768, "rope_scaling": null}', 65536, False),
    ],
    ids=["dynamic", "llama3", "llama3, longer", "yarn", "none"],
)
def test_positions_that_follow_the_longest_sequence_are_known_by_the_weights(
    model_config, max_seq_len, is_refused, tmp_path
):
    """The same tokens' keys differ before and after it."""
    (tmp_path / "config.json").write_text(model_config)
    assert ("scaled_by_length" in active(weights=str(tmp_path), max_seq_len=max_seq_len)) == is_refused


@pytest.mark.parametrize("settings", [{"dp": 2, "distributed": True, "model_role": "prefill"}, {"dp": 2}, {"tp": 8}])
def test_what_works_starts(settings):
    """All ranks agree that have to."""
    modes.refuse_unsupported(active(**settings))


def test_every_refusal_is_named_at_once():
    """Who asks for two refused modes hears of both."""
    with pytest.raises(HostCompatError, match=r"(?s)layerwise.*multimodal"):
        modes.refuse_unsupported(active(multimodal=True, layerwise_disaggregated=True))


@pytest.mark.parametrize(("plugin", "late"), [("la", True), ("mtp", False), ("memory_decoding", False)])
def test_every_speculative_plugin_is_decided_on(plugin, late):
    """Whether the end of an answer may be stored as soon as it ends."""
    assert modes.settles_late(active(plugin_type=f"prefix_cache,{plugin},kv_pool")) is late


def test_no_speculative_plugin_of_the_host_is_forgotten(host_plugins):
    """The host's own list, but for what is no speculation."""
    assert host_plugins - {"prefix_cache", "splitfuse"} == set(modes.SETTLES_LATE)


@pytest.fixture
def host_plugins():
    """Names of the white list (plugin_utils.py) as the stand-in has them; tests/host compares it with the real one."""
    from mindie_kvpool_plugin.simulator import host_modules

    host_modules.install()
    from mindie_llm.text_generator.plugins.plugin_utils import PLUGIN_WHITE_LIST

    return set(PLUGIN_WHITE_LIST) - {"kv_pool"}
