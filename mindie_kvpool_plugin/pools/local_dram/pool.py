"""The embedded pool: values in this process's memory up to a capacity, least recently used out first.

The reference for every other backend: start a new one as a copy of this file.  Scheduler and
workers that name the same pool file share one pool, as they would share a service; so it serves
the simulator, the tests and the demo, where all of them are threads of one process.

The lock guards names, order and slots, never a copy: a value is copied in before it gets its name, and
its slot is not given to another value while somebody copies it out.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.native import native
from mindie_kvpool_plugin.options.pool_file import PoolFile
from mindie_kvpool_plugin.options.records import LocalDramOptions
from mindie_kvpool_plugin.pools.base import Answers, PoolBackend, Role
from mindie_kvpool_plugin.pools.local_dram.slabs import Slabs, Slot

SMALL_BYTES = 1024  # an alias has 16 bytes; such values are not worth a slab

_shared: dict[str, LocalDram] = {}
_shared_lock = threading.Lock()


def open_pool(options: LocalDramOptions, pool_file: PoolFile, role: Role) -> LocalDram:
    """The process's pool for this pool file; made by whoever asks first."""
    del role  # both ends are the same object here
    name = os.path.realpath(pool_file.path)
    with _shared_lock:
        return _shared.setdefault(name, LocalDram(options.capacity, huge_pages=options.huge_pages))


def forget_pool(path: str) -> None:
    """Drop the process's pool for this pool file with all it holds."""
    with _shared_lock:
        _shared.pop(os.path.realpath(path), None)


def pool_of(path: str) -> LocalDram:
    """The process's pool for this pool file, for tests that look into it.

    Raises:
        KeyError: nobody has opened it.
    """
    with _shared_lock:
        return _shared[os.path.realpath(path)]


class _Value:
    """Bytes under a key.

    Attributes:
        address, size: where they are.
        home: what owns the memory.
        readers: gets that copy it now.
        is_dropped: it has no name any more; its last reader gives the memory back.
    """

    __slots__ = ("address", "home", "is_dropped", "readers", "size")

    def __init__(self, address: int, size: int, home: Slot | ctypes.Array[ctypes.c_char]) -> None:
        self.address = address
        self.size = size
        self.home = home
        self.readers = 0
        self.is_dropped = False


class LocalDram(PoolBackend):
    """Objects of bytes up to a capacity.

    Attributes:
        capacity_bytes: bytes of values it may hold.
        used_bytes: bytes of values it holds.
    """

    def __init__(self, capacity_bytes: int, *, huge_pages: bool = True) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._objects: OrderedDict[str, _Value] = OrderedDict()
        self._incoming: set[str] = set()
        self._slabs = Slabs(capacity_bytes, huge_pages)
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
        size = buffers.block_bytes
        stored = [True] * len(keys)
        new: dict[int, _Value] = {}
        with self._lock:
            for row, key in enumerate(keys):
                if key in self._objects:
                    self._objects.move_to_end(key)
                elif key not in self._incoming:
                    value = self._make_room(size)
                    if value is None:
                        stored[row] = False
                    else:
                        new[row] = value
                        self._incoming.add(key)
        if new:
            _copy(new, buffers, is_put=True)
            with self._lock:
                for row, value in new.items():
                    self._objects[keys[row]] = value
                    self._incoming.discard(keys[row])
        return Answers(stored, codes=["no_space"] * stored.count(False))

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Copy out; a key that is found becomes the most recent."""
        size = buffers.block_bytes
        found: dict[int, _Value] = {}
        with self._lock:
            for row, key in enumerate(keys):
                value = self._objects.get(key)
                if value is not None and value.size == size:
                    self._objects.move_to_end(key)
                    value.readers += 1
                    found[row] = value
        if found:
            _copy(found, buffers, is_put=False)
            with self._lock:
                for value in found.values():
                    value.readers -= 1
                    if value.is_dropped and not value.readers:
                        self._give_back(value)
        answers = [row in found for row in range(len(keys))]
        return Answers(answers, codes=["not_found"] * answers.count(False))

    def register(self, regions: Sequence[Region]) -> None:
        """Nothing to do: memcpy reaches all of this process."""

    def close(self) -> None:
        """Nothing to do: the pool outlives its users, as a service would."""

    # -- for tests -------------------------------------------------------------------------------------

    def keys(self) -> list[str]:
        """All names, the least recently used first."""
        with self._lock:
            return list(self._objects)

    def value(self, key: str) -> memoryview:
        """The bytes under a name, writable, valid until the next put.

        Raises:
            KeyError: there is no such name.
        """
        with self._lock:
            value = self._objects[key]
            return memoryview((ctypes.c_char * value.size).from_address(value.address)).cast("B")

    def remove(self, key: str) -> None:
        """Lose a value, as a pool may at any time; nothing happens if it is not there."""
        with self._lock:
            value = self._objects.pop(key, None)
            if value is not None:
                self._drop(value)

    # -- with the lock held ----------------------------------------------------------------------------

    def _make_room(self, size: int) -> _Value | None:
        """Memory for a value; the oldest values make way.  None if it cannot fit."""
        if size > self.capacity_bytes:
            return None
        while self.used_bytes + size > self.capacity_bytes:
            if not self._drop_oldest():
                return None
        value = self._allocate(size)
        while value is None and self._drop_oldest():
            # the free slots have other sizes
            value = self._allocate(size)
        if value is not None:
            self.used_bytes += size
        return value

    def _allocate(self, size: int) -> _Value | None:
        if size <= SMALL_BYTES:
            memory = ctypes.create_string_buffer(size)
            return _Value(ctypes.addressof(memory), size, memory)
        slot = self._slabs.take(size)
        return None if slot is None else _Value(slot.address, size, slot)

    def _drop_oldest(self) -> bool:
        if not self._objects:
            return False
        _, value = self._objects.popitem(last=False)
        self._drop(value)
        return True

    def _drop(self, value: _Value) -> None:
        self.used_bytes -= value.size
        if value.readers:
            value.is_dropped = True
        else:
            self._give_back(value)

    def _give_back(self, value: _Value) -> None:
        if isinstance(value.home, Slot):
            self._slabs.give(value.home)


def _copy(values: dict[int, _Value], buffers: Buffers, *, is_put: bool) -> None:
    """Copy the blocks in these rows into their values, or out of them."""
    rows = list(values)
    addresses = np.ascontiguousarray(buffers.addresses[rows], dtype=np.int64)
    sizes = np.ascontiguousarray(buffers.sizes, dtype=np.int64)
    starts = np.array([value.address for value in values.values()], dtype=np.int64)
    if native is not None:
        native.copy_blocks(
            starts.ctypes.data, addresses.ctypes.data, sizes.ctypes.data, len(rows), len(sizes), bool(is_put)
        )
        return
    lengths = sizes.tolist()
    for at, segments in zip(starts.tolist(), addresses.tolist(), strict=True):
        for address, length in zip(segments, lengths, strict=True):
            ctypes.memmove(*((at, address) if is_put else (address, at)), length)
            at += length  # noqa: PLW2901 - the next segment's place
