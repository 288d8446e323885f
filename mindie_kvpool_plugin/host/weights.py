"""A name for the weights a host has loaded, so that other weights never meet old blocks.

Two directories with equal configurations may hold different weights, and weights may be replaced in place.  So the
name covers, besides the files that describe the model, every weight shard: its name, its size, its head (in a
safetensors file: tensor names, dtypes, offsets) and samples of its content, spread evenly.  What is read is bounded
whatever the size: at most ``MAX_SAMPLES`` samples in all, and the head of each shard.  A change that touches less than
what lies between two samples escapes; give such a model a ``namespace`` of its own.

The directory is the one the host was started with (``model_id`` of the model configuration, seen by the hook on
``get_model_wrapper``): not every model wrapper of the host keeps it.  Ranks of a machine share the work through a file
in the temporary directory, named after every file's size and times, so a directory is read once until it changes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.observability.log import logger

SHARD_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".npz", ".npy"})
DESCRIPTIONS = ("config.json", "index.json", "_description.json")
"""Ends of the names of files that say how a model is put together and quantised."""

HEAD_BYTES = 64 * 1024
SAMPLE_BYTES = 4096
MAX_SAMPLES = 4096
MAX_SAMPLES_PER_SHARD = 256
MIN_SAMPLES_PER_SHARD = 4
READERS = 8
"""Threads: the files may lie on a disk or a network that takes a millisecond per read."""

SHARED_WAIT_S = 60.0
"""For another rank of this machine that is reading the same directory."""

Seen = tuple[tuple[str, int, int], ...]
"""Name, size and time of change of every file that is read, as one look at the directory shows them."""

_directories: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_seen: weakref.WeakKeyDictionary[Any, Seen | None] = weakref.WeakKeyDictionary()


def look(directory: Any) -> Seen | None:
    """The directory's files as they are now; None if nobody can tell."""
    try:
        states = [(path.name, path.stat()) for path in _files(Path(os.fspath(directory)))]
    except (OSError, TypeError):
        return None
    return tuple((name, state.st_size, state.st_mtime_ns) for name, state in states)


def remember(model_wrapper: Any, directory: Any, seen: Seen | None = None) -> None:
    """Note where the host read a model from; called when it has.

    Args:
        model_wrapper: the host's.
        directory: its weights'.
        seen: as of ``look``, before the host began to read.
    """
    if model_wrapper is not None and directory:
        _directories[model_wrapper] = os.fspath(directory)
        _seen[model_wrapper] = seen


def seen_before(model_wrapper: Any) -> Seen | None:
    """The files as they were before the host read them; None if nobody looked."""
    return _seen.get(model_wrapper)


def refuse_changed(directory: str, seen: Seen | None) -> None:
    """End the start of a worker whose weights are not those that lie there any more.

    Raises:
        HostCompatError: files have changed since.
    """
    changed = {name for name, _, _ in set(seen or ()) ^ set(look(directory) or ())} if seen is not None else ()
    if changed:
        raise HostCompatError(
            f"the weights in {directory} (model_id) changed while they were loaded ({', '.join(sorted(changed)[:3])}): "
            "blocks would get the name of others than those that computed them; start the service again"
        )


def directory_of(model_wrapper: Any) -> str:
    """The directory a model was read from.

    Raises:
        HostCompatError: nobody said, or it is not there.
    """
    found = _directories.get(model_wrapper) or getattr(model_wrapper, "model_id", None)
    if not found:
        raise HostCompatError(
            f"kv_pool cannot tell which weights {type(model_wrapper).__name__} has loaded (the model configuration has "
            "no model_id), so it could not keep the blocks of different weights apart; remove kv_pool from plugin_type"
        )
    directory = os.fspath(found)
    if os.path.isabs(directory) and not os.path.isdir(directory):
        raise HostCompatError(
            f"kv_pool cannot read the weight directory {directory} (model_id), expected a directory, so it could not "
            "keep the blocks of different weights apart; make it readable for the service's user"
        )
    return directory


