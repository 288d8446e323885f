"""One scheduled batch, as every worker receives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SIMULATE_SEQUENCE_ID = 9223372036854774
DUMMY_SEQUENCE_ID = 9223372036854775


@dataclass(slots=True)
class InputMetadata:
    batch_size: int
    batch_request_ids: np.ndarray
    batch_sequence_ids: list[np.ndarray]
    batch_max_output_lens: np.ndarray
    block_tables: np.ndarray
    reserved_sequence_ids: list[np.ndarray]

    has_sampling: bool = True
    is_mix: bool | None = None
    is_prefill: bool = False
    max_block_size: int = 128
    num_npu_blocks: int = 0
    batch_n: np.ndarray | None = None
    batch_best_of: np.ndarray | None = None
    batch_use_beam_search: np.ndarray | None = None
    adapter_ids: list[str | None] | None = None
    batch_ignore_eos: np.ndarray | None = None
    batch_seq_len: np.ndarray | None = None
    input_ids: np.ndarray | None = None
    total_seq_num: int | None = None
    trace_ids: list[Any] | None = None
    computed_blocks: np.ndarray | None = None
    remote_computed_blocks: np.ndarray | None = None
    split_start_position: np.ndarray | None = None
    split_end_position: np.ndarray | None = None
    batch_last_prompt: np.ndarray | None = None
    batch_is_prefill: np.ndarray | None = None
    batch_dp_rank_ids: np.ndarray | None = None
    sp_tokens: np.ndarray | None = None
    sp_rank_id: np.ndarray | None = None
    is_append_block: np.ndarray | None = None
    prefill_block_rank_id: np.ndarray | None = None
    block_rank_id: np.ndarray | None = None
    all_sequence_ids: np.ndarray | None = None
    batch_block_tables: np.ndarray | None = None
    max_seq_len: int | None = None
    is_dummy_batch: bool | None = False
    seq_lens: list[list[int]] | None = None

    def __post_init__(self):
        self.all_sequence_ids = np.concatenate(self.batch_sequence_ids)
        if self.is_prefill:
            self.max_seq_len = int(max(self.batch_seq_len))
            width = -(-self.max_seq_len // self.max_block_size)
        else:
            width = int(np.count_nonzero(self.block_tables > -1, axis=-1).max())
        if self.sp_tokens is not None:  # a table per rank
            width = int(np.count_nonzero(self.block_tables > -1, axis=-1).max())
        self.batch_block_tables = self.block_tables[..., :width].astype(np.int32)


def make_dummy_input_metadata(num_npu_blocks, block_size, max_seq_len, dp_rank=0):
    """What a worker without work gets while another data parallel group has some."""
    table = np.full((1, max(1, max_seq_len // block_size)), -1, dtype=np.int64)
    table[0, 0] = num_npu_blocks - 1
    return InputMetadata(
        batch_size=1,
        batch_request_ids=np.array([18446744073709551], dtype=np.int64),
        batch_sequence_ids=[np.array([DUMMY_SEQUENCE_ID], dtype=np.int64)],
        batch_max_output_lens=np.array([1], dtype=np.int64),
        block_tables=table,
        reserved_sequence_ids=[np.array([], dtype=np.int64)],
        is_prefill=True,
        max_block_size=block_size,
        num_npu_blocks=num_npu_blocks,
        adapter_ids=[None],
        batch_ignore_eos=np.array([None]),
        batch_seq_len=np.array([1], dtype=np.int64),
        input_ids=np.array([30], dtype=np.int64),
        total_seq_num=1,
        trace_ids=[None],
        batch_dp_rank_ids=np.array([dp_rank], dtype=np.int64),
        is_dummy_batch=True,
        seq_lens=[],
    )
