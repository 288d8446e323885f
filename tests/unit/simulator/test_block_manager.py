"""Unit tests of simulator/block_manager.py.  Blocks hold four tokens; ``[1]`` is device block 1."""

import numpy as np
import pytest

from mindie_kvpool_plugin.core.block_keys import host_hash_chain
from mindie_kvpool_plugin.simulator.block_manager import (
    NO_HASH,
    UNKNOWN_TOKEN,
    BlockManager,
    BlockTable,
    Clock,
    OutOfBlocksError,
    chain_hash,
)

A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]


def _manager(num_blocks=4):
    return BlockManager(num_blocks, 4)


def _spent(manager, tokens, accessed):
    """Run and free a sequence; its block ids."""
    table = manager.allocate(tokens)
    manager.mark_computed()
    block_ids = list(table.block_ids)
    manager.free(table, accessed)
    manager.check_integrity()
    return block_ids


@pytest.mark.parametrize(
    ("previous", "tokens", "extra", "expected"),
    [
        (NO_HASH, A, NO_HASH, 0x822B05D9ADE4AF7F),
        (0x822B05D9ADE4AF7F, B, NO_HASH, 0xE78B1E83BC8B31FE),
        (NO_HASH, [-1, 0, 7, 8], NO_HASH, 0x822B05D9ABEE57E9),
        (NO_HASH, A, 99, 0x822B05D9ADE4AFD8),
    ],
)
def test_chain_hash_equals_the_hosts(previous, tokens, extra, expected):
    """Golden values of the host's hash: first block, chained block, a placeholder token, a LoRA adapter."""
    assert chain_hash(previous, tokens, extra) == expected


def test_chain_hash_agrees_with_the_workers():
    """Scheduler and worker name the same blocks alike."""
    tokens = list(range(1000, 1064))
    names, previous = [], NO_HASH
    for at in range(0, len(tokens), 4):
        previous = chain_hash(previous, tokens[at : at + 4])
        names.append(previous)
    assert names == host_hash_chain(np.array(tokens, dtype=np.int64), 4)


def test_equal_prefixes_share_blocks():
    """[0] is shared while both run, and counts as computed once the batch was scheduled."""
    manager = _manager()
    first = manager.allocate([*A, 5])
    second = manager.allocate([*A, 6])
    assert (first.block_ids, second.block_ids) == ([0, 1], [0, 2])
    assert manager.num_computed(second) == 0
    manager.mark_computed()
    assert manager.num_computed(second) == 1


def test_freed_blocks_stay_cached_until_their_ids_are_needed():
    """Unnamed blocks are handed out first, cached ones only when none is left."""
    manager = _manager()
    assert _spent(manager, A + B, 1.0) == [0, 1]
    assert manager.allocate(C).block_ids == [2]
    assert manager.num_computed(manager.allocate(A)) == 1
    assert manager.evictions == 0


def test_oldest_sequence_is_evicted_first_and_its_deepest_block_before_the_others():
    """[0, 1] used at 1, [2, 3] at 2: [1] leaves, then [0], then [3]."""
    manager = _manager()
    _spent(manager, A + B, 1.0)
    _spent(manager, C + A, 2.0)
    assert [manager.allocate([token]).block_ids for token in (20, 21, 22)] == [[1], [0], [3]]
    assert manager.evictions == 3


def test_deepest_blocks_are_evicted_first_when_the_clock_is_coarse():
    """Equal time stamps: [1] and [3] leave before [0] and [2], whoever was used last."""
    manager = _manager()
    _spent(manager, A + B, 1.0)
    _spent(manager, C + A, 1.0)
    assert [manager.allocate([token]).block_ids for token in (20, 21, 22)] == [[1], [3], [0]]


def test_block_filled_by_decode_is_named_and_found():
    """An answer's full block is a hit for the next turn."""
    manager = _manager()
    table = manager.allocate(A[:3])
    manager.append(table, [A[3]])
    manager.mark_computed()
    assert table.hashes == [chain_hash(NO_HASH, A)]
    assert manager.allocate(A).block_ids == table.block_ids


def test_block_filled_by_decode_merges_with_an_equal_one():
    """[1] gets the content of [0]: the table moves to [0] and [1] is free again."""
    manager = _manager()
    manager.allocate(A)
    table = manager.allocate(A[:3])
    assert table.block_ids == [1]
    manager.append(table, [A[3]])
    assert table.block_ids == [0]
    assert (manager.merges, manager.num_free) == (1, 3)
    manager.check_integrity()


def test_block_that_ends_in_an_unknown_token_has_no_name():
    """Asynchronous scheduling: the block, and all after it, are not cached."""
    manager = _manager()
    table = manager.allocate(A[:3])
    manager.append(table, [UNKNOWN_TOKEN, *B])
    assert table.hashes == [NO_HASH, NO_HASH]


def test_block_with_an_unknown_token_inside_has_a_name():
    """Only the last token is looked at, as in the host."""
    manager = _manager()
    table = manager.allocate(A[:2])
    manager.append(table, [UNKNOWN_TOKEN, 4])
    assert table.hashes == [chain_hash(NO_HASH, [1, 2, UNKNOWN_TOKEN, 4])]


def test_allocation_fails_when_every_block_is_in_use():
    """No free block, none cached."""
    manager = _manager(2)
    manager.allocate(A + B)
    with pytest.raises(OutOfBlocksError):
        manager.allocate(C)


def test_double_free_is_refused():
    """A block cannot be given back twice."""
    manager = _manager()
    table = manager.allocate(A)
    copy = BlockTable(list(table.block_ids), list(table.hashes), [], table.filled)
    manager.free(table, 1.0)
    with pytest.raises(RuntimeError, match="freed twice"):
        manager.free(copy, 1.0)


def test_coarse_clock_stands_still_within_its_resolution():
    """The host's float32 seconds are 128 s apart; the exact clock always moves."""
    coarse, exact = Clock("coarse"), Clock()
    assert coarse.now() % 128 == 0
    assert exact.now() < exact.now()


def test_unknown_clock_is_refused():
    """The choices are named."""
    with pytest.raises(ValueError, match='expected "exact" or "coarse"'):
        Clock("float16")
