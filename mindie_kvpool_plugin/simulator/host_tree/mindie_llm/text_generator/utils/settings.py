"""Sizes that the parts of a worker share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class KVCacheSettings:
    def __init__(self, rank, model_info, block_size, num_npu_blocks, num_speculative_tokens=0):
        self.rank = rank
        self.block_size = block_size
        self.num_speculative_tokens = num_speculative_tokens
        self.num_layers = model_info.num_layers + (num_speculative_tokens >= 1)  # the draft layer's
        self.num_heads = model_info.num_kv_heads
        self.head_size = model_info.head_size
        self.k_head_size = model_info.k_head_size
        self.v_head_size = model_info.v_head_size
        self.index_head_dim = model_info.index_head_dim
        self.num_index_heads = model_info.num_index_heads
        self.dtype = model_info.dtype
        self.kvcache_quant_layers = model_info.kvcache_quant_layers
        self.need_nz = model_info.enable_nz
        self.num_npu_blocks = num_npu_blocks
        self.num_cpu_blocks = 0


@dataclass
class CacheConfig:
    max_block_size: int
    max_seq_len: int
    max_gen_len: int
    cache_size: int = 2048
    eos_token_id: int | list[int] = 2
    pad_token_id: int = 0
    rank: int = 0


@dataclass(slots=True)
class ContextParams:
    async_infer: bool = False
    distributed: bool = False
    max_generated_tokens: int = 1
    layerwise_disaggregated: bool = False


class SpCpParallelInfo:
    def __init__(self, sp_parallel_info=None, cp_parallel_info=None):
        self.sp_size, self.sp_rank = _size_and_rank(sp_parallel_info)
        self.cp_size, self.cp_rank = _size_and_rank(cp_parallel_info)
        self.scp_size = self.cp_size * self.sp_size
        self.scp_rank = self.cp_rank * self.sp_size + self.sp_rank


def _size_and_rank(group):
    return (1, 0) if group is None or group.group_size <= 1 else (group.group_size, group.rank)


class ResponseConfig(IntEnum):
    CONTINUE = 0
    EOS = 1
    REACH_MAX_SEQ_LEN = 5
    REACH_MAX_OUTPUT_LEN = 6
