"""How commands write a file that somebody named."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def write_whole(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write all or nothing: a new file beside the old one takes its name.

    A device or a pipe is written to; nothing takes its place.

    Args:
        path: what a link leads to is meant.
        data: the content.
        mode: of the file; None: that of the one that is there, or what the umask leaves.

    Raises:
        OSError: it cannot be written, with ``path`` as its file; what was there is as it was.
    """
    with named(path):
        there = path.stat() if path.exists() else None
        if there is not None and not stat.S_ISREG(there.st_mode):
            path.write_bytes(data)
            return
        if mode is None and there is not None:
            mode = stat.S_IMODE(there.st_mode)
        _replace(Path(os.path.realpath(path)), data, mode)


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if mode is not None:
                os.fchmod(handle, mode)
        os.replace(temporary, target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Errors name the file that was asked for, whatever was being done for it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def expect_folder(path: Path | None) -> None:
    """Before the work begins whose results go there.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if path is not None and not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
