"""Which modes of the host a worker runs in, by the keys of ``support.MODES``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import weights
from mindie_kvpool_plugin.host.eligibility import plugin_words
from mindie_kvpool_plugin.host.model_facts import read_model_config

SETTLES_LATE = {"la": True, "memory_decoding": False, "mtp": False}
"""Speculative plugin -> whether the tokens a step answers have their KV in place one step later only.

``la`` computes a guess that it accepts from another branch than the first again (la/decoding_policy.py); the others
write an accepted token's KV where it stays.
"""

_PLUGINS = frozenset({"splitfuse", *SETTLES_LATE})
_ROLES = {"prefill": "pd_prefill", "decoder": "pd_decode", "flex": "pd_flex"}


def active_modes(backend: Any, infer_context: Any, plugin_config: Mapping[str, Any]) -> set[str]:
    """What the host's objects say when a worker is built.

    Args:
        backend: the host's generator backend.
        infer_context: its context store.
        plugin_config: the keyword arguments of a plugin's construction.

    Raises:
        HostCompatError: nobody said which weights were loaded.
    """
    wrapper, parallel = backend.model_wrapper, infer_context.spcp_parallel_info
    model_config = read_model_config(weights.directory_of(wrapper))
    has_dp = int(wrapper.mapping.attn_dp.group_size) > 1
    has_servers = bool(getattr(backend, "distributed_enable", False))
    found = {
        "tp": int(wrapper.mapping.attn_tp.group_size) > 1,
        "dp": has_dp and not has_servers,
        "dp_servers": has_dp and has_servers,
        "cp": int(parallel.cp_size) > 1,
        "sp": int(parallel.sp_size) > 1,
        "async_scheduling": bool(infer_context.context_params.async_infer),
        "layerwise": bool(plugin_config.get("layerwise_disaggregated", False)),
        "multimodal": bool(getattr(wrapper, "is_multimodal", False)) or support.is_multimodal(model_config),
        "scaled_by_length": support.scales_by_length(
            model_config, int(plugin_config.get("max_seq_len", 0)), getattr(wrapper, "max_position_embeddings", None)
        ),
        "lora": getattr(wrapper, "adapter_manager", None) is not None
        or getattr(getattr(wrapper, "model_runner", None), "lora_adapter", None) is not None,
        "backend_torch": "torch" in str(getattr(backend.backend_type, "value", backend.backend_type)),
    }
    active = {key for key, is_on in found.items() if is_on}
    active |= _PLUGINS.intersection(plugin_words(plugin_config.get("plugin_type")))
    role = _ROLES.get(str(plugin_config.get("model_role", "standard")).lower())
    return active | ({role} if role else set())


def refuse_unsupported(active: Collection[str]) -> None:
    """End the start of a worker whose modes cannot be pooled.

    Raises:
        HostCompatError: names every mode, its reason and the fix.
    """
    refused = support.refusals(active)
    if refused:
        raise HostCompatError("\n".join(refusal() for refusal in refused))


def settles_late(active: Collection[str]) -> bool:
    """Whether of what a step answers only what it began with is certain."""
    return any(SETTLES_LATE.get(key, False) for key in active)
