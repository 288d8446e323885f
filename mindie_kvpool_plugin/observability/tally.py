"""What became of a step's pool hits, in counts: promised, used, given back and why, and what that was worth.

Step thread.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.log import logger

NumBlocks = npt.NDArray[np.int64]


class Lost(Enum):
    """Why this rank could not use promised blocks; the counter of each."""

    NOT_DELIVERED = "recomputed_not_delivered"
    POOL_LEFT_ALONE = "recomputed_pool_left_alone"
    DEVICE_CLOSED = "recomputed_device_closed"
    DEVICE_BUSY = "recomputed_device_busy"
    RANKS_DISAGREE = "recomputed_ranks_disagree"
    CHEAPER = "recomputed_cheaper"
    OVER_BUDGET = "recomputed_over_budget"


class Tally:
    """One rank's.

    Attributes:
        reason: why the hits that are loaded now did not arrive, should they not.
        left_out: why the pool was not asked for all of them.
    """

    def __init__(self, counters: Counters, block_size: int) -> None:
        self.reason = Lost.NOT_DELIVERED
        self.left_out = Lost.CHEAPER
        self._counters = counters
        self._block_size = block_size
        self._unpriced_tokens = 0

    def loaded(self, promised: NumBlocks, asked: NumBlocks, arrived: NumBlocks, agreed: NumBlocks) -> None:
        """A step's hits were loaded.

        Args:
            promised: int64 [hits], blocks promised to each prompt of this rank's cache.
            asked: int64 [hits], leading ones of these that the pool was asked for.
            arrived: int64 [hits], leading ones of these that arrived here.
            agreed: int64 [hits], leading ones of these that arrived on every rank.
        """
        counters = self._counters
        for depth in promised.tolist():
            counters.promised_depth.add(depth)
        for depth in agreed[agreed > 0].tolist():
            counters.loaded_depth.add(depth)
        self._promised(int(promised.sum()))
        self._count(self.left_out, int((promised - asked).sum()))
        self._count(self.reason, int((asked - arrived).sum()))
        counters.recomputed_other_rank += int((arrived - agreed).sum())
        self._used(int(agreed.sum()) * self._block_size)

    def gave_up(self, num_blocks: int) -> None:
        """Something unexpected happened before the ranks agreed: nothing of what was promised is used."""
        self._promised(num_blocks)
        self._counters.recomputed_error += num_blocks

    def _promised(self, num_blocks: int) -> None:
        self._counters.promised_blocks += num_blocks
        self._counters.promised_tokens += num_blocks * self._block_size

    def _count(self, lost: Lost, more: int) -> None:
        setattr(self._counters, lost.value, getattr(self._counters, lost.value) + more)

    def _used(self, tokens: int) -> None:
        """Tokens that need not be computed; before the host's pace was measured their worth is not known."""
        counters = self._counters
        if tokens and not counters.loaded_tokens:
            logger.info("first pool hit: %d prompt tokens came from the pool and are not computed", tokens)
        counters.loaded_tokens += tokens
        self._unpriced_tokens += tokens
        if counters.prefill_token_seconds:
            counters.saved_seconds += self._unpriced_tokens * counters.prefill_token_seconds
            self._unpriced_tokens = 0
