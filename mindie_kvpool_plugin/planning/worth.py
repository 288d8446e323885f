"""Worth it or not: what the pool's hits save, and how fast it must be for them to pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mindie_kvpool_plugin.planning.curve import Point
from mindie_kvpool_plugin.planning.instance import Instance

LEAST_GAIN = 0.02
"""Below two points of a hundred prompt tokens nobody sees the pool in a service's figures."""

PROFILE_TOKENS_PER_S = 6_688 / 2
"""Prefill of DeepSeek-R1 per NPU die: 6,688 tokens/s per Ascend 910C, which has two (arXiv 2506.12708, 4K prompts)."""
PROFILE_PARAMETERS = 35.6e9
"""That DeepSeek-R1 uses for a token, as ``used_parameters`` counts."""

Verdict = Literal["no_gain", "too_slow", "worth", "depends"]


@dataclass(frozen=True, slots=True)
class Worth:
    """The verdict and its figures.

    Attributes:
        verdict: "no_gain": the device alone answers about as much; "too_slow": computing is faster than loading;
            "worth": loading is faster; "depends": nobody said how fast the pool is.
        gain: share of the prompt tokens that the pool answers and the device alone does not.
        prefill_rate: prompt tokens per second of an instance.
        is_assumed: the rate is the profile's, scaled by parameters and ranks, not measured.
        break_even: bytes per second that each rank must load so that loading a block takes as long as computing it.
        rank_rate: bytes per second that a rank was said to load; None: nobody said.
        saved_compute: share of the prefill seconds that remains saved after loading; None without ``rank_rate``.
    """

    verdict: Verdict
    gain: float
    prefill_rate: float
    is_assumed: bool
    break_even: float
    rank_rate: float | None
    saved_compute: float | None


def judge(instance: Instance, point: Point, prefill_rate: float | None, rank_rate: float | None) -> Worth:
    """Of a pool of one size.

    Args:
        instance: whose ranks load and compute.
        point: what the pool answers.
        prefill_rate: prompt tokens per second of an instance; None: assumed.
        rank_rate: bytes per second that each rank loads; None: not known.
    """
    layout = instance.layout
    rate = prefill_rate or assumed_rate(instance.model, layout.ranks)
    # a prompt is computed and loaded by one data-parallel group
    group_rate = rate / layout.dp
    break_even = instance.read_block_bytes / instance.block_size * group_rate
    gain = point.gain
    saved = gain / (1 - point.device) * (1 - break_even / rank_rate) if rank_rate and point.device < 1 else None
    verdict: Verdict = "depends"
    if gain < LEAST_GAIN:
        verdict = "no_gain"
    elif rank_rate is not None:
        verdict = "worth" if rank_rate > break_even else "too_slow"
    return Worth(verdict, gain, rate, prefill_rate is None, break_even, rank_rate, saved)


def assumed_rate(model: Mapping[str, Any], ranks: int) -> float:
    """Prompt tokens per second of ``ranks`` dies: the profile's, for a model that uses more or fewer parameters."""
    return PROFILE_TOKENS_PER_S * ranks * PROFILE_PARAMETERS / used_parameters(model)


def used_parameters(model: Mapping[str, Any]) -> float:
    """Parameters that take part in computing one token of a prompt, about: attention and feed-forward of all layers."""
    layers, hidden = _whole(model, "num_hidden_layers"), _whole(model, "hidden_size")
    dense = _whole(model, "first_k_dense_replace") if _experts(model) else layers
    feed_forward = 3 * hidden * _whole(model, "intermediate_size")
    expert = 3 * hidden * _whole(model, "moe_intermediate_size", _whole(model, "intermediate_size"))
    used_experts = _whole(model, "num_experts_per_tok") + _whole(model, "n_shared_experts")
    total = layers * _attention(model, hidden) + dense * feed_forward + (layers - dense) * used_experts * expert
    return float(max(total, 1))


def _experts(model: Mapping[str, Any]) -> int:
    return _whole(model, "n_routed_experts", _whole(model, "num_experts", _whole(model, "num_local_experts")))


def _attention(model: Mapping[str, Any], hidden: int) -> int:
    heads = _whole(model, "num_attention_heads", 1)
    latent, rope = _whole(model, "kv_lora_rank"), _whole(model, "qk_rope_head_dim")
    if latent:
        plain, value = _whole(model, "qk_nope_head_dim"), _whole(model, "v_head_dim")
        query = _whole(model, "q_lora_rank")
        queries = query * (hidden + heads * (plain + rope)) if query else hidden * heads * (plain + rope)
        return queries + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden
    head = _whole(model, "head_dim", hidden // max(1, heads))
    return 2 * hidden * head * (heads + _whole(model, "num_key_value_heads", heads))


def _whole(model: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = model.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
