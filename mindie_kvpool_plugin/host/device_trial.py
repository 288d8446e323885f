"""Small caches in every layout the host allocates, to try on a device what a worker will do with its large one.

Their bytes are written and read by the runtime itself, past the code that is tried.
"""

from __future__ import annotations

import ctypes
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from mindie_kvpool_plugin.blocks import BlockIds
from mindie_kvpool_plugin.errors import DeviceError
from mindie_kvpool_plugin.host.device_copies import ACL_LIBRARY, DEVICE_TO_HOST, HOST_TO_DEVICE
from mindie_kvpool_plugin.host.device_memory import NZ_FORMAT, CacheLayout, DirectMemory, StagedMemory
from mindie_kvpool_plugin.kv_shape import NZ_ELEMENTS, NZ_INT8_ELEMENTS, KvShape

BLOCKS = 12
MAX_BLOCK_BYTES = 4 * 1024**2  # of a trial's block: a model's many layers are alike
ROUNDS = 5
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "int8": torch.int8}
PERIOD = 251  # a prime: no block, segment or row of a power of two repeats it

Cache = list[tuple[Any, ...]]


def open_device(device_id: int) -> torch.device:
    """An NPU, current on this thread.

    Raises:
        DeviceError: torch_npu is missing or broken, or there is no such NPU.
    """
    try:
        importlib.import_module("torch_npu")
        device = torch.device("npu", device_id)
        torch.npu.set_device(device)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise DeviceError(f"NPU {device_id} cannot be used: {_short(error)}") from error
    return device


def host() -> torch.device:
    """The processor, which stands in for an NPU."""
    return torch.device("cpu")


def free_bytes(device: torch.device) -> int:
    """Device memory that nobody has taken; 0 for the CPU stand-in."""
    return int(torch.npu.mem_get_info(device)[0]) if device.type == "npu" else 0


