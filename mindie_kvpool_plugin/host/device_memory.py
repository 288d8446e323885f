"""Where the bytes of a block are on the device, and how to get at them.

The host keeps per layer a tuple of tensors [num_blocks, ...] (keys, values, and with sparse attention
an index).  A block is one slice of each.  Base addresses and strides are taken once; after that an
address is arithmetic.

``DirectMemory`` hands out device addresses: the CPU stand-in, and NPUs under Mooncake's ``ascend``
protocol, whose transport reads and writes HBM itself.  ``StagedMemory`` copies through page-locked host
memory for transports that cannot (``tcp``, ``rdma``), by ``device_copies``.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mindie_kvpool_plugin.blocks import BlockIds, Buffers, Region
from mindie_kvpool_plugin.errors import DeviceError, HostCompatError
from mindie_kvpool_plugin.host.device_copies import Copies, copies_for

NZ_FORMAT = 29
"""ACL format number of the fractal layout; everything else here is plain (ND, 2)."""
NZ_ROWS, NZ_ROW_BYTES = 16, 32
"""A fractal; the last two dimensions of an NZ tensor are padded to multiples of it."""


class CacheLayout:
    """The segments of one rank's cache.

    Args:
        npu_cache: the host's list of per-layer tuples of tensors.
        num_blocks: as the host counts them; None: as the first tensor says.

    Attributes:
        segments: the tensors that hold blocks, layer by layer.
        num_blocks: blocks in each.
        sizes: int64 [segments], bytes of one block.

    Raises:
        HostCompatError: the tensors are not what a block can be addressed in.
    """

    def __init__(self, npu_cache: Sequence[Sequence[Any]], num_blocks: int | None = None) -> None:
        # a head size of 0 leaves a one-element placeholder in the host's tuple
        self.segments = [tensor for layer in npu_cache for tensor in layer if tensor.dim() > 1]
        if not self.segments:
            raise HostCompatError("the host's key-value cache is empty (cache_pool.npu_cache holds no block tensors)")
        self.num_blocks = int(self.segments[0].shape[0]) if num_blocks is None else num_blocks
        for index, tensor in enumerate(self.segments):
            if int(tensor.shape[0]) != self.num_blocks or not tensor[0].is_contiguous():
                raise HostCompatError(
                    f"segment {index} of the key-value cache has shape {tuple(tensor.shape)} and strides "
                    f"{tuple(tensor.stride())}; expected {self.num_blocks} blocks along the first dimension, each "
                    "contiguous; kv_pool cannot address such a cache, remove it from plugin_type"
                )
            _refuse_padding(index, tensor)
        self.sizes = np.array([t[0].numel() * t.element_size() for t in self.segments], dtype=np.int64)
        self._bases = np.array([t.data_ptr() for t in self.segments], dtype=np.int64)
        self._strides = np.array([t.stride(0) * t.element_size() for t in self.segments], dtype=np.int64)

    @property
    def device(self) -> Any:
        """The torch device of the cache."""
        return self.segments[0].device

    def describe(self) -> list[list[Any]]:
        """Shape and dtype of a block's segments, for the fingerprint."""
        return [[*tensor.shape[1:], str(tensor.dtype)] for tensor in self.segments]

    def regions(self) -> list[Region]:
        """The memory of each segment."""
        sizes = self._strides * self.num_blocks
        is_device = self.device.type != "cpu"
        return [Region(base, size, is_device) for base, size in zip(self._bases.tolist(), sizes.tolist(), strict=True)]

    def buffers(self, block_ids: BlockIds) -> Buffers:
        """Device addresses of the blocks' segments."""
        return Buffers(self._bases[None, :] + block_ids[:, None] * self._strides[None, :], self.sizes)


def _refuse_padding(index: int, tensor: Any) -> None:
    """A block of a padded NZ tensor is larger than its shape says."""
    if tensor.device.type != "npu":
        return
    torch_npu = importlib.import_module("torch_npu")
    rows, row_bytes = int(tensor.shape[-2]), int(tensor.shape[-1]) * tensor.element_size()
    if int(torch_npu.get_npu_format(tensor)) == NZ_FORMAT and (rows % NZ_ROWS or row_bytes % NZ_ROW_BYTES):
        raise HostCompatError(
            f"segment {index} of the key-value cache has format NZ and shape {tuple(tensor.shape)} of "
            f"{tensor.element_size()} bytes each: it is padded to {NZ_ROWS} rows of {NZ_ROW_BYTES} bytes, and kv_pool "
            "cannot address its blocks; take a cacheBlockSize that is a multiple of 16"
        )


