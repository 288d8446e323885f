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
    """

    row: int
    sequence_id: int
    handle: int
    tokens: Tokens
    computed: int
    promised: int
    has_adapter: bool

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
            )
        )
    return found


def decode_rows(metadata: Any, dp_rank: int) -> npt.NDArray[np.int64]:
    """Rows of a decode batch that write this data-parallel rank's cache."""
    real = metadata.all_sequence_ids != SIMULATE_SEQUENCE_ID
    dp_ranks = metadata.batch_dp_rank_ids
    if dp_ranks is not None and len(dp_ranks) == len(real):
        real = real & (np.asarray(dp_ranks) == dp_rank)
    return np.nonzero(real)[0]


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

    Args:
        metadata: the host's InputMetadata; its arrays are replaced, not changed in place.
        model_inputs: the host's ModelInput, which carries ``seq_lens`` too.
        rows: rows of this rank's prompts.
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
    if metadata.seq_lens and dp_rank < len(metadata.seq_lens):
        _give_back(metadata, lowered, np.asarray(before), block_size, dp_rank)
        model_inputs.seq_lens = metadata.seq_lens


def drop_pool_hits(metadata: Any) -> None:
    """Leave a batch only what is on the device; for when nothing else is certain."""
    computed = metadata.computed_blocks
    metadata.remote_computed_blocks = None if computed is None else np.array(computed, dtype=np.int64)


def _give_back(
    metadata: Any, lowered: npt.NDArray[np.int64], before: npt.NDArray[np.int64], block_size: int, dp_rank: int
) -> None:
    """Add the tokens that are computed after all to this rank's lengths."""
    own = list(metadata.seq_lens[dp_rank])
    dp_ranks = metadata.batch_dp_rank_ids
    rows = [row for row in range(len(lowered)) if dp_ranks is None or dp_ranks[row] == dp_rank]
    if len(own) != len(rows):
        return
    seq_lens = list(metadata.seq_lens)
    seq_lens[dp_rank] = [
        length + int(before[row] - lowered[row]) * block_size for length, row in zip(own, rows, strict=True)
    ]
    metadata.seq_lens = seq_lens


def _counts(blocks: Any, rows: int) -> npt.NDArray[np.int64]:
    return np.zeros(rows, dtype=np.int64) if blocks is None else np.asarray(blocks, dtype=np.int64)
