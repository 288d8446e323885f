"""Recorded traffic in the format of the Mooncake traces: one JSON object per line.

``{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [..]}``: a hash id
stands for 512 prompt tokens and everything before them; equal ids are equal prefixes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRACE_BLOCK_TOKENS = 512
MAX_HASH_ID = 1 << 63
BUNDLED_TRACE = Path(__file__).with_name("data") / "chat_trace.jsonl"
"""Made by ``make_chat_trace()`` with its defaults."""


class TraceError(ValueError):
    """A trace file cannot be replayed; its text names file, line and what was expected."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One line of a trace.

    Attributes:
        timestamp: milliseconds since the start.
        input_length: prompt tokens.
        output_length: answer tokens.
        hash_ids: one per 512 prompt tokens, the last possibly not full.
    """

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """The first ``limit`` requests of a trace file.

    Raises:
        TraceError: the file cannot be read, is empty, or a line is no request.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise TraceError(f"{path}: cannot be read: {reason}") from error
    requests: list[TraceRequest] = []
    for number, line in enumerate(lines, start=1):
        if len(requests) == limit:
            break
        if line.strip():
            requests.append(_parse(line, f"{path}:{number}"))
    if not requests:
        raise TraceError(f"{path}: holds no request; expected one JSON object per line")
    return requests


def _parse(line: str, place: str) -> TraceRequest:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{place}: is not JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(values, dict):
        raise TraceError(f'{place}: expected an object such as {{"timestamp": 0, "input_length": 1024, ...}}')
    timestamp, inputs, outputs = (
        _count(values, key, least, place)
        for key, least in (("timestamp", 0), ("input_length", 1), ("output_length", 1))
    )
    ids = values.get("hash_ids")
    if not isinstance(ids, list) or not all(type(name) is int and 0 <= name < MAX_HASH_ID for name in ids):
        raise TraceError(f"{place}: hash_ids must be a list of whole numbers from 0 to {MAX_HASH_ID - 1}")
    blocks = -(-inputs // TRACE_BLOCK_TOKENS)
    if len(ids) != blocks:
        raise TraceError(
            f"{place}: {inputs} tokens need {blocks} hash_ids, one per {TRACE_BLOCK_TOKENS}, not {len(ids)}"
        )
    return TraceRequest(timestamp, inputs, outputs, tuple(ids))


def _count(values: dict[str, Any], key: str, least: int, place: str) -> int:
    value = values.get(key)
    if type(value) is not int or value < least:
        raise TraceError(f"{place}: {key} must be a whole number of at least {least}, not {json.dumps(value)}")
    return value


def make_chat_trace(sessions: int = 320, system_prompts: int = 6, seed: int = 7) -> Iterator[TraceRequest]:
    """A made-up trace of chats: shared system prompts, turns that repeat all before, pauses between turns."""
    source = random.Random(seed)
    systems = [tuple(range(first * 10, first * 10 + source.randint(2, 8))) for first in range(system_prompts)]
    next_id = system_prompts * 10
    turns: list[TraceRequest] = []
    for _ in range(sessions):
        history = source.choice(systems)
        clock = source.randrange(0, 1_200_000)
        for _ in range(source.choice((1, 1, 2, 3, 4, 6))):
            fresh = source.randint(1, 8)
            ids = history + tuple(range(next_id, next_id + fresh))
            next_id += fresh
            tokens = (len(ids) - 1) * TRACE_BLOCK_TOKENS + source.randint(1, TRACE_BLOCK_TOKENS)
            turns.append(TraceRequest(clock, tokens, source.randint(32, 640), ids))
            # the last block goes on in the next turn, so its id does not come back
            history = ids[:-1]
            clock += source.randrange(30_000, 240_000)
    yield from sorted(turns, key=lambda request: request.timestamp)


def write_trace(requests: Iterator[TraceRequest], path: Path) -> None:
    """Write a trace file."""
    lines = (
        json.dumps(
            {
                "timestamp": request.timestamp,
                "input_length": request.input_length,
                "output_length": request.output_length,
                "hash_ids": list(request.hash_ids),
            }
        )
        for request in requests
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