class DirectMemory:
    """Device memory the pool's transport reaches by itself."""

    def __init__(self, layout: CacheLayout, device_id: int) -> None:
        self.layout = layout
        self.regions = layout.regions()
        self._device_id = device_id

    @property
    def num_blocks(self) -> int:
        """Blocks in the cache."""
        return self.layout.num_blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return int(self.layout.sizes.sum())

    @property
    def max_blocks_per_call(self) -> int:
        """Any number: nothing is copied."""
        return self.num_blocks

    @property
    def reads_are_copies(self) -> bool:
        """The pool reads the blocks themselves."""
        return False

    def read(self, block_ids: BlockIds) -> AbstractContextManager[Buffers]:
        """Device addresses."""
        return nullcontext(self.layout.buffers(block_ids))

    def write(self, block_ids: BlockIds) -> AbstractContextManager[Buffers]:
        """Device addresses."""
        return nullcontext(self.layout.buffers(block_ids))

    def bind_thread(self) -> None:
        """Make the rank's device current on the calling thread."""
        bind_thread(self.layout.device, self._device_id)


class StagedMemory:
    """Device memory behind page-locked host buffers, one for each direction.

    The step thread owns ``write``; ``read`` belongs to the thread that runs spills.  Copies are waited for
    before the buffers change hands.

    Args:
        layout: the cache.
        device_id: the rank's device.
        staging_bytes: host memory for both directions together.

    Raises:
        DeviceError: the memory cannot be had, or a block does not come back as it was.
    """

    def __init__(self, layout: CacheLayout, device_id: int, staging_bytes: int) -> None:
        self.layout = layout
        self._device_id = device_id
        self._block_bytes = int(layout.sizes.sum())
        self._capacity = max(1, staging_bytes // (2 * self._block_bytes))
        self._out = _Staging(copies_for(layout.device), layout.sizes, self._capacity)
        self._in = _Staging(copies_for(layout.device), layout.sizes, self._capacity)
        self.regions = [self._out.region, self._in.region]
        self._try()

    @property
    def num_blocks(self) -> int:
        """Blocks in the cache."""
        return self.layout.num_blocks

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self._block_bytes

    @property
    def max_blocks_per_call(self) -> int:
        """Blocks that fit one staging buffer."""
        return self._capacity

    @property
    def reads_are_copies(self) -> bool:
        """The pool reads the host's copy."""
        return True

    @contextmanager
    def read(self, block_ids: BlockIds) -> Iterator[Buffers]:
        """Copy the blocks to the host, then host addresses."""
        with self._out.lock:
            rooms = self._out.buffers(len(block_ids))
            self._out.copies.copy(rooms.addresses[:, 0], self.layout.buffers(block_ids), to_host=True)
            yield rooms

    @contextmanager
    def write(self, block_ids: BlockIds) -> Iterator[Buffers]:
        """Host addresses, then copy to the blocks.  What did not arrive is copied too: the host recomputes it."""
        with self._in.lock:
            rooms = self._in.buffers(len(block_ids))
            yield rooms
            _synchronize(self.layout.device)  # the copies run beside this thread's stream
            self._in.copies.copy(rooms.addresses[:, 0], self.layout.buffers(block_ids), to_host=False)

    def bind_thread(self) -> None:
        """Make the rank's device current on the calling thread, with a stream of its own."""
        bind_thread(self.layout.device, self._device_id)

    def _try(self) -> None:
        """Take a block out, put it back and compare, before the service depends on it."""
        _synchronize(self.layout.device)
        block = np.array([self.num_blocks - 1], dtype=np.int64)
        with self.read(block) as taken:
            before = _bytes_of(taken)
            with self.write(block) as put:
                ctypes.memmove(int(put.addresses[0, 0]), before, len(before))
        with self.read(block) as taken:
            if _bytes_of(taken) != before:
                raise DeviceError(
                    f"block {block[0]} of the key-value cache on {self.layout.device} was copied to host memory and "
                    f"back, and its {len(before)} bytes are not what they were; it cannot be staged on this device"
                )


def _bytes_of(buffers: Buffers) -> bytes:
    """A staged block's bytes: its segments lie one behind the other."""
    return ctypes.string_at(int(buffers.addresses[0, 0]), buffers.block_bytes)


class _Staging:
    """Host room for some blocks, each with its segments one behind the other: one piece of memory, one region."""

    def __init__(self, copies: Copies, sizes: npt.NDArray[np.int64], capacity: int) -> None:
        self.lock = threading.Lock()
        self.copies = copies
        size = int(sizes.sum())
        self.region = Region(copies.allocate(size * capacity), size * capacity)
        self._sizes = sizes
        starts = np.arange(capacity, dtype=np.int64) * size + self.region.address
        self._addresses = starts[:, None] + (np.cumsum(sizes) - sizes)[None, :]

    def buffers(self, count: int) -> Buffers:
        return Buffers(self._addresses[:count], self._sizes)


def bind_thread(device: Any, device_id: int) -> None:
    """Make ``device_id`` current on the calling thread; nothing to do for the CPU stand-in."""
    if device.type == "npu":
        torch.npu.set_device(device_id)
        torch.npu.set_stream(torch.npu.Stream(device=device))


def _synchronize(device: Any) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).current_stream(device).synchronize()


def record_event(device: Any) -> Any | None:
    """An event behind all launched on this thread's stream of the device; None on the CPU, which does it at once."""
    if device.type == "cpu":
        return None
    module = getattr(torch, device.type)
    event = module.Event()
    event.record(module.current_stream(device))
    return event
