"""Where the bytes of a block are on the device, and how to get at them.

The host keeps per layer a tuple of tensors [num_blocks, ...] (keys, values, and with sparse attention
an index).  A block is one slice of each.  Base addresses and strides are taken once; after that an
address is arithmetic.

``DirectMemory`` hands out device addresses: the CPU stand-in, and NPUs under Mooncake's ``ascend``
protocol, whose transport reads and writes HBM itself.  ``StagedMemory`` copies through pinned host
memory for transports that cannot (``tcp``, ``rdma``).  torch and torch_npu are known only here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from mindie_kvpool_plugin.blocks import BlockIds, Buffers, Region
from mindie_kvpool_plugin.errors import HostCompatError

NZ_FORMAT = 29
"""ACL format number of the fractal layout; everything else here is plain (ND, 2)."""


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
    """Device memory behind pinned host buffers, one for each direction.

    The step thread owns ``write``; ``read`` belongs to the thread that runs spills.  Copies run on
    the calling thread's own stream and are waited for before the buffers change hands.

    Args:
        layout: the cache.
        device_id: the rank's device.
        staging_bytes: host memory for both directions together.
    """

    def __init__(self, layout: CacheLayout, device_id: int, staging_bytes: int) -> None:
        self.layout = layout
        self._device_id = device_id
        self._block_bytes = int(layout.sizes.sum())
        self._capacity = max(1, staging_bytes // (2 * self._block_bytes))
        pinned = layout.device.type != "cpu"
        self._out = _Staging(layout, self._capacity, pinned)
        self._in = _Staging(layout, self._capacity, pinned)
        self.regions = [*self._out.regions, *self._in.regions]

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
            index = torch.from_numpy(block_ids).to(self.layout.device)
            for segment, room in zip(self.layout.segments, self._out.rooms, strict=True):
                room[: len(block_ids)].copy_(segment.index_select(0, index), non_blocking=True)
            _synchronize(self.layout.device)
            yield self._out.buffers(len(block_ids))

    @contextmanager
    def write(self, block_ids: BlockIds) -> Iterator[Buffers]:
        """Host addresses, then copy to the blocks.  What did not arrive is copied too: the host recomputes it."""
        with self._in.lock:
            yield self._in.buffers(len(block_ids))
            index = torch.from_numpy(block_ids).to(self.layout.device)
            for segment, room in zip(self.layout.segments, self._in.rooms, strict=True):
                segment.index_copy_(0, index, room[: len(block_ids)].to(self.layout.device, non_blocking=True))
            _synchronize(self.layout.device)

    def bind_thread(self) -> None:
        """Make the rank's device current on the calling thread, with a stream of its own."""
        bind_thread(self.layout.device, self._device_id)


class _Staging:
    """Host room for some blocks, segment by segment."""

    def __init__(self, layout: CacheLayout, capacity: int, pinned: bool) -> None:
        self.lock = threading.Lock()
        self.rooms = [
            torch.empty((capacity, *segment.shape[1:]), dtype=segment.dtype, pin_memory=pinned)
            for segment in layout.segments
        ]
        self._layout = CacheLayout([self.rooms])
        self.regions = self._layout.regions()

    def buffers(self, count: int) -> Buffers:
        return self._layout.buffers(np.arange(count, dtype=np.int64))


def bind_thread(device: Any, device_id: int) -> None:
    """Make ``device_id`` current on the calling thread; nothing to do for the CPU stand-in."""
    if device.type == "npu":
        torch.npu.set_device(device_id)
        torch.npu.set_stream(torch.npu.Stream())


def _synchronize(device: Any) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).current_stream().synchronize()


def record_event(device: Any) -> Any | None:
    """An event behind everything launched on this thread's stream so far; None on the CPU, where launching is doing."""
    if device.type == "cpu":
        return None
    module = getattr(torch, device.type)
    event = module.Event()
    event.record(module.current_stream())
    return event
