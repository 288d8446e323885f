"""The scheduler's nouns: a sequence, a request of one or several, a batch of them, and what a batch may hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mindie_kvpool_plugin.simulator.block_manager import UNKNOWN_TOKEN, BlockTable

State = Literal["waiting", "running", "swapped", "finished", "aborted"]
BlockPair = tuple[int, int]
"""Source and destination of a copy."""
SwapDecision = tuple[int, int, int]
"""What the host's ``Generator.swap`` takes: ``SWAP_IN`` or ``SWAP_OUT``, source, destination."""

SWAP_IN, SWAP_OUT = 0, 1


@dataclass(eq=False)
class Sequence:
    """One sequence from its prompt to its answer.

    Attributes:
        sequence_id: unique in this engine.
        prompt: its tokens.
        max_tokens: length of the answer.
        adapter: its LoRA adapter.
        sample: which of its request's sequences it is; decides what it draws.
        answer: generated tokens.
        outputs: the same with placeholders for tokens on the way.
        is_over: no more tokens will come.
        table: its blocks while it has some.
        parent: whose history it goes on from, until it has blocks of its own for that.
        accessed: time stamp of its last batch.
        places: int64 [blocks], where its first blocks stand in its table; None: in the order of its tokens.
    """

    sequence_id: int
    prompt: list[int]
    max_tokens: int
    adapter: str | None = None
    sample: int = 0
    answer: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    is_over: bool = False
    table: BlockTable | None = None
    parent: Sequence | None = None
    accessed: float = -1.0
    places: Any = None

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
        """Its blocks; only a running sequence has some."""
        if self.table is None:
            raise RuntimeError(f"sequence {self.sequence_id} has no blocks")
        return self.table

    def receive(self, token: int) -> None:
        """A token has arrived: it takes its placeholder's place, if there is one."""
        if UNKNOWN_TOKEN in self.outputs:
            self.outputs[self.outputs.index(UNKNOWN_TOKEN)] = token
        else:
            self.outputs.append(token)
        self.answer.append(token)


@dataclass(eq=False)
class Request(Sequence):
    """What a client asked for: its first sequence, and with n or best_of more that branch off after the prefill.

    Attributes:
        n: answers the client wants.
        is_beam_search: they are searched in beams, which take over each other's history.
        ended_beams: answers of beams that have ended; the search goes on without them.
        children: its other sequences, ``best_of`` - 1.
        state: where it stands.
        budget: tokens a sequence may still generate, as told to the workers at its last prefill.
        copies: blocks to copy into those of new children before the next batch.
        hbm_blocks: blocks its prefills found on the device.
        pool_blocks: blocks its prefills found in the pool.
        prompt_tokens: tokens of its prefills, recomputation included.
        computed_tokens: tokens of its prompt in earlier chunks (SplitFuse); 0 before the first and after the last.
        group: the data parallel group that serves it.
        first_hits: blocks its first chunk found on the device.
    """

    n: int = 1
    is_beam_search: bool = False
    ended_beams: list[list[int]] = field(default_factory=list)
    children: list[Sequence] = field(default_factory=list)
    state: State = "waiting"
    budget: int = 0
    copies: list[BlockPair] = field(default_factory=list)
    hbm_blocks: int = 0
    pool_blocks: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    first_hits: int = 0
    group: int = 0

    @property
    def samples(self) -> list[Sequence]:
        """All its sequences, in the order of their draws."""
        return [self, *self.children]

    @property
    def live(self) -> list[Sequence]:
        """Sequences that have begun and are not over, in the order of the host's rows: the newest first."""
        begun = [child for child in reversed(self.children) if child.outputs]
        return [sequence for sequence in (*begun, self) if not sequence.is_over]

    @property
    def width(self) -> int:
        """Rows it may need in a batch."""
        return 1 + len(self.children)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A request's part in a batch that may hold decodes and prompts (SplitFuse).

    Attributes:
        start, end: the tokens it computes, or finds.
        is_prompt: a decode otherwise.
        is_last: a token comes out of it.
    """

    start: int
    end: int
    is_prompt: bool = False
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    """What runs next.

    Attributes:
        is_prefill: prompts or single tokens.
        requests: whose sequences.
        computed: per request, leading blocks on the device (prefill only); a list per rank where they are dealt out.
        promised: per request, leading blocks on the device or in the pool (prefill only), likewise.
        copies: blocks to copy before the batch runs.
        swaps: blocks to move between device and host memory before that.
        chunks: per request, its part; empty unless prompts come in chunks.
    """

    is_prefill: bool
    requests: list[Request]
    computed: list[Any]
    promised: list[Any]
    copies: list[BlockPair] = field(default_factory=list)
    swaps: list[SwapDecision] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        """Its rows."""
        return [sequence for request in self.requests for sequence in request.live]

    @property
    def parts(self) -> list[tuple[Sequence, Chunk]]:
        """Per row, its part; a request that decodes with several sequences has so many rows."""
        return [
            (sequence, chunk if chunk.is_prompt else Chunk(sequence.num_tokens - 1, sequence.num_tokens))
            for request, chunk in zip(self.requests, self.chunks, strict=True)
            for sequence in request.live
        ]


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
