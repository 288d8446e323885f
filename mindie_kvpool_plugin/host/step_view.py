"""Host arrays -> records the walks understand.  No host type gets past this file.

Also the way back: writing a shortened hit into the host's arrays so that everything derived from
them stays consistent (``prefix_cache`` trims the inputs right after us).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Tokens

SIMULATE_SEQUENCE_ID = 9223372036854774
"""The host's health-check sequence (input_metadata.py): it writes no cache."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """One new prompt of a prefill batch.

    Attributes:
        row: its row in the batch.
        sequence_id, handle: the host's names for it.
        tokens: int64 [prompt], a view.
        computed: leading blocks on the device.
        promised: leading blocks on the device or in the pool.
        has_adapter: its KV also depends on a LoRA adapter.
        is_beam: it will be searched in beams, which take over each other's history.
    """

    row: int
    sequence_id: int
    handle: int
    tokens: Tokens
    computed: int
    promised: int
    has_adapter: bool
    is_beam: bool

    def first_written_block(self, reused: int, block_size: int) -> int:
        """Index of the first block the host writes when it reuses ``reused`` leading blocks.

        A hit that covers the whole prompt computes its last block again (prefix_cache_preprocess.py).
        """
        return reused - 1 if reused and reused * block_size >= len(self.tokens) else reused


def writes_nothing(metadata: Any) -> bool:
    """Whether the batch touches no sequence's blocks (dummy batches; warm-up has no ids worth noting)."""
    return bool(metadata.is_dummy_batch)


def prefills(metadata: Any, cache_ids: npt.NDArray[np.int32], dp_rank: int) -> list[Prefill]:
    """The prompts of this data-parallel rank in a prefill batch.

    Args:
        metadata: the host's InputMetadata.
        cache_ids: int32 [batch], context handles.
        dp_rank: of this worker.
    """
    lengths = np.asarray(metadata.batch_seq_len, dtype=np.int64)
    ends = np.cumsum(lengths)
    tokens = np.asarray(metadata.input_ids, dtype=np.int64)
    computed = _counts(metadata.computed_blocks, len(lengths))
    promised = np.maximum(computed, _counts(metadata.remote_computed_blocks, len(lengths)))
    adapters = metadata.adapter_ids or [None] * len(lengths)
    dp_ranks = metadata.batch_dp_rank_ids
    beams = metadata.batch_use_beam_search
    found = []
    for row, length in enumerate(lengths.tolist()):
        sequence_id = int(metadata.all_sequence_ids[row])
        if sequence_id == SIMULATE_SEQUENCE_ID or (dp_ranks is not None and dp_ranks[row] != dp_rank):
            continue
        found.append(
            Prefill(
                row=row,
                sequence_id=sequence_id,
                handle=int(cache_ids[row]),
                tokens=tokens[ends[row] - length : ends[row]],
                computed=int(computed[row]),
                promised=int(promised[row]),
                has_adapter=bool(adapters[row]),
                is_beam=beams is not None and bool(beams[row]),
            )
        )
    return found


def decode_rows(metadata: Any, dp_rank: int) -> npt.NDArray[np.int64]:
    """Rows of a decode batch that write this data-parallel rank's cache; a request may have several (n, beams)."""
    real = metadata.all_sequence_ids != SIMULATE_SEQUENCE_ID
    dp_ranks = metadata.batch_dp_rank_ids
    if dp_ranks is not None:
        if len(dp_ranks) != len(real):
            dp_ranks = np.repeat(dp_ranks, [len(ids) for ids in metadata.batch_sequence_ids])
        real = real & (np.asarray(dp_ranks) == dp_rank)
    return np.nonzero(real)[0]


def promises(metadata: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The whole batch's pool hits, of all data-parallel ranks: equal on every rank that runs it.

    Returns:
        Rows with a pool hit that may be loaded; computed and promised blocks of all rows.
    """
    computed = _counts(metadata.computed_blocks, len(metadata.batch_seq_len))
    promised = np.maximum(computed, _counts(metadata.remote_computed_blocks, len(computed)))
    has_adapter = np.array([bool(adapter) for adapter in metadata.adapter_ids or [None] * len(computed)])
    is_real = np.asarray(metadata.all_sequence_ids) != SIMULATE_SEQUENCE_ID
    return np.nonzero((promised > computed) & ~has_adapter & is_real)[0], computed, promised


def lower_hits(
    metadata: Any,
    model_inputs: Any,
    rows: Sequence[int],
    lengths: npt.NDArray[np.int64],
    block_size: int,
    dp_rank: int,
) -> None:
    """Tell the host how many leading blocks of some prompts may really be reused.

    ``prefix_cache`` takes either both arrays or none of them, so a batch left without any hit gets None
    for both.  ``seq_lens`` (per data-parallel rank, tokens each prompt still has to compute) follows.
    Every rank that runs the batch needs all rows lowered alike: the host derives from them how many
    tokens the other data-parallel ranks compute.

    Args:
        metadata: the host's InputMetadata; its arrays are replaced, not changed in place.
        model_inputs: the host's ModelInput, which carries ``seq_lens`` too.
        rows: rows to lower.
        lengths: int64 [rows], leading blocks, at least the computed ones.
        block_size: tokens per block.
        dp_rank: of this worker.
    """
    before = metadata.remote_computed_blocks
    if before is None:
        return
    lowered = np.array(before, dtype=np.int64)
    lowered[list(rows)] = lengths
    if (lowered == before).all():
        return
    if not lowered.any() and (metadata.computed_blocks is None or not np.any(metadata.computed_blocks)):
        metadata.remote_computed_blocks = None
        metadata.computed_blocks = None
    else:
        metadata.remote_computed_blocks = lowered
    if metadata.seq_lens:
        _give_back(metadata, np.asarray(before) - lowered, block_size, dp_rank)
        model_inputs.seq_lens = metadata.seq_lens


def drop_pool_hits(metadata: Any, model_inputs: Any, block_size: int, dp_rank: int) -> None:
    """Leave a batch only what is on the device; for when nothing else is certain."""
    computed = _counts(metadata.computed_blocks, len(metadata.batch_seq_len))
    lower_hits(metadata, model_inputs, range(len(computed)), computed, block_size, dp_rank)


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


def _counts(blocks: Any, rows: int) -> npt.NDArray[np.int64]:
    return np.zeros(rows, dtype=np.int64) if blocks is None else np.asarray(blocks, dtype=np.int64)
