"""Batches as the host's workers receive them, the stand-in's ``InputMetadata``, and as the oracle does."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from mindie_kvpool_plugin.simulator.oracle import Row
from mindie_kvpool_plugin.simulator.requests import Batch, Request, Sequence


def batch_metadata(batch: Batch, num_npu_blocks: int, block_size: int, max_seq_len: int) -> Any:
    """A scheduled batch."""
    requests, sequences = batch.requests, batch.sequences
    tables = np.full((len(sequences), -(-(max_seq_len + 1) // block_size)), -1, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        tables[row, : len(sequence.blocks.block_ids)] = sequence.blocks.block_ids
    prompts = [request.tokens for request in requests] if batch.is_prefill else []
    lengths = [len(prompt) for prompt in prompts]
    return _module().InputMetadata(
        batch_size=len(requests),
        batch_request_ids=np.array([str(request.sequence_id) for request in requests]),
        batch_sequence_ids=[_ids(request.live) for request in requests],
        batch_max_output_lens=np.array([request.budget for request in requests for _ in request.live], dtype=np.int64),
        block_tables=tables,
        reserved_sequence_ids=[_ids(request.children) for request in requests],
        is_mix=False,
        is_prefill=batch.is_prefill,
        max_block_size=block_size,
        num_npu_blocks=num_npu_blocks,
        **_sampling(requests if batch.is_prefill else []),
        adapter_ids=[request.adapter for request in requests] if batch.is_prefill else None,
        batch_ignore_eos=np.array([not request.children for request in requests]) if batch.is_prefill else None,
        batch_seq_len=np.array(lengths, dtype=np.int64 if batch.is_prefill else np.float64),
        input_ids=np.array([token for prompt in prompts for token in prompt], dtype=np.int64),
        total_seq_num=sum(lengths),
        trace_ids=[str(request.sequence_id) for request in requests],
        computed_blocks=_counts(batch.computed),
        remote_computed_blocks=_counts(batch.promised),
        batch_dp_rank_ids=np.zeros(len(requests), dtype=np.int64),
        seq_lens=[],
    )


def oracle_rows(batch: Batch, eos_every: int) -> list[Row]:
    """The same batch for the devices' oracle; one token in ``eos_every`` ends a sequence of a group."""
    if not batch.is_prefill:
        return [
            Row(sequence.sequence_id, sample=sequence.sample, eos_every=eos_every if request.children else 0)
            for request in batch.requests
            for sequence in request.live
        ]
    return [
        Row(
            request.sequence_id,
            np.array(request.tokens, dtype=np.int64),
            request.adapter,
            children=tuple(child.sequence_id for child in request.children),
        )
        for request in batch.requests
    ]


def dummy_metadata(num_npu_blocks: int, block_size: int, max_seq_len: int) -> Any:
    """What a worker without work receives."""
    return _module().make_dummy_input_metadata(num_npu_blocks, block_size, max_seq_len)


def _sampling(requests: list[Request]) -> dict[str, Any]:
    """Sent with the prefill, empty afterwards."""
    return {
        "batch_n": np.array([request.n for request in requests], dtype=np.int64),
        "batch_best_of": np.array([request.width for request in requests], dtype=np.int64),
        "batch_use_beam_search": np.zeros(len(requests), dtype=np.bool_),
    }


def _ids(sequences: Iterable[Sequence]) -> Any:
    return np.array([sequence.sequence_id for sequence in sequences], dtype=np.int64)


def _module() -> Any:
    """Known only once the stand-in host is on the path."""
    return importlib.import_module("mindie_llm.text_generator.utils.input_metadata")


def _counts(blocks: list[int]) -> Any:
    """The host sends no array at all when every count is zero."""
    return np.array(blocks, dtype=np.int64) if any(blocks) else None
