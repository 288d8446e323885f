"""Memory that is touched before it is used."""

import ctypes
import mmap

import pytest

from mindie_kvpool_plugin.services.warm import added, private_memory, warm

MIB = 1 << 20


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        ([], [(0, 9)], [(0, 9)]),
        ([(0, 9)], [(0, 9)], []),
        ([(2, 4), (6, 7)], [(0, 9)], [(0, 2), (4, 6), (7, 9)]),
        ([(0, 5)], [(3, 9), (20, 30)], [(5, 9), (20, 30)]),
        ([(0, 50)], [(3, 9)], []),
    ],
)
def test_added_memory_is_what_was_not_there(before, after, new):
    """The kernel joins neighbours, so ranges are cut."""
    assert added(before, after) == new


def resident(address, size):
    """Bytes of a range that are in memory."""
    seen = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), seen) == 0
    return sum(each & 1 for each in seen) * mmap.PAGESIZE


def test_warming_touches_every_page_and_changes_none():
    """New memory is found by itself, is in memory afterwards, and what was written before is still there."""
    size = 32 * MIB
    before = private_memory()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[5 * MIB : 5 * MIB + 5] = b"bytes"
    new = [(begin, end) for begin, end in added(before, private_memory()) if begin <= address < end]
    assert len(new) == 1
    assert new[0][1] >= address + size
    assert resident(address, size) < size
    assert warm([(address, address + size)]) == size
    assert resident(address, size) == size
    assert memory[5 * MIB : 5 * MIB + 5] == b"bytes"


def test_memory_that_is_not_there_is_an_error():
    """Not a crash."""
    with pytest.raises(OSError, match="Cannot allocate memory"):
        warm([(mmap.PAGESIZE, 2 * mmap.PAGESIZE)])
