"""The directory lets a block be stored under a digest only when its content is certain."""

import numpy as np
import pytest

from mindie_kvpool_plugin.core.block_directory import MIXED, NOBODY, BlockDirectory

DIGESTS = np.arange(8, dtype=np.uint64).reshape(4, 2)


def ids(*block_ids):
    return np.array(block_ids, dtype=np.int64)


def everything(count):
    return np.ones(count, dtype=bool)


def test_claim_covers_what_the_sequence_wrote_itself():
    """Blocks [1, 2] written by sequence 7, [3] by 8: 7 may claim 1 and 2 only."""
    directory = BlockDirectory(4)
    directory.rewrite(7, ids(1, 2))
    directory.rewrite(8, ids(3))
    claim = directory.claim(7, ids(1, 2, 3), everything(3))
    assert claim.written.tolist() == [True, True, False]
    assert directory.writers(ids(1, 3)).tolist() == [NOBODY, 8]


def test_claim_leaves_out_blocks_the_host_replaced():
    """After a merge the sequence's table names another sequence's block."""
    directory = BlockDirectory(4)
    directory.rewrite(7, ids(1, 2))
    assert directory.claim(7, ids(1, 2), np.array([True, False])).written.tolist() == [True, False]


def test_extend_marks_a_block_with_two_writers_as_mixed():
    """Asynchronous scheduling: sequence 8 writes into sequence 7's block, whose content is then nobody's."""
    directory = BlockDirectory(4)
    directory.rewrite(7, ids(1))
    directory.extend(np.array([8]), ids(1))
    assert directory.writers(ids(1)).tolist() == [MIXED]
    assert not directory.claim(7, ids(1), everything(1)).written.any()
    assert not directory.claim(8, ids(1), everything(1)).written.any()


def test_settle_is_ignored_for_blocks_rewritten_meanwhile():
    """A spill that finishes late must not describe the block's next content."""
    directory = BlockDirectory(4)
    directory.rewrite(7, ids(1, 2))
    claim = directory.claim(7, ids(1, 2), everything(2))
    directory.rewrite(8, ids(2))
    directory.settle(claim, DIGESTS[:2], everything(2), everything(2), 10.0)
    assert directory.holds(ids(1, 2), DIGESTS[:2]).tolist() == [True, False]


def test_pooled_is_believed_for_a_while_only():
    """The pool may lose what it holds, so the belief ends."""
    now = [0.0]
    directory = BlockDirectory(4, clock=lambda: now[0])
    directory.fill(ids(1), DIGESTS[:1], proof_s=10.0)
    assert directory.claim(7, ids(1), everything(1)).pooled.tolist() == [True]
    now[0] = 10.5
    assert directory.claim(7, ids(1), everything(1)).pooled.tolist() == [False]


def test_rewrite_and_forget_end_what_is_known():
    """A block that will be written, or a directory in doubt, knows nothing."""
    directory = BlockDirectory(4)
    directory.fill(ids(1, 2), DIGESTS[:2], proof_s=10.0)
    directory.rewrite(7, ids(1))
    assert directory.holds(ids(1, 2), DIGESTS[:2]).tolist() == [False, True]
    directory.forget()
    assert not directory.holds(ids(1, 2), DIGESTS[:2]).any()


def test_check_integrity_sees_a_contradiction():
    """The check can fail: a block that is being written has no known content."""
    directory = BlockDirectory(4)
    directory.fill(ids(1), DIGESTS[:1], proof_s=10.0)
    directory.check_integrity()
    directory._writer[1] = 7
    with pytest.raises(AssertionError, match=r"\[1\]"):
        directory.check_integrity()
