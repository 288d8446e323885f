"""Copies of blocks between device memory and host memory, by address.

An address knows no layout: plain tensors, NZ and slices of wider ones are copied alike, and nothing is
converted or allocated while the service runs.  (torch's own operators on an NZ tensor turn the whole tensor
over and back, and undo what others write to its other blocks meanwhile.)  When a copy returns or raises,
nothing of it is in flight.

``AclCopies`` calls the CANN runtime that torch_npu has loaded; ``CpuCopies`` serves the simulator.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import BlockIds, Buffers
from mindie_kvpool_plugin.errors import DeviceError
from mindie_kvpool_plugin.native import native
from mindie_kvpool_plugin.observability.log import logger

ACL_LIBRARY = "libascendcl.so"
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2
"""aclrtMemcpyKind (acl_rt.h)."""
FEATURE_NOT_SUPPORTED = 207000
"""ACL_ERROR_RT_FEATURE_NOT_SUPPORT: the runtime has the function, this device or driver does not."""
MAX_BATCH = 4096
"""Pieces of one aclrtMemcpyBatch: what Mooncake's own local copies hand to it."""
LOCATION = np.dtype([("id", np.uint32), ("type", np.uint32)])
BATCH_ATTRIBUTE = np.dtype([("to", LOCATION), ("from", LOCATION), ("reserved", np.uint8, 16)])
"""aclrtMemcpyBatchAttr; a location's type is 0 for host memory and 1 for a device's."""


class Copies(ABC):
    """One direction's way between blocks and host memory; the caller keeps threads apart."""

    @abstractmethod
    def allocate(self, size_bytes: int) -> int:
        """Host memory that the device's runtime copies from and to by itself; its address.

        Raises:
            DeviceError: there is not so much.
        """

    @abstractmethod
    def copy(self, starts: BlockIds, blocks: Buffers, *, to_host: bool) -> None:
        """Copy blocks to host memory, or back.

        Args:
            starts: int64 [n], host address of each block, whose segments lie there one behind the other.
            blocks: device addresses of n blocks.
            to_host: the direction.

        Raises:
            DeviceError: a copy failed; what the destination holds then is undefined.
        """


def pieces(starts: BlockIds, blocks: Buffers, *, to_host: bool) -> Iterator[tuple[int, int, int]]:
    """Where to, where from and how many bytes, segment by segment."""
    sizes = blocks.sizes.tolist()
    for at, segments in zip(starts.tolist(), blocks.addresses.tolist(), strict=True):
        for address, size in zip(segments, sizes, strict=True):
            yield (at, address, size) if to_host else (address, at, size)
            at += size  # noqa: PLW2901 - the next segment's place


class CpuCopies(Copies):
    """Blocks in ordinary memory."""

    def __init__(self) -> None:
        self._rooms: list[npt.NDArray[np.uint8]] = []

    def allocate(self, size_bytes: int) -> int:
        """Memory that lives as long as this object."""
        self._rooms.append(np.empty(size_bytes, dtype=np.uint8))
        return int(self._rooms[-1].ctypes.data)

    def copy(self, starts: BlockIds, blocks: Buffers, *, to_host: bool) -> None:
        """At once, piece by piece: the simulator's blocks are small."""
        for to, source, size in pieces(starts, blocks, to_host=to_host):
            ctypes.memmove(to, source, size)


