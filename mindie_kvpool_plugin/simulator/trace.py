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

from mindie_kvpool_plugin.check.messages import Refused, system_reason

TRACE_BLOCK_TOKENS = 512
MAX_HASH_ID = 1 << 63
BUNDLED_TRACE = Path(__file__).with_name("data") / "chat_trace.jsonl"
"""Made by ``make_chat_trace()`` with its defaults."""


class TraceError(Refused):
    """A file of requests cannot be replayed; the sentence names file, line and what was expected."""


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
    except UnicodeDecodeError as error:
        raise TraceError("trace.no_text", file=path) from error
    except OSError as error:
        raise TraceError("trace.unreadable", file=path, reason=system_reason(error)) from error
    requests: list[TraceRequest] = []
    for number, line in enumerate(lines, start=1):
        if len(requests) == limit:
            break
        if line.strip():
            requests.append(_parse(line, f"{path}:{number}"))
    if not requests:
        raise TraceError("trace.empty", file=path)
    return requests


def not_json(place: str, error: Exception) -> TraceError:
    """What is to be said of a line that cannot be parsed; Python's words for it stay as they are."""
    if isinstance(error, json.JSONDecodeError):
        return TraceError("trace.no_json_at", place=place, reason=error.msg, column=error.colno)
    return TraceError("trace.no_json", place=place, reason=error)


def _parse(line: str, place: str) -> TraceRequest:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise not_json(place, error) from error
    if not isinstance(values, dict):
        raise TraceError("trace.no_object", place=place, example='{"timestamp": 0, "input_length": 1024, ...}')
    timestamp, inputs, outputs = (
        _count(values, key, least, place)
        for key, least in (("timestamp", 0), ("input_length", 1), ("output_length", 1))
    )
    ids = values.get("hash_ids")
    if not isinstance(ids, list) or not all(type(name) is int and 0 <= name < MAX_HASH_ID for name in ids):
        raise TraceError("trace.odd_hash_ids", place=place, most=MAX_HASH_ID - 1)
    blocks = -(-inputs // TRACE_BLOCK_TOKENS)
    if len(ids) != blocks:
        params = {"tokens": inputs, "needed": blocks, "each": TRACE_BLOCK_TOKENS, "ids": len(ids)}
        raise TraceError("trace.other_hash_ids", place=place, **params)
    return TraceRequest(timestamp, inputs, outputs, tuple(ids))


def _count(values: dict[str, Any], key: str, least: int, place: str) -> int:
    value = values.get(key)
    if type(value) is not int or value < least:
        raise TraceError("trace.odd_number", place=place, key=key, least=least, value=json.dumps(value)[:40])
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
