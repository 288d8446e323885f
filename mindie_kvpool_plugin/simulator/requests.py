"""The scheduler's nouns: a request, a batch of them, and what a batch may hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mindie_kvpool_plugin.simulator.block_manager import BlockTable

State = Literal["waiting", "running", "finished", "aborted"]


@dataclass(eq=False)
class Request:
    """One sequence from its prompt to its answer.

    Attributes:
        sequence_id: unique in this engine.
        prompt: its tokens.
        max_tokens: length of the answer.
        adapter: its LoRA adapter.
        answer: generated tokens.
        outputs: the same with placeholders for tokens on the way.
        state: where it stands.
        budget: tokens it may still generate, as told to the workers at its last prefill.
        table: its blocks while it runs.
        hbm_blocks: blocks its prefills found on the device.
        pool_blocks: blocks its prefills found in the pool.
        prompt_tokens: tokens of its prefills, recomputation included.
    """

    sequence_id: int
    prompt: list[int]
    max_tokens: int
    adapter: str | None = None
    answer: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    state: State = "waiting"
    budget: int = 0
    table: BlockTable | None = None
    accessed: float = -1.0
    hbm_blocks: int = 0
    pool_blocks: int = 0
    prompt_tokens: int = 0

    @property
    def tokens(self) -> list[int]:
        """Everything known of it, placeholders included."""
        return self.prompt + self.outputs

    @property
    def num_tokens(self) -> int:
        """Length of ``tokens``."""
        return len(self.prompt) + len(self.outputs)

    @property
    def blocks(self) -> BlockTable:
        """Its blocks; only a running request has some."""
        if self.table is None:
            raise RuntimeError(f"request {self.sequence_id} has no blocks")
        return self.table


@dataclass(frozen=True, slots=True)
class Batch:
    """What runs next.

    Attributes:
        is_prefill: prompts or single tokens.
        requests: the sequences.
        computed: per request, leading blocks on the device (prefill only).
        promised: per request, leading blocks on the device or in the pool (prefill only).
    """

    is_prefill: bool
    requests: list[Request]
    computed: list[int]
    promised: list[int]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a batch may hold.

    Attributes:
        max_prefill_batch: sequences of a prefill.
        max_prefill_tokens: tokens of a prefill of several sequences.
        max_batch: running sequences.
    """

    max_prefill_batch: int = 4
    max_prefill_tokens: int = 4096
    max_batch: int = 16
