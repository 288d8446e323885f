"""What a worker finds out about its deployment, and which deployments are refused."""

from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import modes
from mindie_kvpool_plugin.support import MODES


def deployment(*, tp=1, dp=1, cp=1, sp=1, distributed=False, is_async=False, multimodal=False, backend="atb", **config):
    group = lambda size: SimpleNamespace(group_size=size, rank=0)  # noqa: E731
    wrapper = SimpleNamespace(mapping=SimpleNamespace(attn_dp=group(dp), attn_tp=group(tp)), is_multimodal=multimodal)
    return (
        SimpleNamespace(model_wrapper=wrapper, distributed_enable=distributed, backend_type=backend),
        SimpleNamespace(
            spcp_parallel_info=SimpleNamespace(cp_size=cp, sp_size=sp),
            context_params=SimpleNamespace(async_infer=is_async),
        ),
        {"plugin_type": "prefix_cache,kv_pool", "model_role": "standard", **config},
    )


def active(**settings):
    return modes.active_modes(*deployment(**settings))


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, set()),
        ({"tp": 8, "dp": 2}, {"tp", "dp"}),
        ({"dp": 2, "distributed": True}, {"dp", "dp_servers"}),
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
        ({"multimodal": True}, r"multimodal models: a block's tokens do not name its images"),
        ({"dp": 2, "distributed": True, "model_role": "prefill"}, r"distributed_enable.*set dp to 1"),
    ],
)
def test_refused_modes_end_the_start_with_reason_and_fix(settings, words):
    """Before any pool is opened."""
    with pytest.raises(HostCompatError, match=words):
        modes.refuse_unsupported(active(**settings))


@pytest.mark.parametrize("settings", [{"dp": 2, "distributed": True}, {"dp": 2, "model_role": "prefill"}, {"tp": 8}])
def test_what_works_starts(settings):
    """Nothing crosses ranks there, or all ranks agree."""
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
