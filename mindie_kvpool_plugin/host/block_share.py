"""Which blocks of a sequence lie on this rank, under context and sequence parallelism.

The scheduler deals a prompt's blocks out in turn, one after the other to the ranks from the first on; only the last
one goes to the last rank as soon as every rank has one (block_table.cpp, AllocateBlocksForTokenIdsSmallRankFirst).
Answers go on from there: the rank that has the last block fills it, then it is the next one's turn
(AppendNewTokens).  Each rank is given a table of its own blocks only.

A decode node that pulls such a prompt puts all blocks of the first rank first, then the next one's (router_impl.py,
_get_id_to_block_table_map): attention does not mind, but its table is not in the order of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mindie_kvpool_plugin.blocks import BlockIds


@dataclass(frozen=True, slots=True)
class BlockShare:
    """This rank's place among those that a sequence's blocks are dealt out to.

    Attributes:
        rank, size: the place; a single one has them all.
    """

    rank: int = 0
    size: int = 1

    def indexes(self, num_prompt_blocks: int, num_blocks: int) -> BlockIds:
        """int64 [n], which of a sequence's first ``num_blocks`` blocks lie here.

        Args:
            num_prompt_blocks: blocks of its prompt when it was last prefilled, a partial one included.
            num_blocks: how many to tell of.
        """
        every: BlockIds = np.arange(num_blocks, dtype=np.int64)
        if self.size == 1:
            return every
        last = num_prompt_blocks - 1
        owner_of_last = self.size - 1 if last >= self.size else last
        owners = np.where(every < last, every, owner_of_last + every - last) % self.size
        own: BlockIds = every[owners == self.rank]
        return own

    def counts(self, lengths: BlockIds) -> BlockIds:
        """int64 [n, size], how many of each number of leading blocks lie on each rank (the host's own arrays)."""
        share: BlockIds = (lengths[:, None] + self.size - 1 - np.arange(self.size)) // self.size
        return share


def places(counts: Sequence[int]) -> BlockIds | None:
    """Where each block of a prompt stands in the table of a node that pulled it.

    Args:
        counts: blocks that came from each rank, in the order of the ranks.

    Returns:
        int64 [blocks]; None if blocks are not dealt out like that.
    """
    size, total = len(counts), sum(counts)
    order = [BlockShare(rank, size).indexes(total, total) for rank in range(size)]
    if [len(own) for own in order] != list(counts):
        return None
    standing: BlockIds = np.argsort(np.concatenate(order, dtype=np.int64)) if order else np.zeros(0, dtype=np.int64)
    return standing