def name_of(directory: str) -> str:
    """The name of the weights in a directory, read or taken from another rank of this machine.

    Returns:
        64 hexadecimal characters; equal for equal weights on every machine.

    Raises:
        HostCompatError: a file cannot be read.
    """
    if not os.path.isdir(directory):
        # the host itself did not load from here; blocks of one name are taken to be of one model
        logger.warning("%r is no directory on this machine: blocks are told apart by that name alone", directory)
        return hashlib.sha256(b"name\0" + directory.encode()).hexdigest()
    try:
        files = _files(Path(directory))
        with _shared(Path(directory), files) as shared:
            known = _content(shared)
            if known:
                return known
            began = time.perf_counter()
            name = _read(files)
            if shared is not None:
                os.pwrite(shared, name.encode("ascii"), 0)
    except OSError as error:
        raise HostCompatError(
            f"kv_pool cannot read the weights in {directory} (model_id): {error}; expected files the service's user "
            "can read, because their content keeps the blocks of different weights apart"
        ) from error
    num_shards = sum(path.suffix in SHARD_SUFFIXES for path in files)
    logger.info(
        "the weights in %s are named %s: %d shards looked at in %.2f s",
        directory,
        name[:12],
        num_shards,
        time.perf_counter() - began,
    )
    if not num_shards:
        logger.warning("no weight shard lies in %s: blocks are told apart by its configuration alone", directory)
    return name


def _files(directory: Path) -> list[Path]:
    return sorted(
        path
        for path in directory.iterdir()
        if path.is_file() and (path.suffix in SHARD_SUFFIXES or path.name.endswith(DESCRIPTIONS))
    )


def _read(files: list[Path]) -> str:
    shards = [path for path in files if path.suffix in SHARD_SUFFIXES]
    samples = max(MIN_SAMPLES_PER_SHARD, min(MAX_SAMPLES_PER_SHARD, MAX_SAMPLES // max(1, len(shards))))
    state = hashlib.sha256()
    for path in files:
        if path.suffix not in SHARD_SUFFIXES:
            state.update(path.name.encode() + b"\0" + path.read_bytes())
    with ThreadPoolExecutor(READERS, thread_name_prefix="kvpool-weights") as readers:
        for digest in readers.map(lambda path: _read_shard(path, samples), shards):
            state.update(digest)
    return state.hexdigest()


def _read_shard(path: Path, samples: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        state = hashlib.sha256(f"{path.name}\0{size}\0".encode())
        state.update(os.pread(descriptor, HEAD_BYTES, 0))
        last = max(0, size - SAMPLE_BYTES)
        for number in range(samples):
            state.update(os.pread(descriptor, SAMPLE_BYTES, last * (number + 1) // samples))
        return state.digest()
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _shared(directory: Path, files: list[Path]) -> Iterator[int | None]:
    """A file of our own that one rank at a time may use, or None when there can be none."""
    identity = hashlib.sha256(str(directory.resolve()).encode())
    for path in files:
        found = path.stat()
        identity.update(
            f"{path.name} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}\n".encode()
        )
    name = f"mindie-kvpool-weights-{os.getuid()}-{identity.hexdigest()[:24]}"
    descriptor = _open_own(Path(tempfile.gettempdir(), name))
    try:
        yield descriptor if descriptor is not None and _lock(descriptor) else None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open_own(path: Path) -> int | None:
    """Open or make a file that nobody else may write; None if there is something else of that name."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    found = os.fstat(descriptor)
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        os.close(descriptor)
        return None
    return descriptor


def _lock(descriptor: int) -> bool:
    deadline = time.monotonic() + SHARED_WAIT_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            return False
        else:
            return True
    return False


def _content(descriptor: int | None) -> str:
    found = os.pread(descriptor, 65, 0).decode("ascii", "replace") if descriptor is not None else ""
    return found if len(found) == 64 and set(found) <= set("0123456789abcdef") else ""
