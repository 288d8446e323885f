"""Segments that lie one behind the other are one."""

import numpy as np
import pytest

from mindie_kvpool_plugin.blocks import Buffers

SIZES = np.array([8, 3, 5], dtype=np.int64)


def buffers(*starts, shift=0):
    """Blocks that begin there, their segments without gaps; the last one's last segment may be shifted."""
    addresses = np.array(starts, dtype=np.int64)[:, None] + np.array([0, 8, 11])
    addresses[-1:, -1] += shift
    return Buffers(addresses, SIZES)


def test_blocks_without_gaps_are_one_segment_each():
    """One slice for the transport instead of one per layer."""
    joined = buffers(100, 500).joined()
    assert joined.addresses.tolist() == [[100], [500]]
    assert joined.sizes.tolist() == [16]


@pytest.mark.parametrize("shift", [1, -1])
@pytest.mark.parametrize("starts", [(100,), (100, 500)])
def test_one_gap_leaves_all_as_they_are(starts, shift):
    """All blocks are cut alike, or none is."""
    before = buffers(*starts, shift=shift)
    assert before.joined() is before


def test_blocks_of_one_segment_and_no_blocks_at_all_stay():
    """Nothing to join."""
    single = Buffers(np.array([[100]]), np.array([8]))
    assert single.joined() is single
    assert len(Buffers(np.zeros((0, 3), dtype=np.int64), SIZES).joined()) == 0
