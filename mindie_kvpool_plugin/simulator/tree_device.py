"""The device of a model that is given guesses: lookahead (la) and memory decoding.

Every row of a step attends to what the mask lets it see and writes its KV to the slot it was given.  A guess next to
another one has its KV elsewhere than at its position: once it is accepted, la computes its tokens again in the next
step.  Guesses are not looked up in what was said before, since answers here never repeat themselves: the device knows
what comes next and makes guesses right as often as it is told to (``guess``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mindie_kvpool_plugin.simulator.device import Device
from mindie_kvpool_plugin.simulator.device_job import Job, places_ahead
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
    token_words,
)
from mindie_kvpool_plugin.simulator.speculation import Speculation

_ACCEPT = 0xACCE97


@dataclass(frozen=True, slots=True)
class Rows:
    """What one sequence's part of a step sees.

    Attributes:
        begin: tokens before it, which all rows see.
        sure: rows of known tokens; guesses come after them.
        keys: uint64 [rows], what their KV is made of.
    """

    begin: int
    sure: int
    keys: Words


class TreeDevice(Device):
    """A device whose steps hold guesses, synchronous only.

    Args:
        shape: the model.
        speculation: how it guesses.
        more: of ``Device``.
    """

    def __init__(self, shape: ModelShape, *args: Any, speculation: Speculation, **more: Any) -> None:
        super().__init__(shape, *args, **more)
        self._accept_rate = speculation.accept_rate

    def guess(self, sequence_id: int, count: int, branches: int = 1) -> list[list[int]]:
        """Guesses of ``count`` tokens each, next to each other, of which one may be right as far as it goes.

        A guess that is wrong from the first token on stands for the rest.  All ranks guess alike.  Nothing is guessed
        for a sequence that never began.
        """
        if not self._oracle.knows(sequence_id):
            return [[]] * branches
        truth = self._oracle.truth(sequence_id)
        right, drawn = self._continued(truth, count), scramble_int(int(truth.keys[truth.length - 1]) ^ _ACCEPT)
        accepted = 0
        while accepted < count and scramble_int(drawn + accepted) % 4096 < self._accept_rate * 4096:
            accepted += 1
        best = drawn % branches
        kept = [accepted if branch == best else 0 for branch in range(branches)]
        return [
            right[:length] + [self._other(token, branch) for token in right[length:]]
            for branch, length in enumerate(kept)
        ]

    def _continued(self, truth: SequenceTruth, count: int) -> list[int]:
        """The next tokens of a sequence."""
        total, tokens = int(truth.sums[truth.length - 1]), list[int]()
        for place in range(count):
            key = int(scramble(np.array([total], dtype=np.uint64))[0])
            tokens.append(next_token(key ^ truth.poison, self._shape.vocab_size))
            total = int(prefix_sums(np.array(tokens[-1:], dtype=np.int64), truth.length + place, total)[0])
        return tokens

    def _other(self, token: int, branch: int) -> int:
        vocab_size = self._shape.vocab_size - FIRST_TOKEN
        return FIRST_TOKEN + (token - FIRST_TOKEN + 1 + branch) % vocab_size

    def _empty_result(self, counts: Ints, *, is_prefill: bool) -> Any:
        """Logits of every row."""
        return torch.zeros((len(counts) if is_prefill else int(counts.sum()), self._shape.vocab_size))

    def _take_guesses(self, job: Job, kwargs: dict[str, Any]) -> None:
        if not job.step.is_prefill:
            job.drafts = kwargs["attn_mask"].float().numpy() > -1

    def _check_inputs(self, job: Job) -> None:
        if job.drafts is None:
            super()._check_inputs(job)
            return
        ends = np.cumsum(job.counts)
        job.drafts = [self._look(job, index, int(end - job.counts[index])) for index, end in enumerate(ends.tolist())]

    def _look(self, job: Job, index: int, first: int) -> Rows:
        """Check one sequence's rows, and find out what each of them sees."""
        row, truth, size = job.rows[index], self._oracle.truth(job.rows[index].sequence_id), self._block_size
        end, own = int(job.lengths[index]), slice(first, first + int(job.counts[index]))
        begin = end - int(job.counts[index])
        sure, ids, positions = truth.length - begin, job.input_ids[own], job.position_ids[own]
        if not 1 <= sure <= len(ids):
            raise RuntimeError(
                f"step {job.step.number}: sequence {row.sequence_id} has {truth.length} tokens, its rows stand for "
                f"{begin} to {end}"
            )
        if not np.array_equal(ids[:sure], truth.tokens[begin : truth.length]):
            self._oracle.note_input_error(job.step, row, "token ids")
        if not np.array_equal(positions[:sure], np.arange(begin, truth.length)):
            self._oracle.note_input_error(job.step, row, "positions")
        if not np.array_equal(job.slots[own], places_ahead(job.tables[index], np.arange(begin, end), size)):
            self._oracle.note_input_error(job.step, row, "slots")
        near = job.drafts[own, begin:end]
        carry = int(truth.sums[begin - 1])
        words = np.where(near, token_words(ids, positions), np.uint64(0))
        keys = scramble(words.sum(axis=1, dtype=np.uint64) + np.uint64(carry))
        if not job.drafts[own, :begin].all() or not np.array_equal(keys[:sure], truth.keys[begin : truth.length]):
            self._oracle.note_input_error(job.step, row, "mask")
        return Rows(begin, sure, keys)

    def _judge(self, job: Job) -> None:
        if job.drafts is None:
            super()._judge(job)
            return
        rows = iter(job.drafts)
        self._oracle.judge(job.step, lambda row: self._answer_row(row, next(rows)))

    def _answer_row(self, row: Row, seen: Rows) -> list[tuple[int, int]]:
        """The model's answer to every row; the truth goes on as far as rows lead there."""
        truth, known = self._oracle.truth(row.sequence_id), seen.begin + seen.sure
        found = [next_token(int(key) ^ truth.poison, self._shape.vocab_size) for key in seen.keys]
        computed = {int(key): token for key, token in zip(seen.keys, found, strict=True)}
        while (token := computed.get(int(truth.keys[truth.length - 1]))) is not None:
            truth.extend(np.array([token], dtype=np.int64))
        self._oracle.note("guesses", len(seen.keys) - seen.sure)
        self._oracle.note("accepted", truth.length - known - 1)
        self._oracle.note("computed_again", seen.sure - 1)
        return [(token, 1) for token in found]

    def _new_keys(self, job: Job) -> Words:
        if job.drafts is None:
            return super()._new_keys(job)
        parts = []
        for row, seen in zip(job.rows, job.drafts, strict=True):
            truth = self._oracle.truth(row.sequence_id)
            keys = seen.keys ^ np.uint64(truth.poison)
            end = min(seen.begin + len(keys), truth.length)
            count = end - seen.begin
            in_place = seen.keys[:count] == truth.keys[seen.begin : end]
            truth.written[seen.begin : end] = np.where(in_place, keys[:count], np.uint64(0))
            parts.append(keys)
        return np.concatenate(parts)

    def _answer(self, job: Job) -> None:
        if job.drafts is None:
            super()._answer(job)
            return
        tokens = [token for found in job.step.next_tokens for token, _ in found]
        job.result[torch.arange(len(tokens)), torch.tensor(tokens)] = 1