def of_model(shape: KvShape, block_size: int, tp: int, device: torch.device) -> Cache:
    """As the host allocates a rank's cache (kvcache_settings.py), of as many layers as the trial's memory holds.

    Raises:
        DeviceError: there is no memory for it.
    """
    layers = max(1, min(shape.layers, MAX_BLOCK_BYTES * shape.layers // shape.block_bytes(block_size, tp)))
    heads = shape.heads_per_rank(tp)
    parts = [(heads, shape.key, "int8" if shape.key_bytes == 1 else shape.dtype), (heads, shape.value, shape.dtype)]
    if shape.index:
        parts.append((1, shape.index, shape.dtype))

    def tensor(heads: int, size: int, dtype: str) -> Any:
        if not shape.is_nz:
            return _zeros((block_size, heads, size), dtype, device)
        piece = NZ_INT8_ELEMENTS if dtype == "int8" and shape.element_bytes != 1 else NZ_ELEMENTS
        return _fractal((-(-heads * size // piece), block_size, piece), dtype, device)

    return _made(lambda: [tuple(tensor(*part) for part in parts) for _ in range(layers)], device)


def layouts(device: torch.device) -> Iterator[tuple[str, Cache]]:
    """One cache of each kind that models have.

    Raises:
        DeviceError: there is no memory for it.
    """
    kinds: dict[str, Callable[[], Cache]] = {
        "nd": lambda: [tuple(_zeros((128, 2, 64), "bfloat16", device) for _ in range(2)) for _ in range(3)],
        "nz": lambda: [tuple(_fractal((8, 128, 16), "float16", device) for _ in range(2)) for _ in range(2)],
        "mla": lambda: [(_zeros((128, 1, 512), "bfloat16", device), _zeros((128, 1, 64), "bfloat16", device))],
        "int8": lambda: [(_zeros((128, 2, 64), "int8", device), _zeros((128, 2, 64), "bfloat16", device))],
        "odd": lambda: _odd(device),
    }
    for name, make in kinds.items():
        yield name, _made(make, device)


def _odd(device: torch.device) -> Cache:
    """Slices of a wider tensor, sizes that are no power of two, a third tensor, a placeholder."""
    wide = torch.zeros((BLOCKS, 2, 9, 5), dtype=torch.float16, device=device)
    return [
        (wide[:, 0], wide[:, 1]),
        (
            _zeros((7, 3, 5), "int8", device),
            _zeros((7, 3, 5), "bfloat16", device),
            _zeros((7, 1, 3), "float32", device),
        ),
        (_zeros((9, 2, 11), "float16", device), torch.zeros(1, device=device)),
    ]


def _zeros(shape: tuple[int, ...], dtype: str, device: torch.device) -> Any:
    return torch.zeros((BLOCKS, *shape), dtype=DTYPES[dtype], device=device)


def _fractal(shape: tuple[int, ...], dtype: str, device: torch.device) -> Any:
    if device.type != "npu":
        return _zeros(shape, dtype, device)
    torch.npu.config.allow_internal_format = True
    make = importlib.import_module("torch_npu").empty_with_format
    return make((BLOCKS, *shape), dtype=DTYPES[dtype], device=device, acl_format=NZ_FORMAT)


def _made(make: Callable[[], Cache], device: torch.device) -> Cache:
    try:
        cache = make()
        if device.type == "npu":
            torch.npu.synchronize(device)
    except RuntimeError as error:
        raise DeviceError(f"no cache for a trial could be made on {device}: {_short(error)}") from error
    return cache


def _short(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class TrialCache:
    """A small cache, and what its bytes have to be.

    Args:
        cache: per layer a tuple of tensors.
        device_id: its NPU.
        direct: the pool's transport reaches device memory; otherwise blocks are staged, if they lie on a device.

    Raises:
        DeviceError, HostCompatError: as a worker's start would.
    """

    def __init__(self, cache: Cache, device_id: int, *, direct: bool = False) -> None:
        self.layout = CacheLayout(cache)
        self.block_bytes = int(self.layout.sizes.sum())
        on_device = self.layout.device.type != "cpu"
        self.memory: StagedMemory | DirectMemory = (
            DirectMemory(self.layout, device_id)
            if direct or not on_device
            else StagedMemory(self.layout, device_id, 2 * (BLOCKS // 2) * self.block_bytes)
        )
        self._acl = ctypes.CDLL(ACL_LIBRARY) if on_device else None
        self.fill(range(BLOCKS), 0)

    def fill(self, blocks: range | list[int], version: int) -> None:
        """Write their bytes, as compute would."""
        for block in blocks:
            for address, data in zip(self._places(block), self.expected(block, version), strict=True):
                held = ctypes.create_string_buffer(data, len(data))
                self._copy(address, ctypes.addressof(held), len(data), HOST_TO_DEVICE)

    def expected(self, block: int, version: int) -> list[bytes]:
        """A block's bytes, segment by segment; they tell block, segment and version."""
        seeds = ((block * 31 + segment * 7 + version * 101) % PERIOD for segment in range(len(self.layout.sizes)))
        ramp = np.arange(int(self.layout.sizes.max()) + PERIOD)
        ramp = (ramp % PERIOD).astype(np.uint8)
        return [
            ramp[seed : seed + size].tobytes() for seed, size in zip(seeds, self.layout.sizes.tolist(), strict=True)
        ]

    def wrong_blocks(self, versions: dict[int, tuple[int, int]]) -> list[int]:
        """Blocks whose bytes are not those that (block, version) tells; the others have their first ones."""
        return [at for at in range(BLOCKS) if self._held(at) != self.expected(*versions.get(at, (at, 0)))]

    def _held(self, block: int) -> list[bytes]:
        found = []
        for address, size in zip(self._places(block), self.layout.sizes.tolist(), strict=True):
            data = ctypes.create_string_buffer(size)
            self._copy(ctypes.addressof(data), address, size, DEVICE_TO_HOST)
            found.append(data.raw)
        return found

    def _places(self, block: int) -> list[int]:
        places: list[int] = self.layout.buffers(np.array([block])).addresses[0].tolist()
        return places

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        if self._acl is None:
            ctypes.memmove(to, source, size)
            return
        room = ctypes.c_size_t(size)
        code = self._acl.aclrtMemcpy(ctypes.c_void_p(to), room, ctypes.c_void_p(source), room, kind)
        if code:
            raise DeviceError(f"the runtime could not copy {size} bytes of {self.layout.device}: aclrtMemcpy: {code}")


def verify(cache: TrialCache) -> list[int]:
    """Copy blocks out, compare, copy others in, and compare all of the cache; the blocks that are wrong."""
    ids = [BLOCKS - 1, 3, 0, 9, 4]
    with cache.memory.read(np.array(ids)) as buffers:
        wrong = [block for row, block in enumerate(ids) if _read(buffers, row) != cache.expected(block, 0)]
    ids = [2, 9, 5]
    with cache.memory.write(np.array(ids)) as buffers:
        for row, block in enumerate(ids):
            for at, data in zip(buffers.addresses[row].tolist(), cache.expected(block, 1), strict=True):
                ctypes.memmove(at, data, len(data))
    return sorted({*wrong, *cache.wrong_blocks({block: (block, 1) for block in ids})})


def _read(buffers: Any, row: int) -> list[bytes]:
    pairs = zip(buffers.addresses[row].tolist(), buffers.sizes.tolist(), strict=True)
    return [ctypes.string_at(at, size) for at, size in pairs]


def copy_speeds(cache: TrialCache) -> dict[str, float]:
    """Bytes per second out of the device, into it, and of a copy within host memory; medians."""
    ids = np.arange(BLOCKS // 2)
    size = len(ids) * cache.block_bytes
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    return {
        "out": size / _median_s(lambda: _enter(cache.memory.read, ids)),
        "into": size / _median_s(lambda: _enter(cache.memory.write, ids)),
        "memcpy": size / _median_s(lambda: np.copyto(target, source)),
    }


def _enter(make: Callable[[BlockIds], Any], ids: BlockIds) -> None:
    with make(ids):
        pass


def _median_s(work: Callable[[], None]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return max(statistics.median(times), 1e-9)
