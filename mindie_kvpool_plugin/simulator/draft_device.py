"""The device of a model with a draft layer: multi-token prediction (mtp).

As ATB-Models does it (flash_causal_deepseekv2.py, forward_mtp and forward_mtp_decoding_v2): the last layer of npu_cache
is the draft layer's.  A prefill runs it over the prompt moved on by one token.  A decode runs it once per draft, over
the tokens the step before answered, each with the main model's hidden state of the token before; the drafts become
the main model's inputs behind the last token, and the result is (logits, hidden states, drafts).

The draft layer's KV at a position comes from the hidden state there and from the next token.  So at the end of a
block it depends on what follows the block, and behind the last token of an answer it is whatever the step left there:
that costs accepted drafts, never a token.  Hidden states do not travel between nodes (PD disaggregation): a sequence's
first decode runs the draft layer with zeros, over the last position of a prompt whose KV had come with the others.  It
is counted (``draft_checked``, ``draft_stale``) at positions that prompts
reuse, and is no corruption.  Whether a draft is right is drawn, not computed from that KV.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mindie_kvpool_plugin.simulator.device import Device
from mindie_kvpool_plugin.simulator.device_job import Cell, Job, places_ahead
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.oracle import (
    FIRST_TOKEN,
    Ints,
    Row,
    SequenceTruth,
    Words,
    next_token,
    prefix_sums,
    scramble,
    scramble_int,
)
from mindie_kvpool_plugin.simulator.speculation import Speculation

_DRAFT = np.uint64(0xD4AF7)
_ACCEPT = 0xACCE97
_TOKEN = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True, slots=True)
class DraftInputs:
    """What the draft layer is given, of every sequence of a decode.

    Attributes:
        ids, positions: int64 [sequences, 1 + drafts]; the tokens answered last, then room.
        slots: int64 [sequences, 2 * drafts], from the first of these tokens' predecessor on.
        counts: int64 [sequences], how many of the tokens are real.
        hidden: uint64 [sequences, 1 + drafts], the hidden states of their predecessors.
        known: int64 [all rows], tokens the host knows of each sequence, those of other data parallel groups included.
    """

    ids: Ints
    positions: Ints
    slots: Ints
    counts: Ints
    hidden: Words
    known: Ints

    def of(self, is_own: Any) -> DraftInputs:
        """Those of some sequences."""
        ids, positions, slots = self.ids[is_own], self.positions[is_own], self.slots[is_own]
        return DraftInputs(ids, positions, slots, self.counts[is_own], self.hidden[is_own], self.known)


@dataclass(frozen=True, slots=True)
class Try:
    """What one sequence's step guessed.

    Attributes:
        keys: uint64 [1 + drafts], of the last token and of the drafts behind it.
        drafts: the guesses.
        accepted: how many leading ones are right.
    """

    keys: Words
    drafts: list[int]
    accepted: int


class DraftDevice(Device):
    """A device whose model guesses.

    Args:
        shape: the model, without its draft layer.
        speculation: how it guesses.
        more: of ``Device``.
    """

    def __init__(self, shape: ModelShape, *args: Any, speculation: Speculation, **more: Any) -> None:
        super().__init__(shape, *args, **more)
        self._drafts, self._accept_rate = speculation.params["num_speculative_tokens"], speculation.accept_rate
        self._draft_cells: list[Cell] = []

    def allocate_cache(self, num_blocks: int) -> list[tuple[torch.Tensor, ...]]:
        """The model's cache tensors and, last, the draft layer's."""
        plain = self._shape
        self._shape = replace(plain, num_layers=plain.num_layers + 1)
        try:
            return super().allocate_cache(num_blocks)
        finally:
            self._shape = plain

    def _cells_of(self, npu_cache: list[tuple[torch.Tensor, ...]]) -> list[Cell]:
        cells = super()._cells_of(npu_cache)
        self._draft_cells = cells[-len(npu_cache[-1]) :]
        return cells[: -len(npu_cache[-1])]

    def _empty_result(self, counts: Ints, *, is_prefill: bool) -> Any:
        """Logits and hidden states of every input that answers, and the drafts."""
        rows = len(counts)
        inputs = rows if is_prefill else rows * (1 + self._drafts)
        result = torch.zeros((inputs, self._shape.vocab_size)), torch.zeros((inputs, 1), dtype=torch.int64)
        return result if is_prefill else (*result, torch.zeros(rows * self._drafts, dtype=torch.int64))

    def _take_guesses(self, job: Job, kwargs: dict[str, Any]) -> None:
        if job.step.is_prefill or not job.step.rows:
            return
        job.width = 1 + self._drafts
        given, rows = kwargs["sub_model_inputs"], len(job.lengths)
        first = np.arange(rows) * job.width
        job.drafts = DraftInputs(
            np.array(given.input_ids, dtype=np.int64).reshape(rows, job.width),
            np.array(given.position_ids, dtype=np.int64).reshape(rows, job.width),
            np.array(given.slots, dtype=np.int64).reshape(rows, 2 * self._drafts),
            np.array(given.prefill_head_indices, dtype=np.int64) - first + 1,
            kwargs["hidden_states"].numpy().reshape(rows, job.width).copy().view(np.uint64),
            job.lengths - self._drafts,
        )

    def _known(self, job: Job, index: int) -> int:
        """Tokens the host knows; the last one has no KV yet."""
        return int(job.lengths[index]) - self._drafts

    def _check_inputs(self, job: Job) -> None:
        step = job.step
        if job.drafts is None:
            super()._check_inputs(job)
            self._check_reused(job)
            return
        step.together(lambda: self._rewind(job))
        for index, row in enumerate(job.rows):
            truth, known = self._oracle.truth(row.sequence_id), self._known(job, index)
            begin, own = known - 1, slice(index * job.width, (index + 1) * job.width)
            positions = np.arange(begin, begin + job.width)
            if known != truth.length:
                raise RuntimeError(
                    f"step {step.number}: sequence {row.sequence_id} has {truth.length} tokens, "
                    f"the model was told {known}"
                )
            if job.input_ids[own][0] != truth.tokens[begin]:
                self._oracle.note_input_error(step, row, "token ids")
            if not np.array_equal(job.position_ids[own], positions):
                self._oracle.note_input_error(step, row, "positions")
            if not np.array_equal(job.slots[own], self._slots_of(job, index, positions)):
                self._oracle.note_input_error(step, row, "slots")
            if not self._are_draft_inputs_right(job, index, truth, known):
                self._oracle.note_input_error(step, row, "draft inputs")

    def _are_draft_inputs_right(self, job: Job, index: int, truth: SequenceTruth, known: int) -> bool:
        given, count = job.drafts, int(job.drafts.counts[index])
        begin = known - count
        if not 1 <= count <= job.width:
            return False
        positions = np.arange(begin - 1, begin - 1 + 2 * self._drafts)
        slots = self._slots_of(job, index, positions)
        return (
            np.array_equal(given.ids[index, :count], truth.tokens[begin:known])
            and np.array_equal(given.positions[index], np.arange(begin, begin + job.width))
            and np.array_equal(given.slots[index], slots)
            and np.array_equal(given.hidden[index, :count], _hidden_of(truth, begin - 1, known - 1))
        )

    def _slots_of(self, job: Job, index: int, positions: Ints) -> Ints:
        return places_ahead(job.tables[index], positions, self._block_size, job.rows[index], self._share)

    def _rewind(self, job: Job) -> None:
        """Sequences that have ended take part once more, and the host may have cut their last tokens off."""
        for index, row in enumerate(job.step.rows):
            self._oracle.truth(row.sequence_id).rewind(int(job.drafts.known[index]))

    def _judge(self, job: Job) -> None:
        if job.drafts is None:
            super()._judge(job)
        else:
            self._oracle.judge(job.step, lambda row: self._guess(job, row))

    def _guess(self, job: Job, row: Row) -> list[tuple[int, int]]:
        """The main model's answers to a sequence's last token and to the drafts behind it."""
        truth, vocab_size = self._oracle.truth(row.sequence_id), self._shape.vocab_size
        found, drafts, keys = list[int](), list[int](), [truth.keys[truth.length - 1]]
        total = int(truth.sums[truth.length - 1])
        for place in range(job.width):
            found.append(next_token(int(keys[place]) ^ truth.poison, vocab_size))
            if place == self._drafts:
                break
            drafts.append(self._draft(found[place], int(keys[place])))
            total = int(prefix_sums(np.array(drafts[-1:], dtype=np.int64), truth.length + place, total)[0])
            keys.append(scramble(np.array([total], dtype=np.uint64))[0])
        accepted = 0
        while accepted < self._drafts and drafts[accepted] == found[accepted]:
            accepted += 1
        job.step.tries.append(Try(np.array(keys, dtype=np.uint64) ^ np.uint64(truth.poison), drafts, accepted))
        self._oracle.note("drafts", self._drafts)
        self._oracle.note("accepted", accepted)
        truth.extend(np.array(found[: accepted + 1], dtype=np.int64))
        truth.is_pulled = False
        return [(token, 1) for token in found]

    def _draft(self, right: int, key: int) -> int:
        drawn = scramble_int(key ^ _ACCEPT)
        if drawn % 4096 < self._accept_rate * 4096:
            return right
        vocab_size = self._shape.vocab_size - FIRST_TOKEN
        return FIRST_TOKEN + (right - FIRST_TOKEN + 1 + (drawn >> 13) % (vocab_size - 1)) % vocab_size

    def _new_keys(self, job: Job) -> Words:
        if job.drafts is None:
            keys = super()._new_keys(job)
            self._draft_prompts(job)
            return keys
        tries = [job.step.tries[job.step.rows.index(row)] for row in job.rows]
        for index, (row, tried) in enumerate(zip(job.rows, tries, strict=True)):
            begin, end = self._known(job, index) - 1, self._known(job, index) + tried.accepted
            self._oracle.truth(row.sequence_id).written[begin:end] = tried.keys[: end - begin]
        if tries:
            self._run_drafts(job.drafts, [tried.drafts for tried in tries])
        return np.concatenate([tried.keys for tried in tries]) if tries else np.zeros(0, dtype=np.uint64)

    def _run_drafts(self, given: DraftInputs, drafts: list[list[int]]) -> None:
        """The draft layer, once per draft: each time over the slots one further on."""
        ids, hidden, rows = given.ids.copy(), given.hidden, np.arange(len(drafts))
        for turn in range(self._drafts):
            hidden = _draft_keys(hidden, ids)
            self._write_drafts(given.slots[:, turn : turn + ids.shape[1]].reshape(-1), hidden.reshape(-1))
            ids = np.roll(ids, -1, axis=1)
            ids[rows, given.counts - 1] = [tokens[turn] for tokens in drafts]

    def _draft_prompts(self, job: Job) -> None:
        ends = np.cumsum(job.counts)
        for index, row in enumerate(job.rows):
            truth, begin = self._oracle.truth(row.sequence_id), int(job.lengths[index] - job.counts[index])
            end = int(job.lengths[index])
            keys = _draft_keys(truth.written[begin:end], truth.tokens[begin + 1 : end + 1])
            self._write_drafts(job.slots[ends[index] - job.counts[index] : ends[index]], keys)

    def _write_drafts(self, slots: Ints, keys: Words) -> None:
        for cell in self._draft_cells:
            cell.write(slots, keys)

    def _check_reused(self, job: Job) -> None:
        """Compare the draft layer's KV that prompts reuse with what runs over their tokens leave there."""
        for index, row in enumerate(job.rows):
            truth, begin = self._oracle.truth(row.sequence_id), int(job.lengths[index] - job.counts[index])
            positions = np.arange(begin)
            inner = positions % self._block_size != self._block_size - 1
            places = self._slots_of(job, index, positions)
            inner &= places >= 0
            stale = np.ones(begin, dtype=np.bool_)
            keys = truth.keys[:begin]
            for _ in range(self._drafts):
                keys = _draft_keys(keys, truth.tokens[1 : begin + 1])
                stale &= self._differing(self._draft_cells, places, keys)
                keys = np.roll(keys, 1)
            self._oracle.note("draft_checked", int(inner.sum()))
            self._oracle.note("draft_stale", int((stale & inner).sum()))

    def _answer(self, job: Job) -> None:
        logits, hidden, step, rows = job.result[0], job.result[1], job.step, self._answered_rows(job)
        tokens = [token for row in rows for token, _ in step.next_tokens[row]]
        logits[torch.arange(len(tokens)), torch.tensor(tokens, dtype=torch.int64)] = 1
        if job.drafts is None:
            truths = [self._oracle.truth(step.rows[row].sequence_id) for row in rows]
            # the prompt's last token; the one that was just drawn stands behind it
            keys = [truth.keys[truth.length - 2] ^ np.uint64(truth.poison) for truth in truths]
        else:
            keys = [key for row in rows for key in step.tries[row].keys]
            job.result[2][:] = torch.tensor([token for row in rows for token in step.tries[row].drafts])
        hidden[: len(keys), 0] = torch.from_numpy(np.array(keys, dtype=np.uint64).view(np.int64))


def _hidden_of(truth: SequenceTruth, begin: int, end: int) -> Words:
    """The main model's hidden states that the host hands to the draft layer: zeros where another node has them."""
    return np.zeros(end - begin, dtype=np.uint64) if truth.is_pulled else truth.written[begin:end]


def _draft_keys(hidden: Words, tokens: Ints) -> Words:
    """What the draft layer's KV is made of: a hidden state and the token behind it."""
    return scramble(hidden ^ scramble(tokens.view(np.uint64) * _TOKEN) ^ _DRAFT)
