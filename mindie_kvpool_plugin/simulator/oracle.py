"""What must be in every block, and what the model must answer.

Shared by the devices of all TP ranks; they meet at the step's barrier and one of them calls what
changes state.  The KV of a position is a function of layer, segment, head shard, LoRA adapter and
every token up to that position: a block is right for exactly one prefix, as with a real model.
A sequence that attended to wrong bytes is poisoned: its own KV and its tokens are perturbed from
then on, so damage travels through HBM and pool as it would in reality.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

FIRST_TOKEN = 3  # 0 pads, 1 begins, 2 ends
EOS_TOKEN = 2
BARRIER_TIMEOUT_S = 120.0
KEPT_EVENTS = 20

_MASK = (1 << 64) - 1
_DRAW = 0x70CE5
_APART = 61  # of tokens that may follow one prefix: the host's block hash mixes neighbours up (simulator.collisions)
_TOP_SCORE = 1 << 17  # of one token; float32, in which the logits are, has every whole number up to 1 << 24
_POISON = 0x5EED5


def scramble(values: Words) -> Words:
    """A bijection of 64-bit words whose output looks random."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def scramble_int(value: int) -> int:
    """``scramble`` of one Python int."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def prefix_sums(tokens: Ints, first_position: int, carry: int) -> Words:
    """One word per position that depends on every token up to it; ``carry`` is the word before the first."""
    positions = np.arange(first_position, first_position + len(tokens), dtype=np.int64)
    sums: Words = np.cumsum(token_words(tokens, positions), dtype=np.uint64) + np.uint64(carry)
    return sums


def token_words(tokens: Ints, positions: Ints) -> Words:
    """What each token adds to the words of all positions that see it."""
    places = (positions + 1).view(np.uint64) * np.uint64(0xA0761D6478BD642F)
    return scramble(tokens.view(np.uint64) * np.uint64(0xD6E8FEB86659FD93) + places)


def adapter_salt(adapter: str | None) -> int:
    """What a LoRA adapter adds to every key; 0 without one."""
    return scramble_int(int.from_bytes((adapter or "").encode()[:8], "little"))


def next_token(key: int, vocab_size: int, sample: int = 0, eos_every: int = 0) -> int:
    """The token the model answers after the prefix named ``key``.

    Args:
        key: of the prefix.
        vocab_size: of the model.
        sample: which sequence of a request draws; after one prefix no two draw alike.
        eos_every: one token in so many ends the answer; 0: none does.
    """
    drawn = scramble_int(key ^ _DRAW)
    if eos_every and (drawn >> 32) % eos_every == 0:
        return EOS_TOKEN
    return FIRST_TOKEN + (drawn + sample * _APART) % (vocab_size - FIRST_TOKEN)


def offers(key: int, vocab_size: int, num_beams: int, eos_every: int = 0) -> list[tuple[int, int]]:
    """(token, score) of what the model offers a beam after the prefix named ``key``.

    Twice as many as there are beams, so that enough are left when some end; scores are whole numbers, since sums of
    those are the same everywhere.
    """
    tokens = [next_token(key, vocab_size, sample) for sample in range(2 * num_beams)]
    tokens[0] = next_token(key, vocab_size, 0, eos_every)
    return [(token, 1 + scramble_int(key + rank) % _TOP_SCORE) for rank, token in enumerate(tokens, 1)]


def reference_answer(
    prompt: Sequence[int],
    length: int,
    vocab_size: int,
    adapter: str | None = None,
    sample: int = 0,
    eos_every: int = 0,
) -> list[int]:
    """What an uncorrupted model answers to ``prompt``; at most ``length`` tokens, fewer if they end with EOS."""
    truth = SequenceTruth(len(prompt) + length)
    truth.restart(np.asarray(prompt, dtype=np.int64), adapter_salt(adapter))
    answer: list[int] = []
    while len(answer) < length and answer[-1:] != [EOS_TOKEN]:
        key = int(truth.keys[truth.length - 1])
        answer.append(next_token(key, vocab_size, sample, eos_every if answer else 0))
        truth.extend(np.array(answer[-1:], dtype=np.int64))
    return answer


class SequenceTruth:
    """What is known to be right about one sequence.

    Attributes:
        tokens: its tokens; ``length`` of them are known.
        keys: per position, what its KV must be made of.
        written: per position, what this sequence itself made its KV of; 0 where it wrote none.
        reported: per position, whether damage there was counted.
        poison: 0 while every byte it attended to was right.
        is_pulled: another node has computed its prompt, whose hidden states stayed there; until its first decode.
    """

    def __init__(self, capacity: int) -> None:
        self.tokens = np.zeros(capacity, dtype=np.int64)
        self.keys = np.zeros(capacity, dtype=np.uint64)
        self.written = np.zeros(capacity, dtype=np.uint64)
        self.reported = np.zeros(capacity, dtype=np.bool_)
        self.length = 0
        self.poison = 0
        self.is_pulled = False
        self.sums = np.zeros(capacity, dtype=np.uint64)  # prefix sums behind the keys
        self._salt = 0

    def fork(self) -> SequenceTruth:
        """The same for a sequence that goes on from here in its own way."""
        child = copy.copy(self)
        for name in ("tokens", "keys", "written", "reported", "sums"):
            setattr(child, name, getattr(self, name).copy())
        return child

    def restart(self, prompt: Ints, salt: int) -> None:
        """Begin again with a prompt, as a prefill does."""
        self.written[:] = 0
        self.reported[:] = False
        self.length, self.poison, self._salt = 0, 0, salt
        self.extend(prompt)

    def extend(self, tokens: Ints) -> None:
        """Add tokens that follow."""
        span = slice(self.length, self.length + len(tokens))
        carry = int(self.sums[self.length - 1]) if self.length else self._salt
        self.tokens[span] = tokens
        self.sums[span] = prefix_sums(tokens, self.length, carry)
        self.keys[span] = scramble(self.sums[span])
        self.length = span.stop

    def rewind(self, length: int) -> None:
        """The host took fewer tokens than it was given."""
        self.length = min(self.length, length)


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of a step.

    Attributes:
        sequence_id: the host's id.
        prompt: its tokens if this step prefills it.
        adapter: its LoRA adapter.
        sample: which of its request's sequences it is.
        children: the request's other sequences, which branch off in this step.
        eos_every: one token in so many ends it; not the first of an answer.
        end: tokens of its prompt that are computed after this step; 0: all of them (a decode, a whole prompt).
        group: the data parallel group whose ranks compute it.
        owners: the rank that holds each of its blocks, where they are dealt out to several.
        places: where its first blocks stand in its table, if not in the order of its tokens.
        is_last: its next token comes out of this step; else it is a chunk of a prompt, and more follow.
        num_beams: beams its request is searched in; which tokens go on is known when all beams were compared.
    """

    sequence_id: int
    prompt: Ints | None = None
    adapter: str | None = None
    sample: int = 0
    children: tuple[int, ...] = ()
    eos_every: int = 0
    end: int = 0
    group: int = 0
    owners: Ints | None = None
    places: Ints | None = None
    is_last: bool = True
    num_beams: int = 0

    @property
    def is_prompt(self) -> bool:
        """A prompt or a part of one; a decode otherwise."""
        return self.prompt is not None or self.end > 0

    @property
    def sequence_ids(self) -> tuple[int, ...]:
        """Whose tokens come out of it."""
        return (self.sequence_id, *self.children)


