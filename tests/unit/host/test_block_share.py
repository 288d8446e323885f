"""Blocks are dealt out to ranks as the scheduler does it, token by token."""

import numpy as np
import pytest

from mindie_kvpool_plugin.host.block_share import BlockShare, places

SIZE = 4


def dealt(num_prompt_tokens, num_tokens, ranks):
    """The rank of every block, found by placing one block after the other (block_table.cpp)."""
    owners, rank = [], 0
    for begin in range(0, num_prompt_tokens, SIZE):
        owners.append(rank)
        left = num_prompt_tokens - begin - SIZE
        rank = ranks - 1 if 0 < left <= SIZE and len(owners) >= ranks else (rank + 1) % ranks
    for _ in range(-(-num_prompt_tokens // SIZE), -(-num_tokens // SIZE)):
        owners.append((owners[-1] + 1) % ranks)
    return owners


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("num_prompt_tokens", [1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 31, 32, 33, 37, 64])
@pytest.mark.parametrize("num_more", [0, 1, 3, 9, 30])
def test_indexes_are_the_blocks_the_scheduler_gives_a_rank(ranks, num_prompt_tokens, num_more):
    """For every length of prompt and answer around the block size."""
    owners = dealt(num_prompt_tokens, num_prompt_tokens + num_more, ranks)
    prompt_blocks = -(-num_prompt_tokens // SIZE)
    for rank in range(ranks):
        found = BlockShare(rank, ranks).indexes(prompt_blocks, len(owners)).tolist()
        assert found == [index for index, owner in enumerate(owners) if owner == rank]


def test_counts_are_the_leading_blocks_in_turn():
    """As the host counts reused blocks per rank."""
    assert BlockShare(0, 3).counts(np.array([0, 1, 4, 6])).tolist() == [[0, 0, 0], [1, 0, 0], [2, 1, 1], [2, 2, 2]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4, 5, 8, 9, 17])
def test_places_are_where_blocks_stand_that_were_pulled_rank_by_rank(ranks, num_blocks):
    """However a prompt was dealt out."""
    owners = dealt(num_blocks * SIZE, num_blocks * SIZE, ranks)
    table = [index for rank in range(ranks) for index, owner in enumerate(owners) if owner == rank]
    found = places([owners.count(rank) for rank in range(ranks) if rank in owners])
    assert [table[place] for place in found.tolist()] == list(range(num_blocks))


@pytest.mark.parametrize("counts", [[1, 5], [3, 1], [3, 2, 2]])
def test_places_are_not_told_of_blocks_that_were_not_dealt_out(counts):
    """Somebody else decided where they are."""
    assert places(counts) is None
