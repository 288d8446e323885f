"""What was asked for: requests as chains of block names, whatever file they came from."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mindie_kvpool_plugin.simulator.trace import TRACE_BLOCK_TOKENS, TraceRequest

FIRST_UNKNOWN = -1
"""Names below 0 are answers of which the file tells only the length: nobody asks for them again."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    Attributes:
        timestamp: milliseconds since the start.
        tokens: of the prompt.
        names: of the prompt's full units, chained: equal names are equal prefixes.  Never 0.
        answer_tokens: of the answer.
        stored: names of the full units of prompt and answer whose KV is in place when the request ends: of n tokens
            n - 1 are.
    """

    timestamp: int
    tokens: int
    names: Sequence[int]
    answer_tokens: int
    stored: Sequence[int]


@dataclass(frozen=True, slots=True)
class Traffic:
    """All requests of a file.

    Attributes:
        requests: in the order of their arrival.
        unit_tokens: tokens that one name stands for.
        remarks: names of texts about what the file does not tell.
    """

    requests: list[Asked]
    unit_tokens: int
    remarks: tuple[str, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Of all requests."""
        return sum(request.tokens for request in self.requests)

    @property
    def distinct(self) -> int:
        """Units a pool would hold that forgets nothing."""
        return len({name for request in self.requests for name in request.stored})

    @property
    def repeated_tokens(self) -> int:
        """Prompt tokens that a pool which forgets nothing would answer, one request after the other."""
        seen: set[int] = set()
        found = 0
        for request in self.requests:
            found += next((i for i, name in enumerate(request.names) if name not in seen), len(request.names))
            seen.update(request.stored)
        return found * self.unit_tokens


def from_trace(trace: Iterable[TraceRequest]) -> Traffic:
    """Mooncake's format: a hash id names 512 tokens and all before them.

    The last id of a prompt may stand for fewer tokens; such a block has no name in the host, either.  What the ids do
    not tell is which later prompts contain an answer: answers take room and are never asked for.
    """
    unknown = itertools.count(FIRST_UNKNOWN, -1)
    requests = [_of_trace(request, unknown) for request in trace]
    return Traffic(requests, TRACE_BLOCK_TOKENS, ("plan.answers_unknown",))


def _of_trace(request: TraceRequest, unknown: Iterator[int]) -> Asked:
    names = [name + 1 for name in request.hash_ids[: request.input_length // TRACE_BLOCK_TOKENS]]
    kept = (request.input_length + request.output_length - 1) // TRACE_BLOCK_TOKENS
    answer = list(itertools.islice(unknown, max(0, kept - len(names))))
    stored = [*names[:kept], *answer]
    return Asked(request.timestamp, request.input_length, names, request.output_length, stored)