@dataclass
class Step:
    """What the scheduler knows about one batch, announced to the device of every rank in launch order.

    Attributes:
        number: counts all steps.
        is_prefill: whether rows are prompts.
        rows: the sequences, empty in a dummy batch.
        ranks: devices that take part.
        forget: sequences that neither this step nor a later one will name.
        breaks_device: the devices fail at its launch, and from then on until they are initialised again.
    """

    number: int
    is_prefill: bool
    rows: list[Row]
    ranks: int = 1
    forget: list[int] = field(default_factory=list)
    breaks_device: bool = False

    def __post_init__(self) -> None:
        self.next_tokens: list[list[tuple[int, int]]] = []  # per row, with the scores by which the sampler ranks them
        self.damage: list[tuple[int, int, Ints]] = []
        self.told: list[Any] = []  # what the first rank was told of all rows' lengths
        self.tries: list[Any] = []  # per row, what a speculative step guessed and found
        self.computed: dict[int, list[int]] = {}  # by group with a batch of its own: what its rows compute
        self.announced: list[list[list[int]]] = []  # what each of their ranks was told of all groups
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(self.ranks) if self.ranks > 1 else None

    def tell(self, group: int, computed: list[int], announced: list[list[int]]) -> None:
        """A rank that runs its own group's batch: what its rows compute, and what it was told of all groups' rows."""
        with self.lock:
            self.computed[group] = computed
            self.announced.append(announced)

    def together(self, action: Callable[[], None]) -> None:
        """All ranks meet, as in an all-reduce, and one of them runs ``action``."""
        if self.barrier is None:
            action()
            return
        if self.barrier.wait(BARRIER_TIMEOUT_S) == 0:
            action()
        self.barrier.wait(BARRIER_TIMEOUT_S)

    def abort(self) -> None:
        """Let ranks that wait here fail instead of waiting for one that failed."""
        if self.barrier is not None:
            self.barrier.abort()


