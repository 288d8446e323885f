"""A damaged block is a get that failed."""

import sys

import numpy as np
import pytest

from mindie_kvpool_plugin.blocks import Region
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.base import Answers, Elsewhere
from mindie_kvpool_plugin.pools.guards import checked
from mindie_kvpool_plugin.pools.guards.checked import CheckedPool
from mindie_kvpool_plugin.pools.local_dram import LocalDram
from tests.conftest import Memory

KEYS = [f"block/{number}" for number in range(8)]


class Damaging(LocalDram):
    """After a get, flips one bit of one destination block, or loads another key's bytes."""

    def __init__(self):
        super().__init__(1 << 20)
        self.victim = None
        self.swap = {}
        self.regions = []

    def register(self, regions):
        self.regions = list(regions)

    def get(self, keys, buffers):
        arrived = super().get([self.swap.get(key, key) for key in keys], buffers)
        if self.victim is not None:
            row, segment = self.victim
            size = int(buffers.sizes[segment])
            import ctypes

            last = (ctypes.c_uint8 * size).from_address(int(buffers.addresses[row, segment]))
            last[size - 1] ^= 0x10
        return Answers(arrived, "planted" if self.swap else None)


@pytest.fixture
def pool():
    inner, counters = Damaging(), Counters()
    return CheckedPool(inner, counters), inner, counters


def test_blocks_come_back_whole(pool):
    """Checksums cost nothing but their bytes."""
    checked_pool, inner, counters = pool
    source, target = Memory(8).fill(1), Memory(8)
    assert checked_pool.put(KEYS, source.buffers) == [True] * 8
    assert inner.used_bytes == 8 * (source.buffers.block_bytes + checked.CHECKSUM_BYTES)
    assert checked_pool.get(KEYS, target.buffers) == [True] * 8
    assert np.array_equal(source.bytes, target.bytes)
    assert counters.corrupt_blocks == 0


@pytest.mark.parametrize("segment", [0, 1, 2, 3])
def test_one_flipped_bit_anywhere_fails_that_block(pool, segment):
    """In any segment, the checksum's own included."""
    checked_pool, inner, counters = pool
    checked_pool.put(KEYS, Memory(8).fill(1).buffers)
    inner.victim = (5, segment)
    assert checked_pool.get(KEYS, Memory(8).buffers) == [True] * 5 + [False] + [True] * 2
    assert counters.corrupt_blocks == 1


def test_another_keys_bytes_do_not_pass(pool):
    """Whole and undamaged, but stored under another name; the backend's own trouble is passed on."""
    checked_pool, inner, counters = pool
    checked_pool.put(KEYS, Memory(8).fill(1).buffers)
    inner.swap = {KEYS[2]: KEYS[3]}
    answers = checked_pool.get(KEYS, Memory(8).buffers)
    assert answers == [True] * 2 + [False] + [True] * 5
    assert answers.trouble == "planted"
    assert counters.corrupt_blocks == 1


def test_misses_are_misses(pool):
    """Nothing is compared that did not arrive."""
    checked_pool, _, counters = pool
    checked_pool.put(KEYS[:2], Memory(2).fill(1).buffers)
    assert checked_pool.get(KEYS, Memory(8).buffers) == [True] * 2 + [False] * 6
    assert counters.corrupt_blocks == 0


def test_long_calls_go_in_parts(pool, monkeypatch):
    """More blocks than there is room for checksums."""
    monkeypatch.setattr(checked, "MAX_ROWS", 3)
    checked_pool, _, _ = pool
    source, target = Memory(8).fill(2), Memory(8)
    assert checked_pool.put(KEYS, source.buffers, groups=KEYS) == [True] * 8
    assert checked_pool.get(KEYS, target.buffers) == [True] * 8
    assert np.array_equal(source.bytes, target.bytes)


def test_what_came_from_elsewhere_is_told_of_all_parts(pool, monkeypatch):
    """Of eight blocks in three calls."""
    monkeypatch.setattr(checked, "MAX_ROWS", 3)
    checked_pool, inner, _ = pool
    assert checked_pool.put(KEYS, Memory(8).fill(2).buffers) == [True] * 8
    get = inner.get
    inner.get = lambda *call: Answers(get(*call), elsewhere=Elsewhere(2, 0.5))
    assert checked_pool.get(KEYS, Memory(8).buffers).elsewhere == Elsewhere(6, 1.5)


@pytest.mark.parametrize(("num_elsewhere", "told"), [(8, 7), (7, 7), (3, 3)])
def test_what_came_damaged_from_elsewhere_did_not_arrive(pool, num_elsewhere, told):
    """Never more came from there than came at all; its seconds passed."""
    checked_pool, inner, _ = pool
    assert checked_pool.put(KEYS, Memory(8).fill(2).buffers) == [True] * 8
    get, inner.victim = inner.get, (5, 0)
    inner.get = lambda *call: Answers(get(*call), elsewhere=Elsewhere(num_elsewhere, 0.5))
    assert checked_pool.get(KEYS, Memory(8).buffers).elsewhere == Elsewhere(told, 0.5)


def test_checksums_lie_in_registered_memory(pool):
    """A transport may touch nothing else."""
    checked_pool, inner, _ = pool
    checked_pool.register([Region(4096, 64)])
    assert inner.regions == [Region(4096, 64), checked_pool._put_sums.region, checked_pool._get_sums.region]


def test_a_missing_package_is_named(monkeypatch):
    """The option cannot work without it."""
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ConfigError, match=r"verify_payload .*xxhash.*\[verify\]"):
        CheckedPool(Damaging(), Counters())


def test_blocks_come_back_whole_through_mooncake(shared_mooncake):
    """The checksum is one more slice of the object."""
    checked_pool = CheckedPool(shared_mooncake, Counters())
    memory = Memory(8).fill(3)
    keys, target = [f"checked/{key}" for key in KEYS], Memory(8)
    assert checked_pool.put(keys, memory.buffers) == [True] * 8
    assert checked_pool.get(keys, target.buffers) == [True] * 8
    assert np.array_equal(memory.bytes, target.bytes)
