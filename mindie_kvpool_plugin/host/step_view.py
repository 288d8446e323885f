"""Host arrays -> records the walks understand.  No host type gets past this file.

Also the way back: writing a shortened hit into the host's arrays so that everything derived from
them stays consistent (``prefix_cache`` trims the inputs right after us).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Tokens
from mindie_kvpool_plugin.host.block_share import BlockShare

SIMULATE_SEQUENCE_ID = 9223372036854774
"""The host's health-check sequence (input_metadata.py): it writes no cache."""


@dataclass(frozen=True, slots=True)
class NewPrompt:
    """A row of a batch that begins a prompt, or its first chunk (SplitFuse).

    Attributes:
        row: its row in the batch.
        sequence_id, handle: the host's names for it.
        tokens: int64 [prompt or chunk], a view.
        computed: leading blocks on the device.
        promised: leading blocks on the device or in the pool.
        adapter: name of its LoRA adapter, or None.
        is_beam: it will be searched in beams, which take over each other's history.
    """

    row: int
    sequence_id: int
    handle: int
    tokens: Tokens
    computed: int
    promised: int
    adapter: str | None
    is_beam: bool


def writes_nothing(metadata: Any) -> bool:
    """Whether the batch touches no sequence's blocks (dummy batches; warm-up has no ids worth noting)."""
    return bool(metadata.is_dummy_batch)


def new_prompts(metadata: Any, cache_ids: npt.NDArray[np.int32], dp_rank: int) -> list[NewPrompt]:
    """The prompts of this data-parallel rank that a batch begins.

    Args:
        metadata: the host's InputMetadata.
        cache_ids: int32 [batch], context handles.
        dp_rank: of this worker.
    """
    lengths = np.asarray(metadata.batch_seq_len, dtype=np.int64)
    ends = np.cumsum(lengths)
    tokens = np.asarray(metadata.input_ids, dtype=np.int64)
    computed, promised = _computed_and_promised(metadata)
    request_of = _requests(metadata).tolist()
    adapters = metadata.adapter_ids or [None] * len(lengths)
    beams = metadata.batch_use_beam_search
    begins = _begins(metadata, len(lengths)) & _is_own(metadata, dp_rank)
    return [
        NewPrompt(
            row=row,
            sequence_id=int(metadata.all_sequence_ids[row]),
            handle=int(cache_ids[row]),
            tokens=tokens[ends[row] - lengths[row] : ends[row]],
            computed=int(computed[row]),
            promised=int(promised[row]),
            adapter=adapters[request_of[row]] or None,
            is_beam=beams is not None and bool(beams[request_of[row]]),
        )
        for row in np.flatnonzero(begins).tolist()
    ]


def request_names(metadata: Any) -> npt.NDArray[np.str_]:
    """The request id of every row: the ``id`` of the answer and of the log (single_req_infer_interface_base.cpp)."""
    names: npt.NDArray[np.str_] = np.asarray(metadata.batch_request_ids).astype(np.str_)[_requests(metadata)]
    return names


def are_whole(metadata: Any) -> npt.NDArray[np.bool_]:
    """Which rows are the last, or only, chunk of their prompt."""
    if metadata.batch_last_prompt is None:
        return np.ones(len(metadata.all_sequence_ids), dtype=np.bool_)
    return np.asarray(metadata.batch_last_prompt, dtype=np.bool_)


def going_rows(metadata: Any, dp_rank: int) -> npt.NDArray[np.int64]:
    """Rows of this data-parallel rank that go on: decodes, and later chunks of a prompt (SplitFuse)."""
    going = _is_own(metadata, dp_rank)
    if metadata.is_prefill:
        going = going & ~_begins(metadata, len(going))
    return np.flatnonzero(going)


def _is_own(metadata: Any, dp_rank: int) -> npt.NDArray[np.bool_]:
    """Which rows write this data-parallel rank's cache; a request may have several (n, beams)."""
    own: npt.NDArray[np.bool_] = np.asarray(metadata.all_sequence_ids) != SIMULATE_SEQUENCE_ID
    dp_ranks = metadata.batch_dp_rank_ids
    if dp_ranks is not None:
        own = own & (np.asarray(dp_ranks)[_requests(metadata)] == dp_rank)
    return own


def _requests(metadata: Any) -> npt.NDArray[np.int64]:
    """int64 [rows], the request of each: one that decodes with several sequences has so many rows (n, beams)."""
    requests: npt.NDArray[np.int64] = np.arange(len(metadata.batch_sequence_ids))
    if len(requests) == len(metadata.all_sequence_ids):
        return requests
    return np.repeat(requests, [len(ids) for ids in metadata.batch_sequence_ids])


def _begins(metadata: Any, count: int) -> npt.NDArray[np.bool_]:
    """Which rows of a prefill begin a prompt: all, unless prompts come in chunks and decodes between them."""
    if metadata.batch_is_prefill is None:
        return np.ones(count, dtype=np.bool_)
    begins: npt.NDArray[np.bool_] = np.asarray(metadata.batch_is_prefill) & (
        np.asarray(metadata.split_start_position) == 0
    )
    return begins


def pulled_rows(metadata: Any, dp_rank: int) -> list[tuple[int, str | None]]:
    """Rows of sequences whose blocks another node has computed, with the name of their LoRA adapter."""
    rows = np.flatnonzero(_is_own(metadata, dp_rank)).tolist()
    adapters = metadata.adapter_ids or [None] * len(metadata.all_sequence_ids)
    return [(row, adapters[row] or None) for row in rows]


