"""One rank's device: the KV cache, and a model that checks every byte it attends to.

``forward`` is called by the worker's inference thread, or by ``async_forward``.  Asynchronous, it
returns at launch, as a real device does, and the device thread does the work later, in order and
as late as it can: when the next batch's inputs are ready, or ``hold_s`` after the launch for a
host that waits for this batch first.  So a host-side write that did not wait is overtaken by the
batch in flight, and the damage shows every time.
"""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mindie_kvpool_plugin.simulator.cost_clock import RankTime
from mindie_kvpool_plugin.simulator.device_job import Cell, Job, cell_of, places_of
from mindie_kvpool_plugin.simulator.model_shape import ModelShape, model_info, parallel_mapping
from mindie_kvpool_plugin.simulator.oracle import EOS_TOKEN, Ints, Oracle, Step, Words

HOLD_S = 0.002
"""Default delay before the device starts a batch nobody released: long beside a host-side copy, short beside a test."""
FAULT = "HBM MULTI BIT ECC ERROR"
"""What a failed device says: the host knows this text for one that can be repaired."""
ANNOUNCEMENT_TIMEOUT_S = 60
"""The scheduler announces a step before the workers hear of it, so waiting at all is a mistake of ours."""


class Device:
    """The simulated device of one rank.

    Attributes:
        steps: announced steps, taken by ``forward`` in order.
        mapping: parallel groups, as the host's model wrapper has them.
        model_info: sizes of the KV cache, likewise.
        computed_tokens: tokens computed in prefills, by this rank.
    """

    def __init__(
        self,
        shape: ModelShape,
        oracle: Oracle,
        *,
        block_size: int,
        rank: int = 0,
        tp: int = 1,
        cp: int = 1,
        sp: int = 1,
        dp: int = 1,
        servers: bool = False,
        asynchronous: bool = False,
        hold_s: float = HOLD_S,
        time: RankTime | None = None,
    ) -> None:
        self.steps: SimpleQueue[Step] = SimpleQueue()
        self.computed_tokens = 0
        self.mapping = parallel_mapping(rank, tp, cp, sp, dp)
        self.model_info = model_info(shape, tp)
        self.model_config = SimpleNamespace(vocab_size=shape.vocab_size, eos_token_id=EOS_TOKEN, pad_token_id=0)
        self.soc_info = SimpleNamespace(need_nz=shape.nz, is_300i=lambda: False)
        self._shape, self._oracle = shape, oracle
        self._time = time
        self._block_size, self._rank, self._tp, self._cp = block_size, rank, tp, cp
        self._group, self._num_groups, self._servers = rank // (tp * cp), dp, servers
        self._share = rank // tp % cp * sp + rank % sp  # of a sequence's blocks
        self._asynchronous, self._hold_s = asynchronous, hold_s
        self._cells: tuple[int, list[Cell]] = (0, [])
        self._jobs: deque[Job] = deque()
        self._launched = self._finished = self._prepared = 0
        self._failure: BaseException | None = None
        self._fault = ""
        self._closed = False
        self._changed = threading.Condition()
        if asynchronous:
            self._thread = threading.Thread(target=self._work, name=f"device-{rank}", daemon=True)
            self._thread.start()

    def allocate_cache(self, num_blocks: int) -> list[tuple[torch.Tensor, ...]]:
        """Fresh cache tensors [blocks, block size, heads, head size] or in the fractal layout, a tuple per layer."""
        return [
            tuple(
                torch.zeros((num_blocks, *self._shape.block_shape(self._block_size, *segment)), dtype=segment[2])
                for segment in self._shape.segments(layer, self._tp)
            )
            for layer in range(self._shape.num_layers)
        ]

    def forward(self, model_inputs: Any, npu_cache: list[tuple[torch.Tensor, ...]], **kwargs: Any) -> Any:
        """Compute a batch, or launch it; the logits are filled in once the device is synchronised."""
        lengths = np.array(model_inputs.context_length, dtype=np.int64)
        counts = np.ones_like(lengths)
        if kwargs.get("q_lens") is not None:
            counts = (self._cp if model_inputs.is_prefill else 1) * np.array(kwargs["q_lens"], np.int64)
        elif model_inputs.is_prefill:
            counts = lengths.copy()
        result = self._empty_result(counts, is_prefill=model_inputs.is_prefill)
        if kwargs.get("warmup_is_end") is False:
            return result
        step = self._next_step()
        job = Job(
            number=self._launched - 1,
            step=step,
            rows=step.rows,
            lengths=lengths,
            counts=counts,
            input_ids=np.array(model_inputs.input_ids, dtype=np.int64),
            position_ids=np.array(model_inputs.position_ids, dtype=np.int64),
            slots=np.array(model_inputs.slots, dtype=np.int64),
            tables=np.array(model_inputs.block_tables, dtype=np.int64),
            cells=self._cells_of(npu_cache),
            result=result,
        )
        job.told = getattr(model_inputs, "seq_lens", None) or []
        if getattr(model_inputs, "pad_token_count", None) is not None:
            job.set_aside(np.array(model_inputs.pad_token_count, dtype=np.int64))
        self._take_guesses(job, kwargs)
        if not self._asynchronous:
            self._run(job)
            self._finished += 1
            return result
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()
        return result

    def _empty_result(self, counts: Ints, *, is_prefill: bool) -> Any:
        """What the model will answer, not filled in yet."""
        del is_prefill
        return torch.zeros((len(counts), self._shape.vocab_size))

    def _take_guesses(self, job: Job, kwargs: dict[str, Any]) -> None:
        """For a model that guesses."""

    def restart(self) -> None:
        """The device was initialised again."""
        self._fault = ""

    def drain(self) -> None:
        """Wait for everything announced, launched or not: what follows on the device's stream comes after it.

        Raises:
            RuntimeError: a batch failed on the device.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.steps.empty() or self._failure is not None, ANNOUNCEMENT_TIMEOUT_S)
        self.synchronize()

    def _next_step(self) -> Step:
        """The announced step that is launched now; raises RuntimeError when the device has failed."""
        with self._changed:
            step = self.steps.get(timeout=ANNOUNCEMENT_TIMEOUT_S)
            if step.breaks_device:
                self._fault = FAULT
            self._launched += 1
            self._finished += bool(self._fault)
            self._changed.notify_all()
        if self._fault:
            raise RuntimeError(self._fault)
        return step

    def inputs_prepared(self) -> None:
        """Called by the host when a batch's inputs are ready: what was launched before may now run."""
        with self._changed:
            self._prepared += 1
            self._changed.notify_all()

    def synchronize(self) -> None:
        """Wait for everything launched.

        Raises:
            RuntimeError: a batch failed on the device.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._finished == self._launched or self._failure is not None)
            if self._failure is not None:
                raise RuntimeError(f"the device failed: {self._failure}") from self._failure

    def close(self) -> None:
        """End the device thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._asynchronous:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                # its own inputs were number + 1, so the next batch's are number + 2
                self._changed.wait_for(lambda: self._prepared >= job.number + 2 or self._closed, timeout=self._hold_s)  # noqa: B023
            try:
                self._run(job)
            except BaseException as error:  # noqa: BLE001 - raised again where the logits are needed
                self._failure = error
            with self._changed:
                self._finished += 1
                self._changed.notify_all()

    def _run(self, job: Job) -> None:
        step = job.step
        try:
            if not step.rows:
                self._write(job, job.slots, np.zeros(len(job.slots), dtype=np.uint64))
                return
            if self._servers:
                job.keep_own_batch(self._group)
                if step.is_prefill:  # decodes are not announced
                    step.tell(self._group, job.counts.tolist(), job.told)
            self._check_shape(job)
            if self._num_groups > 1 and not self._servers:
                self._check_told(job)
                job.keep_group(self._group, made_up_slot=job.cells[0].num_slots - self._block_size)
            if step.is_prefill:
                step.together(lambda: self._oracle.begin(step))
            self._check_inputs(job)
            self._check_context(job)
            step.together(lambda: self._judge(job))
            self._write(job, job.slots, self._new_keys(job))
            self._write(job, job.padding, np.zeros(len(job.padding), dtype=np.uint64))
            self._answer(job)
            self._take_time(job)
            self.computed_tokens += sum(
                int(count) for row, count in zip(job.rows, job.counts, strict=True) if row.is_prompt
            )
        except BaseException:
            step.abort()
            raise

    def _take_time(self, job: Job) -> None:
        if self._time is None:
            return
        if job.step.is_prefill:
            self._time.prefill(job.lengths, job.counts)
        else:
            self._time.decode(job.lengths)

    def _judge(self, job: Job) -> None:
        self._oracle.judge(job.step)

    def _answer(self, job: Job) -> None:
        for index, row in enumerate(self._answered_rows(job)):
            for token, score in job.step.next_tokens[row]:
                job.result[index, token] = score

    def _answered_rows(self, job: Job) -> list[int]:
        """Which of the step's rows the host is answered: its own where a group has a server, else all groups'."""
        rows = job.step.rows
        return [rows.index(row) for row in job.rows] if self._servers else list(range(len(rows)))

    def _check_shape(self, job: Job) -> None:
        rows, tokens = len(job.rows), int(job.counts.sum())
        if len(job.lengths) != rows or {len(job.input_ids), len(job.position_ids), len(job.slots)} != {tokens}:
            raise RuntimeError(
                f"step {job.step.number}: {rows} sequences were scheduled, the model got {len(job.lengths)} with "
                f"{tokens} tokens, {len(job.input_ids)} ids and {len(job.slots)} slots"
            )

    def _check_inputs(self, job: Job) -> None:
        size, ends = self._block_size, np.cumsum(job.counts)
        for index, row in enumerate(job.rows):
            truth = self._oracle.truth(row.sequence_id)
            span = slice(int(ends[index] - job.counts[index]), int(ends[index]))
            positions = np.arange(job.lengths[index] - job.counts[index], job.lengths[index])
            slots = places_of(row, job.tables[index], positions, size, self._share)
            length = row.end or truth.length
            if job.lengths[index] != length or job.counts[index] < 1:
                raise RuntimeError(
                    f"step {job.step.number}: sequence {row.sequence_id} has {length} tokens, the model was told "
                    f"{job.lengths[index]} with {job.counts[index]} to compute"
                )
            if not np.array_equal(job.input_ids[span], truth.tokens[positions]):
                self._oracle.note_input_error(job.step, row, "token ids")
            if not np.array_equal(job.position_ids[span], positions):
                self._oracle.note_input_error(job.step, row, "positions")
            if not np.array_equal(job.slots[span], slots):
                self._oracle.note_input_error(job.step, row, "slots")

    def _check_context(self, job: Job) -> None:
        """Compare the KV of every earlier position of every sequence with what it must be."""
        begins = job.lengths - job.counts
        total = int(begins.sum())
        if not total:
            return
        rows = np.repeat(np.arange(len(begins)), begins)
        starts = np.cumsum(begins) - begins
        positions = np.arange(total) - starts[rows]
        truths = [self._oracle.truth(row.sequence_id) for row in job.rows]
        keys = np.concatenate([truth.keys[:count] for truth, count in zip(truths, begins, strict=True)])
        if job.rows[0].owners is None:
            blocks = job.tables[rows, self._standing(job, rows, positions // self._block_size)]
            where = blocks * self._block_size + positions % self._block_size
        else:
            places = self._own_places(job, begins)
            rows, positions, keys, where = (values[places >= 0] for values in (rows, positions, keys, places))
        wrong = self._differing(job.cells, where, keys)
        if not wrong.any():
            return
        for index in np.unique(rows[wrong]).tolist():
            own = rows == index
            self._report(job, index, positions[own], where[own], wrong[own])

    def _standing(self, job: Job, rows: Ints, blocks: Ints) -> Ints:
        """Where blocks of sequences, counted by their tokens, stand in the tables."""
        for index, row in enumerate(job.rows):
            if row.places is not None:
                moved = (rows == index) & (blocks < len(row.places))
                blocks[moved] = row.places[blocks[moved]]
        return blocks

    def _own_places(self, job: Job, begins: Ints) -> Ints:
        """Where earlier positions lie on this rank; -1: on another."""
        return np.concatenate(
            [
                places_of(row, job.tables[index], np.arange(begins[index]), self._block_size, self._share)
                for index, row in enumerate(job.rows)
            ]
        )

    def _report(self, job: Job, index: int, positions: Ints, where: Ints, wrong: Any) -> None:
        truth = self._oracle.truth(job.rows[index].sequence_id)
        # what a poisoned sequence wrote itself was counted when it was poisoned
        own = truth.written[positions]
        wrong &= self._differing(job.cells, where, own) | (own == 0)
        wrong &= ~truth.reported[positions]
        if wrong.any():
            with job.step.lock:
                job.step.damage.append((job.step.rows.index(job.rows[index]), self._rank, positions[wrong]))

    def _differing(self, cells: list[Cell], where: Ints, keys: Words) -> Any:
        wrong = np.zeros(len(where), dtype=np.bool_)
        for cell in cells:
            unequal = cell.read(where) != cell.content(keys)
            if unequal.any():
                wrong |= unequal.any(axis=1)
        return wrong

    def _new_keys(self, job: Job) -> Words:
        parts = []
        for row, length, count in zip(job.rows, job.lengths.tolist(), job.counts.tolist(), strict=True):
            truth = self._oracle.truth(row.sequence_id)
            keys = truth.keys[length - count : length] ^ np.uint64(truth.poison)
            for sequence_id in row.sequence_ids:
                self._oracle.truth(sequence_id).written[length - count : length] = keys
            parts.append(keys)
        return np.concatenate(parts) if parts else np.zeros(len(job.slots), dtype=np.uint64)

    def _check_told(self, job: Job) -> None:
        """All ranks of all groups must derive the same lengths from what they were told: they meet in all-gathers."""
        step, counts = job.step, (job.counts // job.width).tolist()
        with step.lock:
            step.told = step.told or [counts, job.told]
        told = [length for lengths in job.told for length in lengths]
        # the host announces 0 for a prompt that is found as a whole, and computes its last block again
        expected = [
            0 if had == 0 and count == self._block_size else count for had, count in zip(told, counts, strict=False)
        ]
        if step.told != [counts, job.told] or told != expected or len(told) != len(counts):
            self._oracle.note_input_error(step, step.rows[0], "lengths of all groups")

    def _write(self, job: Job, slots: Ints, keys: Words) -> None:
        for cell in job.cells:
            cell.write(slots, keys)

    def _cells_of(self, npu_cache: list[tuple[torch.Tensor, ...]]) -> list[Cell]:
        if self._cells[0] != npu_cache[0][0].data_ptr():
            shard, cells = self._shape.shard(self._rank % self._tp, self._tp), []
            for layer, tensors in enumerate(npu_cache):
                for kind, tensor in enumerate(tensors):
                    place = np.uint64(((layer * 4 + kind) * 256 + shard) << 20)
                    cells.append(cell_of(tensor, place, self._shape.nz))
            self._cells = (npu_cache[0][0].data_ptr(), cells)
        return self._cells[1]
