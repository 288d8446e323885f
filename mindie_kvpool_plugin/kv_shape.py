"""What a model's ``config.json`` says of its KV cache: bytes of a block, and which ranks hold the same bytes.

The sizes are those of the host's ``KVCacheSettings`` (text_generator/utils/kvcache_settings.py) with what its model
runner puts into it (atb_llm/runner/model_runner.py, atb_llm/models/base/flash_causal_lm.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin.errors import ConfigError

NZ_ELEMENTS = 16
NZ_INT8_ELEMENTS = 32
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1}


def num_shards(config: Mapping[str, Any], tp: int) -> int:
    """How many parts of a block differ over ``tp`` tensor-parallel ranks.

    Latent attention (``kv_lora_rank``) gives every rank the same cache, and with fewer KV heads than ranks, groups
    of neighbouring ranks share one.  What cannot be told is taken to differ on every rank.
    """
    if config.get("kv_lora_rank"):
        return 1
    heads = config.get("num_key_value_heads")
    is_shared = isinstance(heads, int) and 0 < heads < tp and tp % heads == 0
    return int(heads) if isinstance(heads, int) and is_shared else tp


@dataclass(frozen=True, slots=True)
class KvShape:
    """The KV cache of a model.

    Attributes:
        layers: with KV; a draft layer of mtp is one more.
        kv_heads: of the whole model; 1 with latent attention.
        key, value: elements of a head's key and value; latent and rope part with latent attention.
        index: elements of a third tensor per layer, as sparse attention has; 0: none.
        element_bytes: of value and index, and of the key unless it is quantised alone.
        key_bytes: bytes of an element of the key.
        is_latent: every tensor-parallel rank holds the whole cache.
        is_nz: fractal layout: a token's elements are padded to whole pieces.
        dtype: of the cache, as the configuration names it.
    """

    layers: int
    kv_heads: int
    key: int
    value: int
    index: int = 0
    element_bytes: int = 2
    key_bytes: int = 2
    is_latent: bool = False
    is_nz: bool = False
    dtype: str = "bfloat16"

    def heads_per_rank(self, tp: int) -> int:
        """KV heads in one rank's cache."""
        copies = tp // self.kv_heads if self.kv_heads < tp else 1
        return 1 if self.is_latent else -(-self.kv_heads * copies // tp)

    def block_bytes(self, block_size: int, tp: int) -> int:
        """Bytes of one block on one rank: ``cache_block_bytes`` of the host."""
        heads = self.heads_per_rank(tp)
        piece = NZ_INT8_ELEMENTS if self.key_bytes == 1 and self.element_bytes != 1 else NZ_ELEMENTS
        key = self._padded(heads * self.key, piece) * self.key_bytes
        rest = (self._padded(heads * self.value) + self._padded(self.index)) * self.element_bytes
        return self.layers * block_size * (key + rest)

    def _padded(self, elements: int, piece: int = NZ_ELEMENTS) -> int:
        return -(-elements // piece) * piece if self.is_nz else elements


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
        ConfigError: a number is missing or none.
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
        raise ConfigError(f"{place}: torch_dtype is {named!r}, expected one of {', '.join(ELEMENT_BYTES)}")
    return named


def _number(config: Mapping[str, Any], key: str, place: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{place}: {key} is {value!r}, expected a whole number of at least 1")
    return value