class AclCopies(Copies):
    """The CANN runtime of one device: one call for up to 4096 pieces where it has one, else one per piece on a stream.

    The caller has waited for the compute that writes or reads the blocks.

    Args:
        device_id: as the process counts its devices.

    Raises:
        DeviceError: no runtime, or no stream.
    """

    def __init__(self, device_id: int) -> None:
        self._device_id = device_id
        try:
            self._acl = ctypes.CDLL(ACL_LIBRARY)
        except OSError as error:
            raise DeviceError(f"the CANN runtime cannot be called: {error}; source CANN's set_env.sh") from None
        self._launch = ctypes.cast(self._acl.aclrtMemcpyAsync, ctypes.c_void_p).value or 0
        self._batch: Any = getattr(self._acl, "aclrtMemcpyBatch", None)
        self._stream = ctypes.c_void_p()
        with self._current():
            self._check(self._acl.aclrtCreateStream(ctypes.byref(self._stream)), "aclrtCreateStream")

    def allocate(self, size_bytes: int) -> int:
        """Page-locked memory, exactly so much, until the process ends."""
        memory = ctypes.c_void_p()
        with self._current():
            code = self._acl.aclrtMallocHost(ctypes.byref(memory), ctypes.c_size_t(size_bytes))
        if code or not memory.value:
            raise DeviceError(
                f"{size_bytes} bytes of page-locked host memory for staging cannot be had (aclrtMallocHost: error "
                f"{code}); give the process more memory, or lower kv_pool.staging_bytes in the pool file"
            )
        return memory.value

    def copy(self, starts: BlockIds, blocks: Buffers, *, to_host: bool) -> None:
        """Launch all copies and wait for them."""
        with self._current():
            if not self._copied_as_batch(starts, blocks, to_host):
                self._copy_on_stream(starts, blocks, to_host)

    def _copied_as_batch(self, starts: BlockIds, blocks: Buffers, to_host: bool) -> bool:
        """Whether the runtime has a call for many pieces; it returns when they are copied."""
        if self._batch is None:
            return False
        ends = np.cumsum(blocks.sizes) - blocks.sizes
        host = np.ascontiguousarray((starts[:, None] + ends[None, :]).ravel())
        device = np.ascontiguousarray(blocks.addresses.ravel())
        sizes = np.tile(blocks.sizes, len(starts))
        attributes = np.zeros(min(MAX_BATCH, len(sizes)), dtype=BATCH_ATTRIBUTE)
        attributes["from" if to_host else "to"] = (self._device_id, 1)
        to, source = (host, device) if to_host else (device, host)
        for at in range(0, len(sizes), MAX_BATCH):
            part = slice(at, at + MAX_BATCH)
            code = self._call_batch(to[part], source[part], sizes[part], attributes)
            if code == FEATURE_NOT_SUPPORTED and at == 0:
                self._batch = None
                logger.info("the device has no batched copies: blocks are copied piece by piece")
                return False
            self._check(code, "aclrtMemcpyBatch")
        return True

    def _call_batch(self, to: BlockIds, source: BlockIds, sizes: BlockIds, attributes: npt.NDArray[np.void]) -> int:
        count, failed = ctypes.c_size_t(len(sizes)), ctypes.c_size_t()
        indexes = np.arange(len(sizes), dtype=np.int64)
        at = [ctypes.c_void_p(each.ctypes.data) for each in (to, sizes, source, sizes, attributes, indexes)]
        return int(self._batch(at[0], at[1], at[2], at[3], count, at[4], at[5], count, ctypes.byref(failed)))

    def _copy_on_stream(self, starts: BlockIds, blocks: Buffers, to_host: bool) -> None:
        kind = DEVICE_TO_HOST if to_host else HOST_TO_DEVICE
        launched = waited = 0
        try:
            launched = self._launch_all(starts, blocks, kind, to_host)
        finally:
            # what was launched before one was refused still runs
            waited = self._acl.aclrtSynchronizeStream(self._stream)
        self._check(launched, "aclrtMemcpyAsync")
        self._check(waited, "aclrtSynchronizeStream")

    def _launch_all(self, starts: BlockIds, blocks: Buffers, kind: int, to_host: bool) -> int:
        if native is None:
            return self._launch_all_twin(starts, blocks, kind, to_host)
        starts = np.ascontiguousarray(starts, dtype=np.int64)
        addresses = np.ascontiguousarray(blocks.addresses, dtype=np.int64)
        sizes = np.ascontiguousarray(blocks.sizes, dtype=np.int64)
        shape = len(starts), len(sizes)
        arrays = starts.ctypes.data, addresses.ctypes.data, sizes.ctypes.data
        return int(native.launch_copies(self._launch, self._stream.value or 0, kind, *arrays, *shape, to_host))

    def _launch_all_twin(self, starts: BlockIds, blocks: Buffers, kind: int, to_host: bool) -> int:
        for to, source, size in pieces(starts, blocks, to_host=to_host):
            room = ctypes.c_size_t(size)
            code = self._acl.aclrtMemcpyAsync(
                ctypes.c_void_p(to), room, ctypes.c_void_p(source), room, kind, self._stream
            )
            if code:
                return int(code)
        return 0

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The device is current on the calling thread inside; afterwards the one that was."""
        before = ctypes.c_int32(-1)
        self._acl.aclrtGetDevice(ctypes.byref(before))  # refused on a thread without one
        if before.value == self._device_id:
            yield
            return
        self._check(self._acl.aclrtSetDevice(self._device_id), "aclrtSetDevice")
        try:
            yield
        finally:
            if before.value >= 0:
                self._acl.aclrtSetDevice(before)

    def _check(self, code: int, function: str) -> None:
        if code:
            raise DeviceError(f"device {self._device_id}: {function} failed with error {code}; see CANN's log (plog)")


def copies_for(device: Any) -> Copies:
    """The way from and to a torch device.

    Raises:
        DeviceError: it has none.
    """
    if device.type == "cpu":
        return CpuCopies()
    if device.type == "npu":
        return AclCopies(int(device.index or 0))
    raise DeviceError(f"the cache lies on a {device.type} device; only npu and cpu can be copied from and to")
