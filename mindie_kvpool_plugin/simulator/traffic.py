"""What users send: chats of several turns, few-shot prompts, and recorded traces.

A ``Traffic`` is a queue of prompts.  A chat adds the next turn when the one before was answered, so
its prompts contain the model's own answers.  Tokens depend on the seed and on who speaks, never on
the order in which requests finish: the same traffic meets every engine.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mindie_kvpool_plugin.simulator.oracle import FIRST_TOKEN, scramble
from mindie_kvpool_plugin.simulator.trace import TRACE_BLOCK_TOKENS, TraceRequest


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request.

    Attributes:
        tokens: the prompt.
        answer_length: tokens the model is asked for.
        speaker: whose turn it is.
        turn: which turn of the speaker, from 0.
        samples: answers asked for (n); a chat goes on with the first.
        adapter: its LoRA adapter.
        beams: the answers are searched in beams.
        at_s: seconds since the start at which it is sent, where somebody keeps the time.
        is_after_answer: these are seconds after the answer that made it.
    """

    tokens: Sequence[int]
    answer_length: int
    speaker: int = 0
    turn: int = 0
    samples: int = 1
    adapter: str | None = None
    beams: bool = False
    at_s: float = 0.0
    is_after_answer: bool = False


class Traffic:
    """Prompts in the order in which they are sent.

    Attributes:
        ready: prompts that may be sent now.
    """

    def __init__(self, prompts: Iterable[Prompt]) -> None:
        self.ready = deque(prompts)

    def answered(self, prompt: Prompt, answer: Sequence[int]) -> None:
        """A prompt was answered: a chat may go on."""


class Chat(Traffic):
    """Speakers that share a system prompt and come back with everything said so far.

    Args:
        speakers: how many.
        turns: of each speaker.
        system_tokens: tokens all of them begin with.
        turn_tokens: tokens a speaker adds per turn, about.
        answer_tokens: tokens the model is asked for.
        vocab_size: of the model.
        seed: of all tokens.
        sampled: share of the requests that ask for several answers.
        samples: how many these ask for.
        beams: share of these that has them searched in beams.
        adapters: LoRA adapters; speakers take turns in using one of them or none.
        begin_s: seconds over which the speakers begin, evenly at random.
        think_s: seconds from an answer to the next turn, on average.
    """

    def __init__(
        self,
        speakers: int = 8,
        turns: int = 4,
        *,
        system_tokens: int = 70,
        turn_tokens: int = 40,
        answer_tokens: int = 24,
        vocab_size: int = 1024,
        seed: int = 0,
        sampled: float = 0.0,
        samples: int = 2,
        beams: float = 0.0,
        adapters: int = 0,
        begin_s: float = 0.0,
        think_s: float = 0.0,
    ) -> None:
        self._begin_s, self._think_s = begin_s, think_s
        self._sampled, self._samples, self._beams, self._adapters = sampled, samples, beams, adapters
        self._turns, self._turn_tokens, self._answer_tokens = turns, turn_tokens, answer_tokens
        self._vocab_size, self._seed = vocab_size, seed
        system = _tokens(random.Random(f"{seed} system"), system_tokens, vocab_size)
        super().__init__(self._prompt(speaker, 0, system) for speaker in range(speakers))

    def answered(self, prompt: Prompt, answer: Sequence[int]) -> None:
        """The speaker's next turn: all before, the answer, and something new."""
        if prompt.turn + 1 < self._turns:
            self.ready.append(self._prompt(prompt.speaker, prompt.turn + 1, [*prompt.tokens, *answer]))

    def _prompt(self, speaker: int, turn: int, history: list[int]) -> Prompt:
        source = random.Random(f"{self._seed} {speaker} {turn}")
        said = _tokens(source, self._turn_tokens + source.randint(-5, 5), self._vocab_size)
        samples = self._samples if source.random() < self._sampled else 1
        adapter = f"adapter-{number}" if (number := speaker % (self._adapters + 1)) else None
        beams = samples > 1 and source.random() < self._beams
        # drawn last, so that the tokens are the same whoever keeps the time
        at_s = min(source.expovariate(1.0), 4.0) * self._think_s if turn else source.random() * self._begin_s
        return Prompt(history + said, self._answer_tokens, speaker, turn, samples, adapter, beams, at_s, turn > 0)


def few_shot(
    requests: int = 64,
    *,
    examples: int = 4,
    example_tokens: int = 160,
    question_tokens: int = 30,
    answer_tokens: int = 8,
    vocab_size: int = 1024,
    seed: int = 0,
    sampled: float = 0.0,
    samples: int = 2,
) -> Traffic:
    """Questions, each after one of a few long sets of examples; a share of them asks for several answers."""
    source, draws = random.Random(f"{seed} few-shot"), random.Random(f"{seed} samples")
    sets = [_tokens(source, example_tokens, vocab_size) for _ in range(examples)]
    return Traffic(
        Prompt(
            source.choice(sets) + _tokens(source, question_tokens, vocab_size),
            answer_tokens,
            speaker,
            samples=samples if draws.random() < sampled else 1,
        )
        for speaker in range(requests)
    )


def replay(
    trace: Iterable[TraceRequest], *, block_size: int = 16, vocab_size: int = 1024, seed: int = 0, slower: float = 1.0
) -> Traffic:
    """A recorded trace, scaled: one trace block of 512 tokens becomes one cache block.

    Args:
        trace: its requests.
        block_size: tokens of a cache block.
        vocab_size: of the model.
        seed: of all tokens.
        slower: what its times are multiplied by.
    """
    return Traffic(
        Prompt(
            _trace_tokens(request, block_size, vocab_size, seed),
            max(1, round(request.output_length * block_size / TRACE_BLOCK_TOKENS)),
            speaker,
            at_s=request.timestamp / 1000 * slower,
        )
        for speaker, request in enumerate(trace)
    )


def _trace_tokens(request: TraceRequest, block_size: int, vocab_size: int, seed: int) -> list[int]:
    """The same tokens for the same hash id, wherever it occurs."""
    ids = np.array(request.hash_ids, dtype=np.uint64)[:, None]
    salt = np.uint64(seed * 0x9E3779B97F4A7C15 & (1 << 64) - 1)
    noise = scramble((ids * np.uint64(1 << 20) + np.arange(block_size, dtype=np.uint64)) ^ salt)
    tokens = noise % np.uint64(vocab_size - FIRST_TOKEN) + np.uint64(FIRST_TOKEN)
    length = max(1, round(request.input_length * block_size / TRACE_BLOCK_TOKENS))
    whole: list[int] = tokens.reshape(-1)[:length].astype(np.int64).tolist()
    return whole


def _tokens(source: random.Random, count: int, vocab_size: int) -> list[int]:
    return [source.randrange(FIRST_TOKEN, vocab_size) for _ in range(count)]
