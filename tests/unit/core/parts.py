"""Small real parts for the core's tests: a cache in numpy arrays, a pool that can fail on demand."""

import time
from contextlib import contextmanager, nullcontext

import numpy as np

from mindie_kvpool_plugin.blocks import Buffers, FreedSequence, PoolHit
from mindie_kvpool_plugin.core import rank as core_rank
from mindie_kvpool_plugin.core.block_directory import BlockDirectory
from mindie_kvpool_plugin.core.block_keys import BlockKeys
from mindie_kvpool_plugin.core.held_up import HeldUp
from mindie_kvpool_plugin.core.prefill import Prefill
from mindie_kvpool_plugin.core.reload import Reload
from mindie_kvpool_plugin.core.spill import Replica, Spill
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool
from mindie_kvpool_plugin.pools.local_dram import LocalDram

BLOCK_SIZE = 4


class ArrayMemory:
    """Two segments of 64 and 32 bytes per block."""

    reads_are_copies = False

    def __init__(self, num_blocks=16, max_blocks_per_call=None):
        self.num_blocks = num_blocks
        self.segments = [np.zeros((num_blocks, 64), np.uint8), np.zeros((num_blocks, 32), np.uint8)]
        self.block_bytes = 96
        self.max_blocks_per_call = max_blocks_per_call or num_blocks
        self.bound_threads = 0

    def fill(self, block_id, seed):
        for segment in self.segments:
            segment[block_id] = np.random.default_rng(seed).integers(0, 256, segment.shape[1], dtype=np.uint8)

    def content(self, block_id):
        return b"".join(segment[block_id].tobytes() for segment in self.segments)

    def _buffers(self, block_ids):
        addresses = np.stack([s.ctypes.data + block_ids * s.shape[1] for s in self.segments], axis=1)
        return Buffers(addresses, np.array([64, 32], dtype=np.int64))

    def read(self, block_ids):
        return nullcontext(self._buffers(block_ids))

    write = read

    def bind_thread(self):
        self.bound_threads += 1


class StagedArrayMemory(ArrayMemory):
    """The pool reads copies of the blocks."""

    reads_are_copies = True

    @contextmanager
    def read(self, block_ids):
        copies = [segment[block_ids].copy() for segment in self.segments]
        rows = np.arange(len(block_ids))
        addresses = np.stack([c.ctypes.data + rows * c.shape[1] for c in copies], axis=1)
        yield Buffers(addresses, np.array([64, 32], dtype=np.int64))


class ScriptedPool(LocalDram):
    """A local pool whose gets and puts can be refused by key, and which remembers its calls."""

    put_proof_s = 100.0

    def __init__(self, capacity_bytes=1 << 20):
        super().__init__(capacity_bytes)
        self.refuse_get = lambda key: False
        self.refuse_put = lambda key: False
        self.before_put = lambda: None
        self.puts, self.gets = [], []

    def put(self, keys, buffers, groups=None):
        self.before_put()
        self.puts.append(list(keys))
        stored = super().put(keys, buffers, groups)
        for index, key in enumerate(keys):
            if self.refuse_put(key):
                self.remove(key)
                stored[index] = False
        return stored

    def get(self, keys, buffers):
        self.gets.append(list(keys))
        arrived = super().get(keys, buffers)
        return [ok and not self.refuse_get(key) for key, ok in zip(keys, arrived, strict=True)]

    def data_keys(self):
        return [key for key in list(self.keys()) if key.count("/") == 3]

    def alias_keys(self):
        return [key for key in list(self.keys()) if key.count("/") == 2]


def guarded(pool):
    """The pool as the walks are given it: whatever it raises is a call that failed."""
    return GuardedPool(pool, "scripted", BreakerPolicy(), Counters())


class Rank:
    """One rank's walks around an ArrayMemory."""

    def __init__(
        self,
        pool=None,
        memory=None,
        queue=0,
        replica=None,
        agree=None,
        device_idle=None,
        fence_timeout_s=5.0,
        queue_bytes=1 << 30,
        load_gate=None,
        counters=None,
        admission=None,
        why=None,
        clock=time.monotonic,
        held=None,
    ):
        self.pool = ScriptedPool() if pool is None else pool
        self.memory = memory or ArrayMemory()
        self.counters = counters or Counters()
        self.directory = BlockDirectory(self.memory.num_blocks)
        self.keys = BlockKeys("ns", "model", "f" * 32, "0of1", BLOCK_SIZE)
        self.running = {}
        self.is_idle = True
        idle = device_idle or (lambda: self.is_idle)
        self.held = held or HeldUp(budget_s=3600.0)  # no step begins here, and all of a test would be one
        parts = core_rank.Rank(
            self.pool,
            self.memory,
            self.keys,
            self.directory,
            self.counters,
            idle,
            held=self.held,
            why=why,
            clock=clock,
        )
        self.gate = parts.gate
        self.spill = Spill(
            parts,
            replica or Replica(),
            self.running.get,
            queue_capacity_blocks=queue,
            fence_timeout_s=fence_timeout_s,
            queue_capacity_bytes=queue_bytes,
            admission=admission,
        )
        self.can_agree = True
        self.reload = Reload(parts, agree or (lambda lengths: lengths), load_gate, lambda: self.can_agree)
        self.prefill = Prefill(parts, self.spill, self.reload)

    def compute(self, sequence_id, tokens, block_ids):
        """The device writes a sequence's blocks; the bytes are a function of all tokens before them."""
        self.directory.rewrite(sequence_id, np.array(block_ids))
        for index, block_id in enumerate(block_ids):
            self.memory.fill(block_id, content_seed(tokens, index))

    def free(self, sequence_id, tokens, block_ids, given=None):
        given = np.ones(len(block_ids), dtype=bool) if given is None else np.array(given)
        self.spill.freed(freed(sequence_id, tokens, block_ids), given)

    def hit(self, tokens, block_ids, computed, promised):
        indexes = np.arange(computed, promised)
        return PoolHit(0, np.array(tokens, dtype=np.int64), indexes, np.array(block_ids)[indexes], computed, promised)

    def is_right(self, tokens, block_ids, index):
        expected = ArrayMemory(1)
        expected.fill(0, content_seed(tokens, index))
        return self.memory.content(block_ids[index]) == expected.content(0)


def freed(sequence_id, tokens, block_ids):
    used = np.array(tokens[: len(block_ids) * BLOCK_SIZE], dtype=np.int64)
    return FreedSequence(sequence_id, used, np.arange(len(block_ids)), np.array(block_ids, dtype=np.int64))


def content_seed(tokens, index):
    return [int(token) for token in tokens[: (index + 1) * BLOCK_SIZE]]


def prompt(first, num_blocks):
    return list(range(first, first + num_blocks * BLOCK_SIZE))
