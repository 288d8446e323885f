"""Collisions of the host's hash are easy to make, with tokens a user can send."""

import numpy as np
import pytest

from mindie_kvpool_plugin.core.block_keys import host_hash_chain
from mindie_kvpool_plugin.simulator.collisions import forged_pairs


@pytest.mark.parametrize(("block_size", "vocab_size"), [(4, 1024), (16, 1024), (128, 152_064)])
def test_forged_pairs_differ_and_have_equal_hashes(block_size, vocab_size):
    """All tokens are in the vocabulary; all blocks collide, the last one, too."""
    for one, two in forged_pairs(20, 3 * block_size, block_size, vocab_size):
        assert (one != two).any()
        assert ((two >= 0) & (two < vocab_size)).all()
        hashes = host_hash_chain(one, block_size)
        assert len(hashes) == 3
        assert hashes == host_hash_chain(two, block_size)
        assert np.array_equal(one[block_size:], two[block_size:])
