"""The embedded pool's memory: slots are used again, sizes may change, and a reader is never overtaken."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.pools.local_dram import LocalDram
from mindie_kvpool_plugin.pools.local_dram import pool as local_dram
from mindie_kvpool_plugin.pools.local_dram.slabs import Slabs
from tests.conftest import Memory

KIB = 1024


@pytest.fixture(params=["C", "Python"], autouse=True)
def language(request, monkeypatch):
    """The copy loop in C and its twin."""
    if request.param == "Python":
        monkeypatch.setattr(local_dram, "native", None)
    elif local_dram.native is None:
        pytest.skip("built without a compiler")


def test_a_full_pool_goes_on_with_other_sizes():
    """All memory is cut for one size, then for another, then for both."""
    pool = LocalDram(64 * KIB)
    for size in (2 * KIB, 3 * KIB, 2 * KIB):
        source = Memory(40, segments=2, segment_bytes=size // 2).fill(size)
        target = Memory(40, segments=2, segment_bytes=size // 2)
        names = [f"{size}/{number}" for number in range(40)]
        assert [pool.put([name], source.buffers.take(slice(i, i + 1))) for i, name in enumerate(names)] == [[True]] * 40
        found = np.flatnonzero(pool.get(names, target.buffers))
        assert len(found) == 64 * KIB // size if size == 2 * KIB else len(found) >= 20
        assert np.array_equal(target.bytes[found], source.bytes[found])
        assert pool.used_bytes <= pool.capacity_bytes


def test_the_least_recently_used_leave_first():
    """A put and a get make a key recent, a question does not."""
    pool = LocalDram(8 * KIB)
    one = Memory(1, segments=1, segment_bytes=2 * KIB).fill(1).buffers
    for name in "abcd":
        pool.put([name], one)
    pool.put(["a"], one)
    pool.get(["b"], one)
    pool.exists(["c"])
    pool.put(["e"], one)
    assert pool.keys() == ["d", "a", "b", "e"]


def test_a_slot_is_not_reused_while_it_is_read():
    """A value that loses its name during a get keeps its memory until the get is over."""
    pool = LocalDram(4 * KIB)
    source = Memory(3, segments=1, segment_bytes=2 * KIB).fill(2)
    pool.put(["a", "b"], source.buffers.take(slice(0, 2)))
    value = pool._objects["a"]
    value.readers += 1
    assert pool.put(["c"], source.buffers.take(slice(2, 3))) == [True]
    assert pool.exists(["a", "b", "c"]) == [False, False, True]
    memory = (local_dram.ctypes.c_char * value.size).from_address(value.address).raw
    assert memory == source.bytes[0].tobytes()


def test_keys_value_and_remove_show_what_is_inside():
    """The surface tests use: names, bytes that can be damaged, and losing a value."""
    pool = LocalDram(64 * KIB)
    source = Memory(2, segments=2, segment_bytes=KIB).fill(3)
    pool.put(["a", "b"], source.buffers)
    pool.put(["small"], source.buffers.head(16).take(slice(0, 1)))
    assert bytes(pool.value("a")) == source.bytes[0].tobytes()
    pool.value("b")[0] ^= 1
    target = Memory(2, segments=2, segment_bytes=KIB)
    pool.get(["a", "b"], target.buffers)
    assert np.count_nonzero(target.bytes != source.bytes) == 1
    pool.remove("a")
    pool.remove("never there")
    assert pool.keys() == ["small", "b"]
    assert pool.used_bytes == 2 * KIB + 16


def test_slabs_are_bounded_and_cut_anew_when_empty():
    """No slot beyond the capacity; a slab in use keeps its size."""
    slabs = Slabs(10_000, huge_pages=False)
    slots = [slabs.take(3_000) for _ in range(4)]
    assert [slot is not None for slot in slots] == [True, True, True, False]
    for slot in slots[:2]:
        slabs.give(slot)
    assert slabs.take(5_000) is None
    slabs.give(slots[2])
    assert slabs.take(5_000) is not None


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 12_000), min_size=1, max_size=4),
    offset=st.integers(0, 130),
    num_blocks=st.integers(1, 3),
)
def test_any_size_at_any_address_is_copied_exactly(sizes, offset, num_blocks):
    """Segments on no boundary, one behind the other, come back exact, and no byte beside them changes."""
    room = offset + num_blocks * sum(sizes) + 64
    source = np.random.default_rng(0).integers(1, 256, room, dtype=np.uint8)
    target = np.zeros(room, dtype=np.uint8)
    lengths = np.array(sizes * num_blocks, dtype=np.int64)
    starts = (np.cumsum(lengths) - lengths + offset).reshape(num_blocks, len(sizes))
    pool = LocalDram(256 * KIB)
    keys = [str(number) for number in range(num_blocks)]
    sizes = np.array(sizes, dtype=np.int64)
    assert pool.put(keys, Buffers(source.ctypes.data + starts, sizes)) == [True] * num_blocks
    assert pool.get(keys, Buffers(target.ctypes.data + starts, sizes)) == [True] * num_blocks
    assert np.array_equal(target[offset:-64], source[offset:-64])
    assert not target[:offset].any()
    assert not target[-64:].any()
