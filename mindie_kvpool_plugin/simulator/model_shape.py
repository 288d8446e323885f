"""How large the simulated model's KV cache is, and how its heads are spread over the ranks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

NZ_PIECE_BYTES = 32
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The model, as far as its KV cache tells.

    Attributes:
        num_layers: layers.
        num_kv_heads: KV heads of the whole model; fewer than ranks means groups of ranks with equal bytes.
        head_size: elements of a head.
        mla: (latent, rope) elements of an MLA cache, equal on all ranks; None: one K and one V of heads.
        index_head_size: elements of a third tensor per layer, as sparse attention has; 0: none.
        dtype: "float16" or "bfloat16".
        int8_key_layers: layers whose first tensor is int8.
        vocab_size: token ids are below it.
        eos_every: one token in so many ends an answer of a request with n or best_of; 0: none does.
        nz: the cache is in the fractal layout, pieces of 32 bytes of every token side by side (kvcache_settings.py).
    """

    num_layers: int = 2
    num_kv_heads: int = 4
    head_size: int = 8
    mla: tuple[int, int] | None = None
    index_head_size: int = 0
    dtype: str = "float16"
    int8_key_layers: tuple[int, ...] = ()
    vocab_size: int = 1024
    eos_every: int = 0
    nz: bool = False

    def block_shape(self, block_size: int, heads: int, size: int, dtype: torch.dtype) -> tuple[int, ...]:
        """Of one segment of a block.

        Raises:
            ValueError: the fractal layout would pad it, which is not simulated.
        """
        if not self.nz:
            return block_size, heads, size
        per_piece = NZ_PIECE_BYTES // int(dtype.itemsize)
        if heads * size % per_piece:
            raise ValueError(f"nz needs heads x size, here {heads} x {size}, to be a multiple of {per_piece}")
        return heads * size // per_piece, block_size, per_piece

    def heads_per_rank(self, tp: int) -> int:
        """KV heads one rank holds."""
        return 1 if self.mla else max(1, self.num_kv_heads // tp)

    def shard(self, rank: int, tp: int) -> int:
        """Which distinct part of the heads a rank holds; ranks with one shard hold identical bytes."""
        if self.mla:
            return 0
        return rank * self.num_kv_heads // tp if self.num_kv_heads < tp else rank

    def segments(self, layer: int, tp: int) -> list[tuple[int, int, torch.dtype]]:
        """(heads, head size, dtype) of every tensor of a layer."""
        heads, dtype = self.heads_per_rank(tp), DTYPES[self.dtype]
        key, value = self.mla or (self.head_size, self.head_size)
        found = [(heads, key, torch.int8 if layer in self.int8_key_layers else dtype), (heads, value, dtype)]
        return [*found, (1, self.index_head_size, dtype)] if self.index_head_size else found

    def block_bytes(self, block_size: int, tp: int) -> int:
        """Bytes of one block on one rank."""
        segments = [part for layer in range(self.num_layers) for part in self.segments(layer, tp)]
        return block_size * sum(heads * size * int(dtype.itemsize) for heads, size, dtype in segments)


def write_weights(shape: ModelShape, folder: Path) -> None:
    """Make ``folder`` look like a weight directory: a ``config.json`` that says how heads are spread, and a shard."""
    config: dict[str, Any] = {
        "model_type": "simulated",
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": max(8, shape.num_kv_heads),
        "num_key_value_heads": shape.num_kv_heads,
        "vocab_size": shape.vocab_size,
    }
    if shape.mla:
        config |= {"model_type": "simulated_mla", "kv_lora_rank": shape.mla[0], "qk_rope_head_dim": shape.mla[1]}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    tensor = bytes(range(64))
    head = json.dumps({"model.norm.weight": {"dtype": "F16", "shape": [32], "data_offsets": [0, len(tensor)]}}).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + tensor)


def parallel_mapping(rank: int, tp: int, cp: int = 1, sp: int = 1, dp: int = 1) -> SimpleNamespace:
    """The parallel groups a rank is in, as the host's model wrapper has them."""

    def group(size: int = 1, own: int = 0) -> SimpleNamespace:
        return SimpleNamespace(group_size=size, rank=own, rank_per_group=[list(range(size))])

    return SimpleNamespace(
        world_size=tp * cp * dp,
        rank=rank,
        attn_tp=group(tp, rank % tp),
        attn_dp=group(dp, rank // (tp * cp)),
        attn_cp=group(cp, rank // tp % cp),
        attn_inner_sp=group(sp, rank % sp),
        has_dp=lambda: dp > 1,
        has_attn_cp=lambda: cp > 1,
        has_attn_inner_sp=lambda: sp > 1,
    )


def model_info(shape: ModelShape, tp: int) -> SimpleNamespace:
    """Sizes of one rank's cache, as the host's model wrapper has them."""
    key, value = shape.mla or (shape.head_size, shape.head_size)
    return SimpleNamespace(
        num_layers=shape.num_layers,
        num_kv_heads=shape.heads_per_rank(tp),
        head_size=shape.head_size,
        k_head_size=key,
        v_head_size=value,
        index_head_dim=shape.index_head_size or None,
        num_index_heads=1 if shape.index_head_size else None,
        dtype=DTYPES[shape.dtype],
        data_byte_size=DTYPES[shape.dtype].itemsize,
        kvcache_quant_layers=[layer in shape.int8_key_layers for layer in range(shape.num_layers)],
        enable_nz=shape.nz,
        device=torch.device("cpu"),
    )
