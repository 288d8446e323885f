"""A batch as one rank's device is given it, and where in the cache its positions lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mindie_kvpool_plugin.simulator.oracle import Ints, Row, Step, Words, scramble


@dataclass(frozen=True, slots=True)
class Cell:
    """One tensor of one layer, as 64-bit words [blocks, slots, words], and what turns a key into its words.

    In the fractal layout (NZ) a slot's words lie 32 bytes here and 32 there: [blocks, slots, pieces, 4].
    """

    words: Words
    factor: Words
    offset: Words

    @property
    def num_slots(self) -> int:
        """Slots of all blocks."""
        return int(self.words.shape[0]) * int(self.words.shape[1])

    def content(self, keys: Words) -> Words:
        """What must be there for these keys, [keys, words]."""
        wanted: Words = keys[:, None] * self.factor + self.offset
        return wanted

    def read(self, slots: Ints) -> Words:
        """What is there, [slots, words]."""
        size = self.words.shape[1]
        found: Words = self.words[slots // size, slots % size].reshape(len(slots), len(self.factor))
        return found

    def write(self, slots: Ints, keys: Words) -> None:
        """Write what these keys make; nothing where a slot is negative."""
        real, size = slots >= 0, self.words.shape[1]
        content = self.content(keys[real]).reshape(-1, *self.words.shape[2:])
        self.words[slots[real] // size, slots[real] % size] = content


@dataclass(slots=True)
class Job:
    """A launched batch: copies of its inputs, and where its logits go."""

    number: int
    step: Step
    rows: list[Row]  # those that this rank computes
    lengths: Ints
    counts: Ints
    input_ids: Ints
    position_ids: Ints
    slots: Ints
    tables: Ints
    cells: list[Cell]
    result: Any  # what the model answers: logits, with drafts and hidden states where there are some
    told: list[list[int]] = field(default_factory=list)  # the host's lengths of all groups' rows
    width: int = 1  # tokens of a decoding sequence
    drafts: Any = None  # inputs of the draft layer
    padding: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # slots of padded positions

    def set_aside(self, padding: Ints) -> None:
        """Take padded positions at the end of prompts out; what is written there is nobody's KV."""
        ends = np.cumsum(self.counts)
        is_real = np.ones(len(self.slots), dtype=np.bool_)
        for end, count in zip(ends.tolist(), padding.tolist(), strict=True):
            is_real[end - count : end] = False
        self.padding = self.slots[~is_real]
        self._keep_tokens(is_real)
        self.lengths, self.counts = self.lengths - padding, self.counts - padding

    def keep_group(self, group: int, made_up_slot: int) -> None:
        """Keep the rows of a data parallel group; one without rows computes a made-up token."""
        is_own = np.array([row.group == group for row in self.step.rows])
        if self.drafts is not None:
            self.drafts = self.drafts.of(is_own)
        self._keep_tokens(np.repeat(is_own, self.counts))
        self.rows = [row for row in self.step.rows if row.group == group]
        self.lengths, self.counts, self.tables = self.lengths[is_own], self.counts[is_own], self.tables[is_own]
        if not self.rows:
            self.padding = np.array([made_up_slot])

    def keep_own_batch(self, group: int) -> None:
        """Keep the rows of a data parallel group, whose batch this is; a dummy one computes a made-up token."""
        self.rows = [row for row in self.step.rows if row.group == group]
        if not self.rows:
            self.padding = self.slots
            self._keep_tokens(np.zeros(len(self.slots), dtype=np.bool_))
            self.lengths, self.counts, self.tables = self.lengths[:0], self.counts[:0], self.tables[:0]

    def _keep_tokens(self, kept: npt.NDArray[np.bool_]) -> None:
        self.input_ids, self.position_ids, self.slots = (
            values[kept] for values in (self.input_ids, self.position_ids, self.slots)
        )


def places_of(row: Row, table: Ints, positions: Ints, block_size: int, share: int) -> Ints:
    """Where positions lie by a rank's block table; -1: on another rank."""
    blocks = positions // block_size
    if row.owners is None:
        return table[blocks] * block_size + positions % block_size
    is_own = row.owners == share
    # its own blocks stand one after the other in its table
    places = np.cumsum(is_own) - 1
    where = np.full(len(positions), -1, dtype=np.int64)
    own = is_own[blocks]
    where[own] = table[places[blocks[own]]] * block_size + positions[own] % block_size
    return where


def places_ahead(table: Ints, positions: Ints, block_size: int, row: Row | None = None, share: int = 0) -> Ints:
    """Where positions lie, beyond a sequence's tokens too; nowhere, which no input may be, is -1.

    Of a sequence whose blocks are dealt out -1 is another rank, and -2 nowhere.
    """
    blocks = positions // block_size
    if row is not None and row.owners is not None:
        known = blocks < len(row.owners)
        where = np.full(len(positions), -2, dtype=np.int64)
        where[known] = places_of(row, table, positions[known], block_size, share)
        return where
    block_ids = np.where(blocks < len(table), table[np.minimum(blocks, len(table) - 1)], -1)
    return np.where(block_ids < 0, -1, block_ids * block_size + positions % block_size)


def cell_of(tensor: torch.Tensor, place: np.uint64, is_nz: bool = False) -> Cell:
    """One tensor; ``place`` tells layer, segment and head shard."""
    words = (
        tensor.view(torch.int8).numpy().view(np.uint64)
    )  # [blocks, slots, heads, words] or, NZ, [blocks, pieces, slots, 4]
    words = words.swapaxes(1, 2) if is_nz else words.reshape(*words.shape[:2], -1)
    count = int(np.prod(words.shape[2:]))
    noise = scramble(np.arange(2 * count, dtype=np.uint64) + place + np.uint64(1))
    return Cell(words, noise[:count] | np.uint64(1), noise[count:])
