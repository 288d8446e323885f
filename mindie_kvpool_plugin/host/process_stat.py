"""What the kernel tells of a process in ``/proc/<pid>/stat``."""

from __future__ import annotations

from pathlib import Path

PARENT, STARTED = 1, 19
"""Which of ``fields``: the process that started it, and when, in ticks since the machine was (fields 4 and 22)."""


def fields(pid: int) -> list[str]:
    """The fields behind its name, which may hold anything; none of a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
