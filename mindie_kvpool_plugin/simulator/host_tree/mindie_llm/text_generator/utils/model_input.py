"""What goes into a forward and what comes out of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Any

import numpy as np


@dataclass
class ModelInput:
    input_ids: np.ndarray
    position_ids: np.ndarray
    block_tables: np.ndarray
    slots: np.ndarray
    context_length: np.ndarray
    max_seq_len: int
    prefill_head_indices: np.ndarray | None
    is_prefill: bool
    query_length: np.ndarray | None = None
    adapter_ids: list[str | None] | None = None
    dp_rank_ids: np.ndarray | None = None
    seq_lens: list[list[int]] | None = None
    sp_tokens: np.ndarray | None = None
    pad_token_count: np.ndarray | None = None


@dataclass
class SamplingMetadata:
    all_sequence_ids: np.ndarray
    is_prefill: bool
    best_of_array: np.ndarray | None = None
    reserved_sequence_ids: list[np.ndarray] | None = None
    batch_sequence_ids: list[np.ndarray] | None = None  # per request
    beam_width_array: np.ndarray | None = None  # per row; 0: not searched in beams
    cumulative_logprobs: np.ndarray | None = None
    eos_token_ids: list[int] | None = None


@dataclass
class SamplingOutput:
    sequence_ids: np.ndarray
    token_ids: np.ndarray
    num_new_tokens: np.ndarray
    parent_sequence_ids: np.ndarray
    group_indices: list[tuple[int, int]]
    repeating_indices: np.ndarray | None = None  # per row of tokens: its row of the batch
    logprobs: np.ndarray | None = None

    def of_rows(self, values):
        """Of a value per row of the batch, one per row of tokens."""
        return values if self.repeating_indices is None else values[self.repeating_indices]


@dataclass
class GenerationOutput:
    sequence_ids: np.ndarray
    token_ids: np.ndarray
    finish_reason: np.ndarray
    parent_sequence_ids: np.ndarray | None = None
    group_indices: list[tuple[int, int]] | None = None
    trace_ids: list[Any] | None = None
    num_new_tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def make_empty(cls):
        return cls(np.zeros(0, np.int64), np.zeros((0, 1), np.int64), np.zeros(0, np.int32))

    def remove(self, sequence_ids):
        keep = ~np.isin(self.sequence_ids, sequence_ids)
        self.sequence_ids = self.sequence_ids[keep]
        self.token_ids = self.token_ids[keep]
        self.finish_reason = self.finish_reason[keep]
        self.num_new_tokens = self.num_new_tokens[keep]


@dataclass
class Flight:
    """A batch between its inputs and its tokens, in asynchronous scheduling."""

    cache_ids: np.ndarray | None = None
    input_metadata: Any = None
    model_inputs: ModelInput | None = None
    model_kwargs: dict[str, Any] = field(default_factory=dict)
    sampling_metadata: SamplingMetadata | None = None
    result: Any = None
    sampling_output: SamplingOutput | None = None
    failure: BaseException | None = None
    error_code: Any = None  # of a device fault
    is_mock: bool = False  # stands for a batch that failed
    postprocess_done: Event = field(default_factory=Event)
    launched: Event = field(default_factory=Event)
