"""Payload integrity around any backend: 16 bytes of xxh3 travel with every block and are compared on its way back.

A block and its checksum are one object of the pool: the checksum is one more segment, so nothing can
come between the two.  It covers the key, too: bytes stored under another name do not pass.  What does not
match is a get that failed, counted as ``corrupt_blocks``; the host recomputes.

Only where the processor can read the bytes, in host memory: caches that lie there, and staged transports.
A transport that moves device memory by itself (ascend, not staged) is refused at start by the worker.
The checksums lie in two arrays registered with the transport, one for puts and one for gets; each belongs
to the call that holds its lock.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.log import RateLimited
from mindie_kvpool_plugin.pools.base import NOTHING, Answers, PoolBackend, PoolWrapper

CHECKSUM_BYTES = 16
MAX_ROWS = 1024  # blocks of one call to the backend: 16 KiB of checksums


class CheckedPool(PoolWrapper):
    """A backend whose blocks carry a checksum; ``exists`` says nothing of it, it shows when a block is loaded.

    Args:
        inner: the backend.
        counters: where mismatches are counted.

    Raises:
        ConfigError: the package xxhash is missing.
    """

    def __init__(self, inner: PoolBackend, counters: Counters) -> None:
        super().__init__(inner)
        self._counters = counters
        self._new_hash = load_hash()
        self._put_sums = _Arena()
        self._get_sums = _Arena()
        self._log = RateLimited()

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """Store each block with its checksum."""

        def put_part(part: slice) -> list[bool]:
            names, rows = keys[part], buffers.take(part)
            with self._put_sums.lock:
                self._put_sums.sums[: len(names)] = self._checksums(names, rows)
                return self.inner.put(names, self._put_sums.behind(rows), groups and groups[part])

        return _in_parts(len(keys), put_part)

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Load each block with its checksum; True only if they match."""

        def get_part(part: slice) -> list[bool]:
            names, rows = keys[part], buffers.take(part)
            with self._get_sums.lock:
                answers = self.inner.get(names, self._get_sums.behind(rows))
                arrived = np.flatnonzero(np.array(answers, dtype=np.bool_))
                sums = self._checksums([names[row] for row in arrived.tolist()], rows.take(arrived))
                is_wrong = (sums != self._get_sums.sums[arrived]).any(axis=1)
            for row in arrived[is_wrong].tolist():
                answers[row] = False
            if is_wrong.any():
                self._counters.corrupt_blocks += int(is_wrong.sum())
                self._log.warning("%d blocks came back from the pool damaged; they are recomputed", is_wrong.sum())
            return answers

        return _in_parts(len(keys), get_part)

    def register(self, regions: Sequence[Region]) -> None:
        """Make the checksums' memory known, too."""
        self.inner.register([*regions, self._put_sums.region, self._get_sums.region])

    def _checksums(self, keys: Sequence[str], buffers: Buffers) -> npt.NDArray[np.uint8]:
        kinds = [ctypes.c_char * size for size in buffers.sizes.tolist()]
        digests = bytearray()
        for key, addresses in zip(keys, buffers.addresses.tolist(), strict=True):
            state = self._new_hash(key.encode())
            for kind, address in zip(kinds, addresses, strict=True):
                state.update(kind.from_address(address))
            digests += state.digest()
        return np.frombuffer(bytes(digests), dtype=np.uint8).reshape(-1, CHECKSUM_BYTES)


class _Arena:
    """Room for one call's checksums."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sums = np.zeros((MAX_ROWS, CHECKSUM_BYTES), dtype=np.uint8)
        self.region = Region(self.sums.ctypes.data, self.sums.nbytes)

    def behind(self, buffers: Buffers) -> Buffers:
        """The blocks' segments, and their checksum as the last one."""
        own = self.region.address + np.arange(len(buffers), dtype=np.int64) * CHECKSUM_BYTES
        sizes = np.append(buffers.sizes, CHECKSUM_BYTES)
        return Buffers(np.column_stack([np.asarray(buffers.addresses), own]), sizes)


def _in_parts(count: int, call: Callable[[slice], list[bool]]) -> Answers:
    """The answers of several calls as those of one."""
    answers: list[bool] = []
    trouble, elsewhere = None, NOTHING
    for at in range(0, count, MAX_ROWS):
        part = call(slice(at, min(count, at + MAX_ROWS)))
        if isinstance(part, Answers):
            trouble, elsewhere = trouble or part.trouble, elsewhere.plus(part.elsewhere.at_most(sum(part)))
        answers += part
    return Answers(answers, trouble, elsewhere=elsewhere)


def load_hash() -> Callable[[bytes], Any]:
    """The hash.

    Raises:
        ConfigError: the package xxhash is missing.
    """
    try:
        new_hash: Callable[[bytes], Any] = importlib.import_module("xxhash").xxh3_128
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"kv_pool.verify_payload is true and needs the Python package xxhash ({error}); "
            'pip install "mindie-kvpool-plugin[verify]", or remove the option'
        ) from error
    return new_hash
