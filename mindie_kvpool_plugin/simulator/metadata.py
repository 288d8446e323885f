"""Batches as the host's workers receive them, the stand-in's ``InputMetadata``, and as the oracle does."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from mindie_kvpool_plugin.simulator.block_manager import BlockTable
from mindie_kvpool_plugin.simulator.dealt_out import DealtTable
from mindie_kvpool_plugin.simulator.oracle import Row
from mindie_kvpool_plugin.simulator.requests import Batch, Chunk, Request, Sequence

PLACEHOLDER = -1
"""Pads prompts; the workers put a token of theirs in its place."""


def batch_metadata(
    batch: Batch, num_npu_blocks: int, block_size: int, max_seq_len: int, num_shares: int = 1, cp: int = 1, dp: int = 1
) -> Any:
    """A scheduled batch; ``num_shares`` ranks share a sequence's blocks, ``cp`` by context parallelism."""
    requests, sequences = batch.requests, batch.sequences
    tables = np.full((len(sequences), num_shares, -(-(max_seq_len + 1) // block_size)), -1, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        for share, block_ids in enumerate(shares_of(sequence.blocks, num_shares)):
            tables[row, share, : len(block_ids)] = block_ids
    prompts = _tokens(batch)
    lengths = [len(prompt) for prompt in prompts]
    metadata = _module().InputMetadata(
        batch_size=len(requests),
        batch_request_ids=np.array([str(request.sequence_id) for request in requests]),
        batch_sequence_ids=[_ids(request.live) for request in requests],
        batch_max_output_lens=np.array([request.budget for request in requests for _ in request.live], dtype=np.int64),
        block_tables=tables if num_shares > 1 else tables[:, 0],
        reserved_sequence_ids=[_ids(request.children) for request in requests],
        is_mix=False,
        is_prefill=batch.is_prefill,
        max_block_size=block_size,
        num_npu_blocks=num_npu_blocks,
        **_sampling(requests if batch.is_prefill else []),
        adapter_ids=[request.adapter for request in requests] if batch.is_prefill else None,
        batch_ignore_eos=np.array([not request.children for request in requests]) if batch.is_prefill else None,
        batch_seq_len=np.array(lengths, dtype=np.int64 if batch.is_prefill else np.float64),
        input_ids=np.array([token for prompt in prompts for token in _padded(prompt, cp)], dtype=np.int64),
        total_seq_num=sum(lengths),
        trace_ids=[str(request.sequence_id) for request in requests],
        computed_blocks=_counts(batch.computed),
        remote_computed_blocks=_counts(batch.promised),
        batch_dp_rank_ids=np.array([request.group for request in requests], dtype=np.int64),
        seq_lens=_seq_lens(batch, block_size) if dp > 1 else [],
        **(_dealt_out(sequences, num_shares, block_size, batch.is_prefill) if num_shares > 1 else {}),
    )
    if batch.chunks:
        _mix(metadata, [chunk for _, chunk in batch.parts])
    return metadata


def oracle_rows(batch: Batch, eos_every: int) -> list[Row]:
    """The same batch for the devices' oracle; one token in ``eos_every`` ends a sequence of a group."""
    if not batch.is_prefill:
        return [row for request in batch.requests for row in _decode_rows(request, eos_every)]
    if batch.chunks:
        parts = zip(batch.requests, batch.chunks, strict=True)
        return [row for request, chunk in parts for row in _chunk_rows(request, chunk, eos_every)]
    return [
        Row(
            request.sequence_id,
            np.array(request.tokens, dtype=np.int64),
            request.adapter,
            children=_children(request),
            group=request.group,
            owners=_owners(request),
            num_beams=_num_beams(request),
        )
        for request in batch.requests
    ]


def _decode_rows(request: Request, eos_every: int) -> list[Row]:
    return [
        Row(
            sequence.sequence_id,
            sample=sequence.sample,
            eos_every=eos_every if request.children else 0,
            group=request.group,
            owners=_owners(sequence),
            places=sequence.places,
            num_beams=_num_beams(request),
        )
        for sequence in request.live
    ]


def _chunk_rows(request: Request, chunk: Chunk, eos_every: int) -> list[Row]:
    if not chunk.is_prompt:
        return _decode_rows(request, eos_every)
    prompt = None if chunk.start else np.array(request.tokens, dtype=np.int64)
    row = Row(request.sequence_id, prompt, end=chunk.end, is_last=chunk.is_last)
    return [replace(row, children=_children(request), num_beams=_num_beams(request)) if chunk.is_last else row]


def _children(request: Request) -> tuple[int, ...]:
    """Who branches off when a prompt is through; which beams do is known later."""
    return () if request.is_beam_search else tuple(child.sequence_id for child in request.children)


def _seq_lens(batch: Batch, block_size: int) -> list[list[int]]:
    """Tokens to compute of every row, per group that has rows; only several groups need them.

    With sp the host takes off the hits on the last rank only (scheduler.cpp, seqLenList), where one server reads none.
    """
    groups = sorted({request.group for request in batch.requests})
    counts = [
        request.num_tokens - int(np.sum(promised)) * block_size if batch.is_prefill else 1
        for request, promised in zip(batch.requests, batch.promised, strict=True)
    ]
    rows = list(zip(batch.requests, counts, strict=True))
    return [[count for request, count in rows if request.group == group] for group in groups]


def _num_beams(request: Request) -> int:
    return request.width if request.is_beam_search else 0


def _owners(sequence: Sequence) -> Any:
    return np.array(sequence.blocks.owners) if isinstance(sequence.blocks, DealtTable) else None


def shares_of(table: BlockTable, num_shares: int) -> list[list[int]]:
    """A sequence's blocks on each of the ranks that share them."""
    if not isinstance(table, DealtTable):
        return [table.block_ids]
    return [table.of_rank(table.block_ids, rank) for rank in range(num_shares)]


def _padded(prompt: list[int], cp: int) -> list[int]:
    """As the host sends it to several context parallel ranks."""
    return prompt + [PLACEHOLDER] * (-len(prompt) % (2 * cp)) if cp > 1 else prompt


def _dealt_out(sequences: list[Sequence], num_shares: int, block_size: int, is_prefill: bool) -> dict[str, Any]:
    """Tokens on every rank, and who has the last one; for guesses, whose the blocks are and which is new."""
    tables = [sequence.blocks for sequence in sequences]
    dealt = [table for table in tables if isinstance(table, DealtTable)]
    width = max(len(table.owners) for table in dealt)
    owners = [sorted(table.owners) + [-1] * (width - len(table.owners)) for table in dealt]
    return {
        "sp_tokens": np.array([[table.tokens_of(rank, block_size) for rank in range(num_shares)] for table in dealt]),
        "sp_rank_id": np.array([table.last_owner(block_size) for table in dealt]),
        "is_append_block": np.array([table.appended is not None for table in dealt]),
        "block_rank_id": np.array([table.appended or 0 for table in dealt]),
        "prefill_block_rank_id": np.array(owners) if is_prefill else None,
    }


def _tokens(batch: Batch) -> list[list[int]]:
    """What the host sends of every row; a decode among chunks has one token, which the workers know."""
    if not batch.chunks:
        return [request.tokens for request in batch.requests] if batch.is_prefill else []
    return [sequence.tokens[chunk.start : chunk.end] if chunk.is_prompt else [0] for sequence, chunk in batch.parts]


def _mix(metadata: Any, chunks: list[Chunk]) -> None:
    """What SplitFuse adds; every row's table holds the blocks of the whole prompt."""
    is_prompt = np.array([chunk.is_prompt for chunk in chunks])
    metadata.is_mix = bool(is_prompt.any() and not is_prompt.all())
    metadata.batch_is_prefill = is_prompt
    metadata.batch_last_prompt = np.array([chunk.is_last for chunk in chunks])
    metadata.split_start_position = np.array([chunk.start for chunk in chunks])
    metadata.split_end_position = np.array([chunk.end for chunk in chunks])
    metadata.batch_seq_len = metadata.split_end_position - metadata.split_start_position
    metadata.max_seq_len = int(metadata.split_end_position.max())
    width = int(np.count_nonzero(metadata.block_tables > -1, axis=-1).max())
    metadata.batch_block_tables = metadata.block_tables[:, :width].astype(np.int32)


def dummy_metadata(num_npu_blocks: int, block_size: int, max_seq_len: int, dp_rank: int = 0) -> Any:
    """What a worker without work receives."""
    return _module().make_dummy_input_metadata(num_npu_blocks, block_size, max_seq_len, dp_rank)


def _sampling(requests: list[Request]) -> dict[str, Any]:
    """Sent with the prefill, empty afterwards."""
    return {
        "batch_n": np.array([request.n for request in requests], dtype=np.int64),
        "batch_best_of": np.array([1 if r.is_beam_search else r.width for r in requests], dtype=np.int64),
        "batch_use_beam_search": np.array([request.is_beam_search for request in requests], dtype=np.bool_),
    }


def _ids(sequences: Iterable[Sequence]) -> Any:
    return np.array([sequence.sequence_id for sequence in sequences], dtype=np.int64)


def _module() -> Any:
    """Known only once the stand-in host is on the path."""
    return importlib.import_module("mindie_llm.text_generator.utils.input_metadata")


def _counts(blocks: list[Any]) -> Any:
    """The host sends no array at all when every count is zero."""
    return np.array(blocks, dtype=np.int64) if np.any(blocks) else None