class Oracle:
    """The truth about all sequences, and the record of everything that was not true.

    Attributes:
        corruptions: positions whose KV was wrong when a sequence attended to it, per rank, each counted once.
        input_errors: rows of a step whose token ids, positions or slots were wrong.
        counts: what speculative steps did and found (``simulator.draft_device``).
        events: the first few findings, in words.
    """

    def __init__(self, capacity: int, vocab_size: int) -> None:
        self.corruptions = 0
        self.input_errors = 0
        self.counts: Counter[str] = Counter()
        self.events: list[str] = []
        self._capacity = capacity
        self._vocab_size = vocab_size
        self._truths: dict[int, SequenceTruth] = {}
        self._lock = threading.Lock()

    def truth(self, sequence_id: int) -> SequenceTruth:
        """What is right for one sequence."""
        return self._truths[sequence_id]

    def knows(self, sequence_id: int) -> bool:
        """Whether a sequence has begun; the host's warm-up never does."""
        return sequence_id in self._truths

    def begin(self, step: Step) -> None:
        """Take the prompts of a prefill for the truth.  One rank calls it."""
        for row in step.rows:
            if row.prompt is not None:
                truth = self._truths.setdefault(row.sequence_id, SequenceTruth(self._capacity))
                truth.restart(row.prompt, adapter_salt(row.adapter))

    def hand_over(self, sequence_id: int, successor: int) -> None:
        """Another node's sequence goes on where this one is."""
        self._truths[successor] = self._truths[sequence_id].fork()
        self._truths[successor].is_pulled = True

    def note(self, what: str, count: int) -> None:
        """Count something by name."""
        with self._lock:
            self.counts[what] += count

    def note_input_error(self, step: Step, row: Row, what: str) -> None:
        """Count a row that was given wrong inputs."""
        with self._lock:
            self.input_errors += 1
            self._tell(f"step {step.number}: sequence {row.sequence_id} was given wrong {what}")

    def judge(self, step: Step, draw: Callable[[Row], list[tuple[int, int]]] | None = None) -> None:
        """Count the damage all ranks found, poison those who attended to it, decide the next tokens, forget.

        One rank calls it, after all have checked and before any writes.

        Args:
            step: the batch.
            draw: decides a row's tokens, if not one per sequence is drawn.
        """
        computed = [step.computed[group] for group in sorted(step.computed)]
        for told in step.announced:
            if told != computed:
                self.note_input_error(step, step.rows[0], "lengths of other groups")
        with self._lock:  # two nodes judge at once
            for index, rank, positions in step.damage:
                self._count(step, step.rows[index], rank, positions)
        for row in step.rows:
            step.next_tokens.append(draw(row) if draw else self._draw(row))
        for sequence_id in step.forget:
            self._truths.pop(sequence_id, None)

    def branch(self, step: Step, samples: Iterable[tuple[int, int, int]]) -> None:
        """The workers have compared all beams: which go on from whose history, as (id, id of the parent, token)."""
        searched = {row.sequence_id: self._truths[row.sequence_id] for row in step.rows if row.num_beams}
        for sequence_id, parent, token in samples:
            if sequence_id >= 0 and parent in searched:
                self._truths[sequence_id] = searched[parent].fork()
                self._truths[sequence_id].extend(np.array([token], dtype=np.int64))

    def _count(self, step: Step, row: Row, rank: int, positions: Ints) -> None:
        truth = self._truths[row.sequence_id]
        self.corruptions += len(positions)
        truth.reported[positions] = True
        truth.poison = scramble_int(int(truth.keys[positions[0]]) ^ _POISON ^ truth.poison) | 1
        phase = "prefill" if step.is_prefill else "decode"
        self._tell(
            f"step {step.number} ({phase}): sequence {row.sequence_id} attended to {len(positions)} wrong "
            f"positions from {int(positions[0])} on, rank {rank}"
        )

    def _draw(self, row: Row) -> list[tuple[int, int]]:
        truth = self._truths[row.sequence_id]
        for child in row.children:
            self._truths[child] = truth.fork()
        key = int(truth.keys[truth.length - 1]) ^ truth.poison
        if row.num_beams:
            return offers(key, self._vocab_size, row.num_beams, row.eos_every)
        tokens = list[tuple[int, int]]()
        for sample, sequence_id in enumerate(row.sequence_ids, row.sample):
            token = next_token(key, self._vocab_size, sample, row.eos_every)
            tokens.append((token, len(row.sequence_ids) - len(tokens)))
            if row.is_last:
                self._truths[sequence_id].extend(np.array([token], dtype=np.int64))
        return tokens

    def _tell(self, event: str) -> None:
        if len(self.events) < KEPT_EVENTS:
            self.events.append(event)
