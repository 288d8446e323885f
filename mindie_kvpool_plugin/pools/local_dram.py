"""The embedded pool: a bounded dictionary of bytes in this process, least recently used out first.

The reference for every other backend: start a new one as a copy of this file.  Scheduler and
workers that name the same pool file share one pool, as they would share a service; so it serves
the simulator, the tests and the demo, where all of them are threads of one process.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence

from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.config.models import LocalDramOptions
from mindie_kvpool_plugin.config.pool_file import PoolFile, build
from mindie_kvpool_plugin.pools.base import PoolBackend, Role

_shared: dict[str, LocalDram] = {}
_shared_lock = threading.Lock()


def open_pool(pool_file: PoolFile, role: Role) -> LocalDram:
    """The process's pool for this pool file; made by whoever asks first."""
    del role  # both ends are the same object here
    options = build(LocalDramOptions, pool_file.backend_keys, str(pool_file.path), strict=False)
    name = os.path.realpath(pool_file.path)
    with _shared_lock:
        return _shared.setdefault(name, LocalDram(options.capacity))


def forget_pool(path: str) -> None:
    """Drop the process's pool for this pool file with all it holds."""
    with _shared_lock:
        _shared.pop(os.path.realpath(path), None)


class LocalDram(PoolBackend):
    """Objects of bytes up to a capacity.

    Attributes:
        capacity_bytes: bytes of values it may hold.
        used_bytes: bytes of values it holds.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._objects: OrderedDict[str, bytearray] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._objects)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Answer from the dictionary; asking does not make a key recent."""
        with self._lock:
            return [key in self._objects for key in keys]

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """Copy in; a key that exists becomes the most recent and keeps its bytes."""
        del groups
        with self._lock:
            return [self._put(key, row, buffers) for row, key in enumerate(keys)]

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Copy out; a key that is found becomes the most recent."""
        with self._lock:
            return [self._get(key, row, buffers) for row, key in enumerate(keys)]

    def register(self, regions: Sequence[Region]) -> None:
        """Nothing to do: memcpy reaches all of this process."""

    def close(self) -> None:
        """Nothing to do: the pool outlives its users, as a service would."""

    def _put(self, key: str, row: int, buffers: Buffers) -> bool:
        if key in self._objects:
            self._objects.move_to_end(key)
            return True
        size = buffers.block_bytes
        if size > self.capacity_bytes:
            return False
        while self.used_bytes + size > self.capacity_bytes:
            _, oldest = self._objects.popitem(last=False)
            self.used_bytes -= len(oldest)
        value = bytearray(size)
        at = ctypes.addressof(ctypes.c_char.from_buffer(value))
        for address, length in zip(buffers.addresses[row].tolist(), buffers.sizes.tolist(), strict=True):
            ctypes.memmove(at, address, length)
            at += length
        self._objects[key] = value
        self.used_bytes += size
        return True

    def _get(self, key: str, row: int, buffers: Buffers) -> bool:
        value = self._objects.get(key)
        if value is None or len(value) != buffers.block_bytes:
            return False
        self._objects.move_to_end(key)
        at = ctypes.addressof(ctypes.c_char.from_buffer(value))
        for address, length in zip(buffers.addresses[row].tolist(), buffers.sizes.tolist(), strict=True):
            ctypes.memmove(address, at, length)
            at += length
        return True
