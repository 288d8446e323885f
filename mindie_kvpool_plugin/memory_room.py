"""How much memory a process may still take on this machine, or in its container."""

from __future__ import annotations

import contextlib
from pathlib import Path

_PROC, _CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


def memory_room(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int | None:
    """Bytes: what the kernel counts as available, or less if the control group has less; None if nobody says."""
    known = [size for size in (_available(proc), _left_in_group(proc, cgroups)) if size is not None]
    return min(known) if known else None


def _available(proc: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _left_in_group(proc: Path, cgroups: Path) -> int | None:
    """Of the tightest control group (version 2) above this process."""
    left: list[int] = []
    with contextlib.suppress(OSError, StopIteration):
        lines = (proc / "self/cgroup").read_text(encoding="ascii").splitlines()
        own = next(line for line in lines if line.startswith("0::")).removeprefix("0::").strip("/")
        for folder in (cgroups / own, *(cgroups / own).parents):
            with contextlib.suppress(OSError, ValueError):
                limit = (folder / "memory.max").read_text(encoding="ascii").strip()
                used = (folder / "memory.current").read_text(encoding="ascii").strip()
                left.append(max(0, int(limit) - int(used)))
            if folder == cgroups:
                break
    return min(left) if left else None
