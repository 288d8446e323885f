"""Page-fault memory before it is written: the first write into fresh memory is an order of magnitude slower.

The bytes stay as they are, so memory may be warmed while others write into it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mindie_kvpool_plugin.options.records import MIB

Range = tuple[int, int]
"""Addresses: from, up to."""

MAPS = Path("/proc/self/maps")
PIECE_BYTES = 256 * MIB  # of one call, which nobody can interrupt
MOST_THREADS = 8  # the kernel clears pages at several GB/s with a few
_MADV_POPULATE_WRITE = 23  # Linux 5.14
_libc = ctypes.CDLL(None, use_errno=True)


def private_memory() -> list[Range]:
    """Writable memory of this process that no file stands behind, in order."""
    found = []
    for line in MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if fields[1].startswith("rw") and fields[4] == "0":
            begin, _, end = fields[0].partition("-")
            found.append((int(begin, 16), int(end, 16)))
    return found


def added(before: list[Range], after: list[Range]) -> list[Range]:
    """The parts of ``after`` that are not in ``before``; the kernel joins neighbours, so both are cut."""
    new = []
    for begin, end in after:
        at = begin
        for known_begin, known_end in before:
            if known_end <= at or known_begin >= end:
                continue
            if known_begin > at:
                new.append((at, known_begin))
            at = max(at, known_end)
        if at < end:
            new.append((at, end))
    return new


def warm(ranges: list[Range]) -> int:
    """Page-fault all of it, with a few threads; the number of bytes.

    Raises:
        OSError: the kernel knows neither way of it, or there is not enough memory.
    """
    pieces = list(_pieces(ranges))
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "kvpool-warm") as threads:
        return sum(threads.map(_touch, pieces))


def _pieces(ranges: list[Range]) -> Iterator[Range]:
    for begin, end in ranges:
        for at in range(begin, end, PIECE_BYTES):
            yield at, min(end, at + PIECE_BYTES)


def _touch(piece: Range) -> int:
    begin, end = piece
    address, size = ctypes.c_void_p(begin), ctypes.c_size_t(end - begin)
    if _libc.madvise(address, size, _MADV_POPULATE_WRITE) != 0:
        # older kernels: locking memory faults it in, too, as far as LimitMEMLOCK reaches
        if _libc.mlock(address, size) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        _libc.munlock(address, size)
    return end - begin
