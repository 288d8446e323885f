"""Bytes per second: local_dram against memcpy, mooncake against the raw client's best on the same buffers."""

import ctypes
import itertools
import statistics
import time

import numpy as np

from benchmarks import measure, service
from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.pools.local_dram import LocalDram

MIB = 1 << 20
TOTAL_BYTES = 256 * MIB
LAYOUTS = [(MIB // 2, 1), (2 * MIB, 1), (8 * MIB, 1), (MIB // 2, 122), (2 * MIB, 122), (8 * MIB, 122)]
"""(bytes of a block, segments)."""

ROUNDS = 16
MOONCAKE_LAYOUTS = [(2 * MIB, 1), (7 * MIB, 56), (2 * MIB, 122), (9 * MIB, 122)]
"""As ``LAYOUTS``; 56 segments are keys and values of 28 layers, 122 those of the 61 layers of DeepSeek-R1."""

RAW_SLICES = (224, 448, 896, 1792)
"""Sizes of the raw client's calls; its best counts.  More than about 2,000 wedge a client of another process."""


class Blocks:
    """Blocks one behind the other, written once so that their pages are there."""

    def __init__(self, num_blocks, segments, segment_bytes, fill):
        self.bytes = np.full(num_blocks * segments * segment_bytes, fill, dtype=np.uint8)
        places = np.arange(num_blocks * segments, dtype=np.int64).reshape(num_blocks, segments) * segment_bytes
        self.buffers = Buffers(self.bytes.ctypes.data + places, np.full(segments, segment_bytes, dtype=np.int64))


def local_dram(where="", clock=time.perf_counter):
    found = []
    for block_bytes, segments in LAYOUTS:
        segment_bytes = block_bytes // segments // 64 * 64
        num_blocks = TOTAL_BYTES // block_bytes
        source, target = (Blocks(num_blocks, segments, segment_bytes, fill) for fill in (1, 2))
        room, plain = np.ones_like(source.bytes), np.ones_like(source.bytes)
        pool = LocalDram(source.bytes.nbytes + 1)
        number = itertools.count()
        names = []

        def put(pool=pool, source=source, number=number, names=names, num_blocks=num_blocks):
            turn = next(number)
            names[:] = [f"{turn}/{index}" for index in range(num_blocks)]
            assert all(pool.put(names, source.buffers))

        def get(pool=pool, target=target, names=names):
            assert all(pool.get(names, target.buffers))

        def memcpy(source=source, room=room):
            ctypes.memmove(room.ctypes.data, source.bytes.ctypes.data, room.nbytes)

        def by_segment(source=source, plain=plain, segment_bytes=segment_bytes):
            to, at = plain.ctypes.data, source.bytes.ctypes.data
            for place in range(0, plain.nbytes, segment_bytes):
                ctypes.memmove(to + place, at + place, segment_bytes)

        calls = {"put": put, "get": get, "memcpy": memcpy, "by_segment": by_segment}
        taken = measure.interleaved(calls, clock=clock)
        assert target.bytes.min() == target.bytes.max() == 1
        baseline = min(taken["memcpy"], taken["by_segment"])
        for what in ("put", "get"):
            label = f"{where}local_dram {what}, {block_bytes / MIB:g} MiB in {segments} segments, against memcpy"
            found.append(measure.speed(label, room.nbytes, taken[what], baseline, 0.85))
    return found


CASES = [("owner process", 0), ("client without memory", 1)]


def mooncake(cases=CASES, at_least=0.97, clock=time.perf_counter):
    found = []
    registered = []  # kept: a region is registered once, and freed memory would come again under the same address
    with service.mooncake(1280 * MIB, clients=len(cases)) as pools:
        for (place, index), (block_bytes, segments) in itertools.product(cases, MOONCAKE_LAYOUTS):
            pool = pools[index]
            segment_bytes = block_bytes // segments // 64 * 64
            num_blocks = TOTAL_BYTES // 2 // block_bytes
            source, target = (Blocks(num_blocks, segments, segment_bytes, fill) for fill in (1, 2))
            for blocks in (source, target):
                pool.register([_region(blocks)])
                registered.append(blocks)
            layout = f"{block_bytes // MIB} MiB in {segments} segments"
            found += _against_raw(pool, f"{place}, {layout}", source, target, num_blocks, at_least, clock)
    return found


DEEPSEEK_SEGMENTS = [128 * 512 * 2, 128 * 64 * 2] * 61
"""Bytes of a block of 128 tokens: latent keys and keys with positions of 61 layers."""

GAP_BYTES = 64
"""Between the segments of blocks that cannot be joined."""


class Staged:
    """Blocks of DeepSeek-R1's segments, one behind the other as staging has them, or a little apart."""

    def __init__(self, num_blocks, gap_bytes, fill):
        sizes = np.array(DEEPSEEK_SEGMENTS, dtype=np.int64)
        starts = np.cumsum(sizes + gap_bytes) - sizes - gap_bytes
        stride = int((sizes + gap_bytes).sum())
        self.bytes = np.full(num_blocks * stride, fill, dtype=np.uint8)
        at = self.bytes.ctypes.data + np.arange(num_blocks, dtype=np.int64)[:, None] * stride
        self.buffers = Buffers(at + starts[None, :], sizes)


def joined():
    """A staged block travels as one slice of the transport (``Buffers.joined``); apart by 64 bytes it takes 122."""
    num_blocks = TOTAL_BYTES // 2 // sum(DEEPSEEK_SEGMENTS)
    ways = {"joined": 0, "apart": GAP_BYTES}
    source, target = ({way: Staged(num_blocks, gap, fill) for way, gap in ways.items()} for fill in (1, 2))
    assert [len(source[way].buffers.joined().sizes) for way in ways] == [1, len(DEEPSEEK_SEGMENTS)]
    found = []
    with service.mooncake(1280 * MIB, clients=2) as pools:
        for place, pool in zip(("owner process", "client without memory"), pools, strict=True):
            for blocks in (*source.values(), *target.values()):
                pool.register([_region(blocks)])
            names = {way: [f"{place}/{way}/{index}" for index in range(num_blocks)] for way in ways}
            store, _ = service.raw(pool)

            def emptied(store=store, names=names):
                for name in [*names["joined"], *names["apart"]]:
                    store.remove(name, True)

            def call(what, way, blocks, pool=pool, names=names):
                return lambda: all(getattr(pool, what)(names[way], blocks[way].buffers)) or _failed(what)

            puts = measure.seconds_of({way: call("put", way, source) for way in ways}, ROUNDS, between=emptied)
            for way in ways:
                call("put", way, source)()
            gets = measure.seconds_of({way: call("get", way, target) for way in ways}, ROUNDS)
            for what, taken in (("put", puts), ("get", gets)):
                seconds = [statistics.median(taken[way]) for way in ways]
                label = f"mooncake {what}, {place}, staged blocks of 9 MB in one slice, against 122 each"
                found.append(measure.speed(label, num_blocks * sum(DEEPSEEK_SEGMENTS), *seconds, 0.95))
            emptied()
    return found


def _failed(what):
    raise AssertionError(f"a {what} failed")


def _region(blocks):
    return Region(blocks.bytes.ctypes.data, blocks.bytes.nbytes)


def _against_raw(pool, place, source, target, num_blocks, at_least, clock):
    store, config = service.raw(pool)
    segments = len(source.buffers.sizes)
    sizes = [source.buffers.sizes.tolist()] * num_blocks
    out, back = source.buffers.addresses.tolist(), target.buffers.addresses.tolist()
    names = [f"{place}/{index}" for index in range(num_blocks)]
    expected = source.buffers.block_bytes

    def pieces(slices):
        step = max(1, slices // segments)
        return [slice(at, at + step) for at in range(0, num_blocks, step)]

    def raw_put(slices):
        for part in pieces(slices):
            assert set(store.batch_put_from_multi_buffers(names[part], out[part], sizes[part], config)) == {0}

    def raw_get(slices):
        for part in pieces(slices):
            answers = store.batch_get_into_multi_buffers(names[part], back[part], sizes[part], False)
            assert set(answers) == {expected}

    def emptied():
        for name in names:
            store.remove(name, True)

    def put():
        assert all(pool.put(names, source.buffers))

    def get():
        assert all(pool.get(names, target.buffers))

    puts = {"ours": put, **{f"raw {count}": (lambda count=count: raw_put(count)) for count in RAW_SLICES}}
    gets = {"ours": get, **{f"raw {count}": (lambda count=count: raw_get(count)) for count in RAW_SLICES}}
    taken_put = measure.seconds_of(puts, ROUNDS, between=emptied, clock=clock)
    put()
    taken_get = measure.seconds_of(gets, ROUNDS, clock=clock)
    rows = []
    for what, taken in (("put", taken_put), ("get", taken_get)):
        best, seconds, baseline = measure.against_best(taken, "ours")
        label = f"mooncake {what}, {place}, against the raw client's best ({best.split()[1]} slices a call)"
        rows.append(measure.speed(label, expected * num_blocks, seconds, baseline, at_least))
    emptied()
    return rows


def on_one_core():
    with measure.one_core() as clock:
        return [*local_dram("one core, ", clock), *mooncake([("one core, owner process", 0)], 0.95, clock)]


def rows():
    return [*local_dram(), *mooncake(), *joined(), *on_one_core()]


if __name__ == "__main__":
    measure.main("bench_reload_spill", rows)
