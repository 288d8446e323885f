"""Batches as the host's workers receive them: the stand-in's ``InputMetadata``."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from mindie_kvpool_plugin.simulator.requests import Batch


def batch_metadata(batch: Batch, num_npu_blocks: int, block_size: int, max_seq_len: int) -> Any:
    """A scheduled batch."""
    requests = batch.requests
    tables = np.full((len(requests), -(-(max_seq_len + 1) // block_size)), -1, dtype=np.int64)
    for row, request in enumerate(requests):
        tables[row, : len(request.blocks.block_ids)] = request.blocks.block_ids
    prompts = [request.tokens for request in requests] if batch.is_prefill else []
    lengths = [len(prompt) for prompt in prompts]
    return _module().InputMetadata(
        batch_size=len(requests),
        batch_request_ids=np.array([str(request.sequence_id) for request in requests]),
        batch_sequence_ids=[np.array([request.sequence_id], dtype=np.int64) for request in requests],
        batch_max_output_lens=np.array([request.budget for request in requests], dtype=np.int64),
        block_tables=tables,
        reserved_sequence_ids=[np.array([], dtype=np.int64) for _ in requests],
        is_mix=False,
        is_prefill=batch.is_prefill,
        max_block_size=block_size,
        num_npu_blocks=num_npu_blocks,
        adapter_ids=[request.adapter for request in requests] if batch.is_prefill else None,
        batch_ignore_eos=np.array([True] * len(requests)) if batch.is_prefill else None,
        batch_seq_len=np.array(lengths, dtype=np.int64 if batch.is_prefill else np.float64),
        input_ids=np.array([token for prompt in prompts for token in prompt], dtype=np.int64),
        total_seq_num=sum(lengths),
        trace_ids=[str(request.sequence_id) for request in requests],
        computed_blocks=_counts(batch.computed),
        remote_computed_blocks=_counts(batch.promised),
        batch_dp_rank_ids=np.zeros(len(requests), dtype=np.int64),
        seq_lens=[],
    )


def dummy_metadata(num_npu_blocks: int, block_size: int, max_seq_len: int) -> Any:
    """What a worker without work receives."""
    return _module().make_dummy_input_metadata(num_npu_blocks, block_size, max_seq_len)


def _module() -> Any:
    """Known only once the stand-in host is on the path."""
    return importlib.import_module("mindie_llm.text_generator.utils.input_metadata")


def _counts(blocks: list[int]) -> Any:
    """The host sends no array at all when every count is zero."""
    return np.array(blocks, dtype=np.int64) if any(blocks) else None
