"""A file of requests, of either kind; and the way back: requests as a trace, without their content."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from mindie_kvpool_plugin.check.messages import system_reason
from mindie_kvpool_plugin.planning.asked import Traffic, from_trace
from mindie_kvpool_plugin.planning.request_lines import Words, read_lines
from mindie_kvpool_plugin.simulator.trace import TRACE_BLOCK_TOKENS, TraceError, TraceRequest, read_trace, write_trace

_MARK = '"hash_ids"'


def is_trace(path: Path) -> bool:
    """Whether a file is a trace in Mooncake's format, by the key that nothing else has.

    Raises:
        TraceError: it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _MARK in "".join(itertools.islice(file, 20))
    except OSError as error:
        raise TraceError("trace.unreadable", file=path, reason=system_reason(error)) from error


def read_traffic(path: Path, block_size: int, words: Words, limit: int | None = None) -> Traffic:
    """The first ``limit`` requests of a file.

    A trace is replayed by its own blocks of 512 tokens, other requests by those of the cache.

    Raises:
        TraceError: the file cannot be read, is empty, or a line is no request.
    """
    if is_trace(path):
        return from_trace(read_trace(path, limit))
    return read_lines(path, block_size, words, limit)


def convert(path: Path, target: Path, words: Words, limit: int | None = None) -> int:
    """Write the requests of a file as a trace: lengths and hash ids, none of their content; how many they are.

    Raises:
        TraceError: as ``read_traffic``, or the file is a trace already, or is ``target``.
        OSError: ``target`` cannot be written.
    """
    if is_trace(path):
        raise TraceError("trace.already", file=path)
    if target.exists() and target.samefile(path):
        raise TraceError("trace.same_file", file=path)
    traffic = read_lines(path, TRACE_BLOCK_TOKENS, words, limit)
    write_trace(_as_trace(traffic), target)
    return len(traffic.requests)


def _as_trace(traffic: Traffic) -> Iterator[TraceRequest]:
    ids: dict[int, int] = {}
    fresh = itertools.count()
    for request in traffic.requests:
        known = [ids[name] if name in ids else ids.setdefault(name, next(fresh)) for name in request.names]
        rest = -(-request.tokens // TRACE_BLOCK_TOKENS) - len(known)
        # what does not fill a block has no name of its own
        own = [next(fresh) for _ in range(rest)]
        yield TraceRequest(request.timestamp, request.tokens, max(1, request.answer_tokens), (*known, *own))
