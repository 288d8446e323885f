"""A model's KV cache: bytes of a block, and which ranks hold the same bytes.

The sizes are those of the host's ``KVCacheSettings`` (text_generator/utils/kvcache_settings.py) with what its model
runner puts into it (atb_llm/runner/model_runner.py, atb_llm/models/base/flash_causal_lm.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NZ_ELEMENTS = 16
NZ_INT8_ELEMENTS = 32


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
