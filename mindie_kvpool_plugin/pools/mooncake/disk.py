"""The SSD tier of a store: its folder, its limits, and who had it before.

What was found out on Mooncake 0.3.13: a bucket has to be well below the memory, or nothing is ever written
and a full pool refuses puts for ever; writing goes by the second (the heartbeat), 10 s by default;
``MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES`` alone bounds nothing (224 MiB were written with a limit of 64),
the bucket's own total does, and then the least recently used leave.  And a store that died is forgotten by
the master only after ``client_ttl``: with it go the keys on disk, also those that a successor has announced
meanwhile, for as long as the successor lives.  So a successor waits until its predecessor is forgotten.

In the folder: ``blocks/`` is Mooncake's; ``store.lock`` is held while a store lives; ``store.json`` is who had
the folder last, and touched every second by who has it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.records import GIB, MIB
from mindie_kvpool_plugin.pools.mooncake.limits import FORGOTTEN_S

LARGEST_BUCKET_BYTES = 256 * MIB  # Mooncake's default
SMALLEST_BUCKET_BYTES = 4 * MIB
BUCKETS_IN_MEMORY = 16  # a bucket is filled with what leaves memory before it is written
FEWEST_BUCKETS = 4  # on disk; one of them is always being replaced
STAGING_VARIABLE = "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES"
STAGING_BYTES = 5 * GIB // 4  # Mooncake's default: memory beside the pool's through which the disk is read and written
SPARE_SHARE = 0.02  # of a disk that is left alone: a full file system refuses everybody


@dataclass(frozen=True, slots=True)
class DiskTier:
    """An SSD tier as it is asked for.

    Attributes:
        folder: ours.
        size_bytes: what its files may take.
        bucket_bytes: of one file.
    """

    folder: Path
    size_bytes: int
    bucket_bytes: int

    @property
    def blocks(self) -> Path:
        """Mooncake's part of the folder."""
        return self.folder / "blocks"

    def used_bytes(self) -> int:
        """What Mooncake's files take now."""
        return _used(self.blocks)

    def set_environment(self) -> None:
        """Mooncake's settings, read by ``setup``; what the user has set stays."""
        for name, value in {
            "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": "1",
            "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES": str(self.bucket_bytes),
            "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": str(self.size_bytes),
            "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "lru",
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(self.size_bytes),
        }.items():
            os.environ.setdefault(name, value)


def staging_bytes() -> int:
    """Memory that an SSD tier takes beside the pool's."""
    try:
        return int(os.environ.get(STAGING_VARIABLE, STAGING_BYTES))
    except ValueError:
        return STAGING_BYTES


def plan(folder: Path, size_bytes: int, memory_bytes: int) -> DiskTier:
    """A tier of ``size_bytes`` behind ``memory_bytes`` of memory.  Nothing is made yet: ``Tenancy`` does that.

    Raises:
        PoolError: the folder cannot be used or made, or the disk is too small for it.
    """
    bucket = min(LARGEST_BUCKET_BYTES, max(SMALLEST_BUCKET_BYTES, memory_bytes // BUCKETS_IN_MEMORY))
    if size_bytes < FEWEST_BUCKETS * bucket:
        raise PoolError(
            f"--ssd-size is {size_bytes} bytes, but an SSD tier behind {memory_bytes} bytes of memory is written in "
            f"files of {bucket}; give at least {FEWEST_BUCKETS * bucket}, and to be of use more than the memory"
        )
    tier = DiskTier(folder.absolute(), size_bytes, bucket)
    with _usable(tier.folder):
        disk = shutil.disk_usage(_nearest(tier.folder))
    room = disk.free + _used(tier.blocks) - int(disk.total * SPARE_SHARE)
    if size_bytes > room:
        raise PoolError(
            f"--ssd-size is {size_bytes} bytes, but the file system of {folder} has room for {max(room, 0)} "
            f"({SPARE_SHARE:.0%} of it is left alone)"
        )
    return tier


def _nearest(folder: Path) -> Path:
    """The folder, or what exists of the way to it, where the rest can be made.

    Raises:
        OSError: it cannot.
    """
    for place in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(place.stat().st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
            if not os.access(place, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
            return place
    return folder


@contextlib.contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """Errors of the file system name the option."""
    try:
        yield
    except OSError as error:
        raise PoolError(f"--ssd {folder} cannot be used: {error.strerror} ({error.filename})") from error


def _used(folder: Path) -> int:
    sizes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            sizes += path.stat().st_size
    return sizes


class Tenancy:
    """That this process has the folder, and nobody else: until it is closed, or the process ends.

    Attributes:
        predecessor: name of the store that had the folder last and did not leave it properly; empty: none.
    """

    def __init__(self, tier: DiskTier) -> None:
        """Take the folder, which is made if it is missing.

        Raises:
            PoolError: it cannot be made, or another store has it.
        """
        with _usable(tier.folder):
            tier.blocks.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._record = tier.folder / "store.json"
        self._lock = _locked(tier.folder / "store.lock")
        self.predecessor, self._last_beat = self._found()

    def forgotten_in_s(self) -> float:
        """Seconds until the master has forgotten the predecessor for certain."""
        return max(0.0, min(FORGOTTEN_S, self._last_beat + FORGOTTEN_S - time.time())) if self.predecessor else 0.0

    def enter(self, name: str) -> None:
        """Note who has the folder now."""
        self._record.write_text(json.dumps({"name": name}), encoding="utf-8")

    def beat(self) -> None:
        """Still here; a few times in ``FORGOTTEN_S``."""
        with contextlib.suppress(OSError):
            os.utime(self._record)

    def leave(self) -> None:
        """The master knows of nothing here any more: a successor need not wait."""
        self._record.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.close()

    def _found(self) -> tuple[str, float]:
        try:
            name = json.loads(self._record.read_text(encoding="utf-8"))["name"]
            return str(name), self._record.stat().st_mtime
        except FileNotFoundError:
            return "", 0.0
        except (OSError, ValueError, KeyError, TypeError):
            return "?", time.time()


def _locked(path: Path) -> IO[bytes]:
    with _usable(path.parent):
        file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise PoolError(f"--ssd {path.parent}: another store has it; each needs a folder of its own") from error
    return file
