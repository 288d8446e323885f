"""Which blocks each running sequence has, recorded from the batches as they pass.

The host frees a sequence by its id or context handle only; its block table is in the batches.  So
every batch leaves a note per context handle: which sequence it is, the blocks it was given when they
first appeared, and where its latest block table is.  Tokens and lengths are read from the host's
context store at the moment of the free event, when they are still there.

How many leading tokens certainly have their KV in the blocks is noted, too.  As a rule all but the last one.
A beam may take over another beam's history between two batches, so of a beam only the prompt is certain.
Of a guess that ``la`` accepted, the KV lies elsewhere until the next step computes it again
(la/decoding_policy.py), so there only what a step began with is certain after it.  ``la`` also keeps the last token of
a sequence that is preempted, and feeds it after the second prefill: of such a sequence only the prompt is certain.

Step thread.  Per batch the cost is a few array operations over the batch, not over its tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Adapter, BlockIds, FreedSequence, Ground, HashedTokens, Tokens
from mindie_kvpool_plugin.host.block_share import BlockShare

Handles = npt.NDArray[np.int32]
SequenceIds = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NO_SEQUENCE = -1
NO_LIMIT = np.iinfo(np.int64).max


class SequenceTable:
    """Notes about running sequences, by context handle.

    Args:
        infer_context: the host's context store (``get_seq_lens``, ``get_all_input_ids``).
        block_size: tokens per block.
        settles_late: the tokens a step answers have their KV in place one step later (``la``).
        share: which of a sequence's blocks lie on this rank.

    Attributes:
        num_unseen: sequences that went on without having begun here, which stay out of the pool.
    """

    def __init__(
        self, infer_context: Any, block_size: int, settles_late: bool = False, share: BlockShare | None = None
    ) -> None:
        self.num_unseen = 0
        self._context = infer_context
        self._block_size = block_size
        self._settles_late = settles_late
        self._share = share or BlockShare()
        self._handle_of: dict[int, int] = {}
        self._hashed: dict[int, HashedTokens] = {}
        self._adapters: dict[int, Adapter] = {}
        self._expected: dict[int, tuple[Adapter | None, BlockIds]] = {}
        self._places: dict[int, BlockIds] = {}
        self._ground: dict[int, Ground] = {}
        self._sequence_ids = np.full(0, NO_SEQUENCE, dtype=np.int64)
        self._num_blocks = np.zeros(0, dtype=np.int64)
        self._poolable = np.zeros(0, dtype=np.bool_)
        self._certain = np.zeros(0, dtype=np.int64)
        self._limit = np.zeros(0, dtype=np.int64)
        self._newest = NO_SEQUENCE
        self._prompt_blocks = np.zeros(0, dtype=np.int64)
        self._given = np.zeros((0, 1), dtype=np.int32)
        self._latest: npt.NDArray[np.object_] = np.full(0, None, dtype=object)
        self._latest_row = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._handle_of)

    def enter(
        self,
        sequence_id: int,
        handle: int,
        table: npt.NDArray[np.int32],
        row: int,
        poolable: bool,
        certain: int | None = None,
        adapter: Adapter | None = None,
    ) -> tuple[BlockIds, BlockIds]:
        """A sequence starts (or restarts) with this row of a prefill batch's block table.

        Args:
            sequence_id: the host's id.
            handle: its place in the host's context store.
            table: int32 [batch, blocks], -1 where there is none.
            row: the sequence's row.
            poolable: its blocks may go to the pool.
            certain: leading tokens that stay as they are, whatever becomes of the rest; None: all.
            adapter: its LoRA adapter.

        Returns:
            int64 [blocks], which of its blocks lie on this rank, and int64 [blocks], where.
        """
        self._grow(handle + 1, table.shape[1])
        stale = int(self._sequence_ids[handle])
        if stale not in (NO_SEQUENCE, sequence_id):
            # the host reused the handle without a free event, as after a recovery
            self._forget(stale)
        blocks = table[row][table[row] >= 0]
        self._ground.pop(sequence_id, None)
        self._handle_of[sequence_id] = handle
        self._sequence_ids[handle] = sequence_id
        self._num_blocks[handle] = len(blocks)
        self._poolable[handle] = poolable
        self._certain[handle] = NO_LIMIT if certain is None else certain
        self._limit[handle] = int(self._context.get_seq_lens(handle)) if self._restarts(sequence_id) else NO_LIMIT
        self._prompt_blocks[handle] = num_blocks = self._blocks_of_prompt(handle, len(blocks))
        if adapter is not None:
            self._adapters[sequence_id] = adapter
        self._given[handle, : len(blocks)] = blocks
        self._latest[handle] = table
        self._latest_row[handle] = row
        return self._share.indexes(num_blocks, num_blocks)[: len(blocks)], blocks.astype(np.int64)

    def _restarts(self, sequence_id: int) -> bool:
        """Whether ``la`` may have known the sequence before: the host counts its ids up as requests arrive."""
        is_newest, self._newest = sequence_id > self._newest, max(sequence_id, self._newest)
        return self._settles_late and not is_newest

    def _blocks_of_prompt(self, handle: int, own: int) -> int:
        """Blocks of a prompt on all ranks; the host pads prompts under context parallelism, but not its lengths."""
        if self._share.size == 1:
            return own
        return -(-int(self._context.get_seq_lens(handle)) // self._block_size)

    def advance(
        self, sequence_ids: SequenceIds, handles: Handles, table: npt.NDArray[np.int32]
    ) -> tuple[BlockIds, list[tuple[int, BlockIds]]]:
        """A decode batch passes.

        Args:
            sequence_ids: int64 [batch].
            handles: int32 [batch], distinct.
            table: int32 [batch, blocks], -1 where there is none.

        Returns:
            int64 [batch], the block each sequence had last before this batch (the one it writes unless
            it got a new one), and (sequence id, new blocks) of those that got new ones.
        """
        self._grow(int(handles.max()) + 1, table.shape[1])
        strangers = self._sequence_ids[handles] != sequence_ids
        for row in np.nonzero(strangers)[0].tolist():
            # never prefilled here: pulled from a prefill node, or e.g. a beam, which stays out of the pool
            sequence_id = int(sequence_ids[row])
            adapter, places = self._expected.pop(sequence_id, (None, None))
            self.num_unseen += places is None
            self.enter(sequence_id, int(handles[row]), table, row, poolable=places is not None, adapter=adapter)
            if places is not None:
                self._places[sequence_id] = places
        rows = np.arange(len(handles))
        if self._settles_late:
            self._certain[handles] = np.minimum(self._context.get_seq_lens(handles), self._limit[handles])
        before = self._num_blocks[handles]
        current = table[rows, np.maximum(before - 1, 0)].astype(np.int64)
        column = np.minimum(before, table.shape[1] - 1)
        grown = (before < table.shape[1]) & (table[rows, column] >= 0)
        new = []
        for row in np.nonzero(grown)[0].tolist():
            handle, first = int(handles[row]), int(before[row])
            blocks = table[row, first:][table[row, first:] >= 0]
            self._given[handle, first : first + len(blocks)] = blocks
            self._num_blocks[handle] = first + len(blocks)
            new.append((int(sequence_ids[row]), blocks.astype(np.int64)))
        for row in np.nonzero(strangers)[0].tolist():
            new.append((int(sequence_ids[row]), current[row : row + 1]))
        self._latest[handles] = _boxed(table)
        self._latest_row[handles] = rows
        return current, new

    def expect(self, sequence_id: int, adapter: Adapter | None, places: BlockIds) -> None:
        """A sequence whose prompt another node has computed will decode here: its tokens name its blocks.

        Args:
            sequence_id: the host's id.
            adapter: its LoRA adapter.
            places: int64 [pulled blocks], where they stand in its table (``block_share.places``).
        """
        self._expected[sequence_id] = adapter, places

    def look(self, sequence_id: int) -> tuple[FreedSequence, Mask] | None:
        """What the sequence would leave behind now, and which blocks are still those it was given.

        The last token's KV is not in the cache yet, so of n tokens n - 1 count, and no more than are certain.
        None for a sequence that is unknown, must not be pooled, or has no full block.
        """
        handle = self._handle_of.get(sequence_id)
        if handle is None or not self._poolable[handle]:
            return None
        length = int(self._context.get_seq_lens(handle))
        table = self._latest[handle][self._latest_row[handle]]
        num_full = min(max(length - 1, 0), int(self._certain[handle])) // self._block_size
        indexes = self._share.indexes(int(self._prompt_blocks[handle]), num_full)
        indexes = indexes[: min(int(self._num_blocks[handle]), len(table))]
        if not len(indexes):
            return None
        tokens = _copied(self._context.get_all_input_ids(handle), (int(indexes[-1]) + 1) * self._block_size)
        places = np.arange(len(indexes))
        pulled = self._places.get(sequence_id, places[:0])[: len(places)]
        places[: len(pulled)] = pulled
        block_ids = table[places].astype(np.int64)
        given: Mask = self._given[handle, places] == table[places]
        hashed, adapter = self._hashed.get(sequence_id), self._adapters.get(sequence_id)
        ground = self._ground.get(sequence_id)
        return FreedSequence(sequence_id, tokens, indexes, block_ids, hashed, adapter, ground), given

    def stand(self, sequence_id: int, ground: Ground) -> None:
        """What of a sequence's prompt was on the device when the rest of it was computed."""
        self._ground[sequence_id] = ground

    def adapter(self, sequence_id: int) -> Adapter | None:
        """A sequence's LoRA adapter; None also for one that is unknown."""
        return self._adapters.get(sequence_id)

    def hashed(self, sequence_id: int) -> HashedTokens:
        """Where to note the digests of a sequence's tokens; forgotten with the sequence."""
        return self._hashed.setdefault(sequence_id, HashedTokens())

    def leave(self, sequence_id: int) -> None:
        """The host forgets the sequence."""
        handle = self._forget(sequence_id)
        if handle is not None:
            self._sequence_ids[handle] = NO_SEQUENCE
            self._latest[handle] = None

    def _forget(self, sequence_id: int) -> int | None:
        self._hashed.pop(sequence_id, None)
        self._adapters.pop(sequence_id, None)
        self._places.pop(sequence_id, None)
        self._ground.pop(sequence_id, None)
        self._expected.pop(sequence_id, None)
        return self._handle_of.pop(sequence_id, None)

    def clear(self) -> None:
        """The host forgets all sequences, those included whose blocks were pulled and that never ran here."""
        for sequence_id in [*self._handle_of, *self._expected]:
            self.leave(sequence_id)
        self._newest = NO_SEQUENCE

    def _grow(self, handles: int, blocks: int) -> None:
        """Make room; both dimensions are bounded by the host's own context store."""
        have_handles, have_blocks = self._given.shape
        if handles <= have_handles and blocks <= have_blocks:
            return
        more = max(0, max(handles, 2 * have_handles if handles > have_handles else 0) - have_handles)
        wider = max(0, max(blocks, 2 * have_blocks if blocks > have_blocks else 0) - have_blocks)
        self._given = np.pad(self._given, ((0, more), (0, wider)), constant_values=-1)
        self._sequence_ids = np.pad(self._sequence_ids, (0, more), constant_values=NO_SEQUENCE)
        self._num_blocks = np.pad(self._num_blocks, (0, more))
        self._poolable = np.pad(self._poolable, (0, more))
        self._certain = np.pad(self._certain, (0, more))
        self._limit = np.pad(self._limit, (0, more))
        self._prompt_blocks = np.pad(self._prompt_blocks, (0, more))
        self._latest = np.concatenate([self._latest, np.full(more, None, dtype=object)])
        self._latest_row = np.pad(self._latest_row, (0, more))


def _copied(tokens: Any, count: int) -> Tokens:
    """The first tokens, as they are now.

    ``tobytes`` keeps the GIL where ``copy`` and ``astype`` give it up: the spill thread would take it, and
    the step would wait for whatever that does next.
    """
    values = np.asarray(tokens)[:count]
    return np.frombuffer(values.tobytes(), dtype=values.dtype).astype(np.int64, copy=False)


def _boxed(table: npt.NDArray[np.int32]) -> npt.NDArray[np.object_]:
    """The table as one object, so that numpy stores the reference and not its elements."""
    box = np.empty(1, dtype=object)
    box[0] = table
    return box
