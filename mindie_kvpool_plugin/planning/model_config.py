"""The KV cache of a model from its ``config.json``, as the host reads it for ``KVCacheSettings`` (see ``kv_shape``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindie_kvpool_plugin.check.messages import Refused
from mindie_kvpool_plugin.kv_shape import KvShape

ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}


def read_shape(
    config: Mapping[str, Any],
    place: str,
    *,
    draft_layers: int = 0,
    is_nz: bool = False,
    is_torch: bool = False,
) -> KvShape:
    """The cache of the model whose ``config.json`` this is.

    Args:
        config: its content.
        place: the file, for errors.
        draft_layers: 1 with mtp, whatever number of tokens it guesses.
        is_nz: ``kv_cache_options.enable_nz``, or the hardware wants it.
        is_torch: ``backendType`` torch, which stores the index of sparse attention.

    Raises:
        Refused: a number is missing or none.
    """
    layers = _number(config, "num_hidden_layers", place) + min(1, draft_layers)
    quantised = config.get("quantization_config")
    quant = quantised if isinstance(quantised, Mapping) else {}
    dtype = _dtype(config, quant, place)
    size = ELEMENT_BYTES[dtype]
    # FAKQuant: the key alone is int8, and the host switches NZ on
    is_key_int8 = quant.get("fa_quant_type") == "FAKQuant"
    is_nz = is_nz or quant.get("fa_quant_type") is not None
    if config.get("kv_lora_rank"):
        latent, rope = (_number(config, key, place) for key in ("kv_lora_rank", "qk_rope_head_dim"))
        index = _number(config, "index_head_dim", place) if is_torch and config.get("index_head_dim") else 0
        return KvShape(layers, 1, latent, rope, index, size, 1 if is_key_int8 else size, True, is_nz, dtype)
    heads = _number(config, "num_attention_heads", place)
    kv_heads = _number(config, "num_key_value_heads", place) if config.get("num_key_value_heads") else heads
    head = _head_size(config, heads, place, is_torch=is_torch)
    return KvShape(layers, kv_heads, head, head, 0, size, 1 if is_key_int8 else size, False, is_nz, dtype)


def _head_size(config: Mapping[str, Any], heads: int, place: str, *, is_torch: bool) -> int:
    """``head_dim`` counts for Qwen3 and with backendType torch; other ATB models divide."""
    if config.get("head_dim") and (is_torch or "qwen3" in str(config.get("model_type", ""))):
        return _number(config, "head_dim", place)
    return _number(config, "hidden_size", place) // heads


def _dtype(config: Mapping[str, Any], quant: Mapping[str, Any], place: str) -> str:
    if quant.get("kv_quant_type") is not None or quant.get("fa_quant_type") == "FAQuant":
        return "int8"
    named = config.get("torch_dtype", config.get("dtype", "bfloat16"))
    if not isinstance(named, str) or named not in ELEMENT_BYTES:
        known = ", ".join(ELEMENT_BYTES)
        raise Refused("plan.odd_dtype", place=place, value=repr(named), known=known)
    return named


def _number(config: Mapping[str, Any], key: str, place: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Refused("plan.odd_number", place=place, key=key, value=repr(value))
    return value
