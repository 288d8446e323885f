"""Where the processes of this machine meet whoever asks about them: a folder per user, a Unix socket per process.

``MINDIE_KVPOOL_RUN_DIR``, else ``<temporary folder>/mindie-kvpool-<uid>``.  Nobody but its user may write in it; that
is checked on a descriptor, and everything in it is reached through the same one: what stands under a name in a
temporary folder may be somebody's trap.  A socket that refuses is a dead process's; whoever meets it removes it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "MINDIE_KVPOOL_RUN_DIR"
SUFFIX = ".sock"
MAX_NAMES = 100
"""Of one process id: containers that share a folder number their processes alike."""

_PREFIX = "mindie-kvpool-"


class RunDirectoryError(Exception):
    """The folder cannot be had, or is not to be trusted."""


def own_path() -> Path:
    """The folder of this process's user."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"{_PREFIX}{os.geteuid()}"


def all_paths() -> list[Path]:
    """The folders in which whoever runs this may ask: the one named, else their own; for root those of all users."""
    found = {own_path()}
    if os.geteuid() == 0 and not os.environ.get(VARIABLE):
        named = Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")
        found |= {path for path in named if path.name.removeprefix(_PREFIX).isdecimal()}
    return sorted(found)


@contextlib.contextmanager
def opened(path: Path, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder, made if need be, in which its user alone may write.

    Raises:
        RunDirectoryError: it cannot be had, or others may write in it.
    """
    try:
        if create:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RunDirectoryError(f"{path}: {error.strerror}") from error
    try:
        _judge(path, os.fstat(folder), create=create)
        yield folder
    finally:
        os.close(folder)


def _judge(path: Path, found: os.stat_result, *, create: bool) -> None:
    user = os.geteuid()
    if found.st_uid != user and (create or user != 0):
        raise RunDirectoryError(
            f"{path} belongs to user {found.st_uid}, expected {user}; remove it, or name another folder in {VARIABLE}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise RunDirectoryError(f"{path} has mode {mode:04o}, in which others may write; chmod 700 {path}")


def listen(folder: int, listening: socket.socket) -> str:
    """Make a new Unix socket this process's, which only its user may reach; its name in the folder.

    It is there when it is heard: until then it lies under a name that nobody asks.

    Raises:
        OSError: it cannot be done.
    """
    born = f".{os.getpid()}.new"
    remove(folder, born)
    listening.bind(_reach(folder, born))
    os.chmod(_reach(folder, born), 0o600)
    listening.listen()
    name = _free_name(folder)
    os.rename(born, name, src_dir_fd=folder, dst_dir_fd=folder)
    return name


def _free_name(folder: int) -> str:
    pid = os.getpid()
    names = [f"{pid}{SUFFIX}", *(f"{pid}-{number}{SUFFIX}" for number in range(1, MAX_NAMES))]
    return next(name for name in names if not is_heard(folder, name))


def is_heard(folder: int, name: str) -> bool:
    """Whether somebody listens there; the socket of a process that is gone is removed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(_reach(folder, name))
        except BlockingIOError:
            return True  # somebody is there and busy
        except FileNotFoundError:
            return False
        except ConnectionRefusedError:
            remove(folder, name)
            return False
    return True


def names(folder: int) -> list[str]:
    """The sockets in it, of processes alive and dead."""
    found = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if name.endswith(SUFFIX) and not name.startswith(".") and stat.S_ISSOCK(status.st_mode):
                found.append(name)
    return sorted(found)


def connect(folder: int, name: str, timeout_s: float) -> socket.socket:
    """A connection to a process.

    Raises:
        ConnectionRefusedError: it is gone; its socket is removed.
        OSError: it cannot be reached.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(_reach(folder, name))
    except ConnectionRefusedError:
        connection.close()
        remove(folder, name)
        raise
    except BaseException:
        connection.close()
        raise
    return connection


def remove(folder: int, name: str) -> None:
    """Take a socket away."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def _reach(folder: int, name: str) -> str:
    """An address that is short enough however long the folder's path is."""
    return f"/proc/self/fd/{folder}/{name}"