def appending(metadata: Any, rows: npt.NDArray[np.int64], share: BlockShare) -> npt.NDArray[np.bool_]:
    """Which of these decoding rows write into a block of this rank."""
    if share.size == 1:
        return np.ones(len(rows), dtype=np.bool_)
    writes: npt.NDArray[np.bool_] = np.asarray(metadata.sp_rank_id)[rows] == share.rank
    return writes


def promises(metadata: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The whole batch's pool hits, of all data-parallel ranks: equal on every rank that runs it.

    Returns:
        Rows with a pool hit that may be loaded; computed and promised blocks of all rows, over all ranks they lie on.
    """
    computed, promised = _computed_and_promised(metadata)
    is_real = np.asarray(metadata.all_sequence_ids) != SIMULATE_SEQUENCE_ID
    return np.nonzero((promised > computed) & is_real & _begins(metadata, len(computed)))[0], computed, promised


def promised_blocks(metadata: Any, dp_rank: int) -> int:
    """Pool hits of the prompts of this data-parallel rank, in blocks."""
    rows, computed, promised = promises(metadata)
    own = rows[_is_own(metadata, dp_rank)[rows]]
    return int((promised - computed)[own].sum())


def computed_tokens(metadata: Any, dp_rank: int, lengths: npt.NDArray[np.int64], block_size: int) -> int:
    """Tokens of this data-parallel rank that a prefill batch computes.

    Args:
        metadata: the host's InputMetadata.
        dp_rank: of this worker.
        lengths: int64 [batch], leading blocks of every row that are reused.
        block_size: tokens per block.
    """
    tokens = np.asarray(metadata.batch_seq_len, dtype=np.int64)
    own = _is_own(metadata, dp_rank)
    reused = np.where(_begins(metadata, len(tokens)), lengths * block_size, 0)
    return int(np.maximum(tokens - reused, 1)[own].sum())


def _computed_and_promised(metadata: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    request_of = _requests(metadata)
    computed = _counts(metadata.computed_blocks, len(metadata.batch_sequence_ids))
    promised = np.maximum(computed, _counts(metadata.remote_computed_blocks, len(computed)))
    return computed[request_of], promised[request_of]


def lower_hits(
    metadata: Any,
    model_inputs: Any,
    lengths: npt.NDArray[np.int64],
    block_size: int,
    dp_rank: int,
    share: BlockShare,
) -> None:
    """Tell the host how many leading blocks of some prompts may really be reused.

    ``prefix_cache`` takes either both arrays or none of them, so a batch left without any hit gets None
    for both.  ``seq_lens`` (per data-parallel rank, tokens each prompt still has to compute) follows.
    Every rank that runs the batch needs all rows lowered alike: the host derives from them how many
    tokens the other data-parallel ranks compute.

    Args:
        metadata: the host's InputMetadata; its arrays are replaced, not changed in place.
        model_inputs: the host's ModelInput, which carries ``seq_lens`` too.
        lengths: int64 [batch], leading blocks of every row, at least the computed ones.
        block_size: tokens per block.
        dp_rank: of this worker.
        share: how blocks are dealt out to ranks; the host counts them per rank if to several.
    """
    if metadata.remote_computed_blocks is None:
        return
    # the host counts per request; what a decoding one finds counts for nothing, so its first row stands for it
    lengths = lengths[np.unique(_requests(metadata), return_index=True)[1]]
    before = _counts(metadata.remote_computed_blocks, len(lengths))
    if not lengths.any() and (metadata.computed_blocks is None or not np.any(metadata.computed_blocks)):
        metadata.remote_computed_blocks = None
        metadata.computed_blocks = None
    elif (lengths != before).any():
        metadata.remote_computed_blocks = lengths.copy() if share.size == 1 else share.counts(lengths)
    if metadata.batch_is_prefill is not None:
        # with SplitFuse the host counts a row's tokens from one array here and from the other there
        metadata.computed_blocks = metadata.remote_computed_blocks
    if metadata.seq_lens and (lengths != before).any():
        _give_back(metadata, before - lengths, block_size, dp_rank)
        model_inputs.seq_lens = metadata.seq_lens


def _give_back(metadata: Any, num_blocks: npt.NDArray[np.int64], block_size: int, dp_rank: int) -> None:
    """Add the tokens that are computed after all to the lengths.

    With one scheduler for all data-parallel ranks the host lists only those that have prompts in the
    batch, in order; with a scheduler per rank it lists the own one, or all.
    """
    count = len(num_blocks)
    dp_ranks = [dp_rank] * count if metadata.batch_dp_rank_ids is None else list(metadata.batch_dp_rank_ids)[:count]
    present = sorted(set(dp_ranks))
    seq_lens = list(metadata.seq_lens)
    for index, owner in enumerate(present):
        place = index if len(seq_lens) == len(present) else owner
        rows = [row for row in range(count) if dp_ranks[row] == owner]
        if place < len(seq_lens) and len(seq_lens[place]) == len(rows):
            added = (num_blocks[rows] * block_size).tolist()
            seq_lens[place] = [length + more for length, more in zip(seq_lens[place], added, strict=True)]
    metadata.seq_lens = seq_lens


def _counts(blocks: Any, requests: int) -> npt.NDArray[np.int64]:
    """Blocks per request; the host counts them per rank where a sequence's blocks lie on several."""
    if blocks is None:
        return np.zeros(requests, dtype=np.int64)
    counts: npt.NDArray[np.int64] = np.asarray(blocks, dtype=np.int64)
    return counts if counts.ndim == 1 else counts.sum(axis=1)
