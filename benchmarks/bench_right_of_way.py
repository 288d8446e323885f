"""A reload beside a burst of finished requests: with spills that give way to it, and with spills that do not."""

import contextlib
import itertools
import statistics
import threading
import time
import types
from dataclasses import replace

import numpy as np

from benchmarks import measure, parts, service
from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.blocks import FreedSequence, PoolHit
from mindie_kvpool_plugin.core.block_keys import BlockKeys
from mindie_kvpool_plugin.core.right_of_way import RightOfWay
from mindie_kvpool_plugin.core.spill import Replica
from mindie_kvpool_plugin.host.device_memory import CacheLayout, DirectMemory
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.pools.base import PoolWrapper

LAYERS, SEGMENT_BYTES = 28, 128 << 10
RELOAD_BLOCKS, BURST, BURST_BLOCKS = 32, 4, 16
ROUNDS = 9
JOIN_S = 120.0
MAX_RATIO = 1.5
"""The piece that had begun shares the pool with the reload: 64 of 224 MiB, and puts may be faster than gets."""


class Watched(PoolWrapper):
    """Tells when a put begins, and remembers what was put."""

    def __init__(self, inner):
        super().__init__(inner)
        self.has_begun, self.names = threading.Event(), []

    def put(self, keys, buffers, groups=None):
        self.names += keys
        self.has_begun.set()
        return self.inner.put(keys, buffers, groups)


class Bench:
    """A rank on a pool, and a prompt whose blocks are there."""

    def __init__(self, pool):
        self.pool = Watched(pool)
        blocks = 2 * RELOAD_BLOCKS + BURST * BURST_BLOCKS
        self.memory = DirectMemory(CacheLayout(parts.cache(LAYERS, 2, blocks, SEGMENT_BYTES)), 0)
        self.walks = assemble.build_walks(
            self.pool,
            KvPoolOptions(),
            self.memory,
            self.memory.regions,
            BlockKeys("bench", "model", "f" * 32, "0of1", parts.BLOCK_SIZE),
            Replica(),
            running=lambda sequence_id: None,
            device_idle=lambda: True,
            agree=lambda lengths: lengths,
            async_write=True,
        )
        self.numbers = itertools.count(1)
        self.prompt = self.tokens(RELOAD_BLOCKS)
        self.free(self.prompt, 0, RELOAD_BLOCKS)
        assert self.walks.spill.drain(JOIN_S)
        self.reload = self.walks.prefill._reload

    def tokens(self, blocks):
        return np.arange(blocks * parts.BLOCK_SIZE, dtype=np.int64) + (next(self.numbers) << 32)

    def free(self, tokens, first, blocks):
        number, ids = next(self.numbers), np.arange(first, first + blocks)
        self.walks.directory.rewrite(number, ids)
        freed = FreedSequence(number, tokens, np.arange(blocks), ids)
        self.walks.spill.freed(freed, np.ones(blocks, dtype=bool))

    def load(self):
        """Seconds of a reload."""
        ids = np.arange(RELOAD_BLOCKS, 2 * RELOAD_BLOCKS)
        self.walks.directory.rewrite(0, ids)
        hit = PoolHit(0, self.prompt, np.arange(RELOAD_BLOCKS), ids, 0, RELOAD_BLOCKS)
        began = time.perf_counter()
        lengths = self.reload.load([hit])
        taken = time.perf_counter() - began
        assert lengths.tolist() == [RELOAD_BLOCKS]
        return taken

    def load_in_a_burst(self):
        """The same while the spills of some requests are queued and the first is on its way."""
        self.pool.has_begun.clear()
        self.pool.names.clear()
        for index in range(BURST):
            self.free(self.tokens(BURST_BLOCKS), 2 * RELOAD_BLOCKS + index * BURST_BLOCKS, BURST_BLOCKS)
        assert self.pool.has_begun.wait(JOIN_S)
        taken = self.load()
        assert self.walks.spill.drain(JOIN_S)
        assert len(self.pool.names) == 2 * BURST * BURST_BLOCKS
        store, _ = service.raw(self.pool.inner)
        for name in self.pool.names:
            store.remove(name, True)
        return taken


@contextlib.contextmanager
def without_way(bench):
    """As it was: a put of all that a request left, and nobody looks for reloads."""
    give, piece = RightOfWay.give, bench.walks.spill._piece
    RightOfWay.give = lambda self: None
    bench.walks.spill._piece = types.SimpleNamespace(num_bytes=1 << 40, learn=lambda *piece: None)
    try:
        yield
    finally:
        RightOfWay.give, bench.walks.spill._piece = give, piece


def rows():
    found, kept = [], []
    with service.mooncake(1280 << 20, clients=2) as pools:
        for place, pool in zip(("owner process", "client without memory"), pools, strict=True):
            bench = Bench(pool)
            kept.append(bench)  # a region is registered once, see bench_reload_spill
            taken = {"alone": [], "given": [], "not given": []}
            for _ in range(ROUNDS + 1):
                taken["alone"].append(bench.load())
                taken["given"].append(bench.load_in_a_burst())
                with without_way(bench):
                    taken["not given"].append(bench.load_in_a_burst())
            alone, given, before = (statistics.median(values[1:]) for values in taken.values())
            bench.walks.spill.close()
            size = RELOAD_BLOCKS * bench.memory.block_bytes >> 20
            label = f"{place}: reload of {size} MiB beside a burst of spills, against alone"
            found.append(measure.at_most(label, given, alone, MAX_RATIO))
            row = measure.at_most("- without spills that give way", before, alone, MAX_RATIO)
            found.append(replace(row, target="-", is_met=None))
    return found


if __name__ == "__main__":
    measure.main("bench_right_of_way", rows)
