"""Calls and bytes of staged copies of blocks like DeepSeek-R1's: by address, against torch's operators per segment.

Needs torch_npu with an NPU, or with an emulator of the CANN runtime (CONTRIBUTING.md); the emulator counts calls and
bytes and says nothing of speed, an NPU the other way round.
"""

import ctypes
import importlib

import numpy as np

from benchmarks import measure
from mindie_kvpool_plugin.host.device_copies import MAX_BATCH
from mindie_kvpool_plugin.host.device_memory import CacheLayout, StagedMemory

LAYERS, TOKENS = 61, 128
HEADS = (512, 64)
"""Latent keys, and keys with positions: a block of 128 tokens is 9 MB in 61 x 2 segments of two sizes."""
NUM_BLOCKS, COPIED = 24, 8
NZ_FORMAT, NZ_ROW = 29, 16
LAUNCHES = ("copies.async", "copies.sync", "kernels")
WAITS = ("sync.stream", "sync.device", "sync.event")


class MissingError(Exception):
    """What keeps the benchmark from running."""


def npu():
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch_npu")
    except (ImportError, OSError) as error:
        raise MissingError(f"{error}") from None
    if not torch.npu.is_available():
        raise MissingError("torch_npu sees no device")
    return torch


def emulator():
    """Its counters; None on an NPU."""
    try:
        library = ctypes.CDLL("libfakecann.so")
    except OSError:
        return None
    library.fakecann_counter.restype = ctypes.c_uint64
    return library


def segments(torch, is_nz):
    """Keys of both kinds, layer by layer."""
    torch.npu.config.allow_internal_format = is_nz
    if not is_nz:
        shapes = [(NUM_BLOCKS, TOKENS, 1, size) for size in HEADS]
        return [tuple(torch.zeros(s, dtype=torch.bfloat16, device="npu:0") for s in shapes) for _ in range(LAYERS)]
    make = importlib.import_module("torch_npu").empty_with_format
    shapes = [(NUM_BLOCKS, size // NZ_ROW, TOKENS, NZ_ROW) for size in HEADS]
    return [
        tuple(make(s, dtype=torch.bfloat16, device="npu:0", acl_format=NZ_FORMAT) for s in shapes)
        for _ in range(LAYERS)
    ]


class Operators:
    """What one writes without addresses: page-locked rooms, index_select and index_copy_ per segment."""

    def __init__(self, torch, layout):
        self.torch, self.layout = torch, layout
        shapes = [(COPIED, *segment.shape[1:]) for segment in layout.segments]
        self.rooms = [torch.empty(shape, dtype=torch.bfloat16).pin_memory() for shape in shapes]

    def out(self, ids):
        index = self.torch.from_numpy(ids).to("npu:0")
        for segment, room in zip(self.layout.segments, self.rooms, strict=True):
            room.copy_(segment.index_select(0, index), non_blocking=True)
        self.torch.npu.current_stream().synchronize()

    def back(self, ids):
        index = self.torch.from_numpy(ids).to("npu:0")
        for segment, room in zip(self.layout.segments, self.rooms, strict=True):
            segment.index_copy_(0, index, room.to("npu:0", non_blocking=True))
        self.torch.npu.current_stream().synchronize()


def counted(library, call):
    """Launches, waits and bytes between host and device of one call."""
    library.fakecann_reset_counters()
    call()
    read = {name: library.fakecann_counter(name.encode()) for name in (*LAUNCHES, *WAITS, "bytes.d2h", "bytes.h2d")}
    return (
        sum(read[name] for name in LAUNCHES),
        sum(read[name] for name in WAITS),
        read["bytes.d2h"] + read["bytes.h2d"],
    )


def extra_bytes(torch, call):
    """Device memory that one call takes and gives back."""
    torch.npu.synchronize()
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    call()
    return torch.npu.max_memory_allocated() - before


def rows():
    torch = npu()
    library = emulator()
    return [row for is_nz in (False, True) for row in of_layout(torch, library, is_nz)]


def of_layout(torch, library, is_nz):
    layout = CacheLayout(segments(torch, is_nz))
    memory = StagedMemory(layout, 0, 2 * COPIED * int(layout.sizes.sum()))
    operators = Operators(torch, layout)
    ids = np.arange(0, 3 * COPIED, 3, dtype=np.int64)

    def out():
        with memory.read(ids):
            pass

    def back():
        with memory.write(ids):
            pass

    name = "NZ" if is_nz else "ND"
    for way, ours, theirs in (
        (f"{name}, device to host", out, lambda: operators.out(ids)),
        (f"{name}, host to device", back, lambda: operators.back(ids)),
    ):
        ours()  # what is allocated once is there
        theirs()
        if library is not None:
            yield from counts(library, way, ours, theirs)
        else:
            taken = measure.interleaved({"ours": ours, "theirs": theirs})
            yield measure.speed(way, COPIED * int(layout.sizes.sum()), taken["ours"], taken["theirs"], 1)
        spent = [extra_bytes(torch, call) / COPIED for call in (ours, theirs)]
        yield measure.Row(f"{way}, device memory taken per block", spent[0], "B", spent[1], None, "= 0", not spent[0])
    pieces = COPIED * len(layout.sizes)
    calls = -(-pieces // MAX_BATCH) / COPIED
    yield measure.seen(f"{name}, calls per block where the runtime has aclrtMemcpyBatch", calls, "calls")


def counts(library, way, ours, theirs):
    (launches, waits, moved), (launched, waited, carried) = (counted(library, call) for call in (ours, theirs))
    unit = "per block"
    yield measure.Row(f"{way}, calls", launches / COPIED, unit, launched / COPIED, launched / launches, "-", None)
    yield measure.Row(f"{way}, waits", waits / COPIED, unit, waited / COPIED, None, "-", None)
    link = f"{way}, bytes over the link"
    yield measure.Row(link, moved / COPIED, "B", carried / COPIED, moved / carried, "<= 1 x", moved <= carried)


if __name__ == "__main__":
    try:
        found = rows()
    except MissingError as missing:
        print(f"NOT RUN: bench_device_copies needs torch_npu with an NPU or an emulator of the CANN runtime: {missing}")
    else:
        measure.main("bench_device_copies", lambda: found)
