"""Processes that stand still: stopped by a signal, with everything they hold."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

STOP_TIMEOUT_S = 60.0
POLL_S = 0.01


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """SIGSTOP a process of ours until the block ends; every thread of it stands still inside.

    Raises:
        TimeoutError: it does not stop.
    """
    try:
        freeze(pid)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until every thread of the process has stopped.

    Raises:
        TimeoutError: it does not stop.
    """
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while not _stands_still(pid):
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} does not stop")
        time.sleep(POLL_S)


def _stands_still(pid: int) -> bool:
    try:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread that ended just now
        return False
    return set(states) == {"T"}
