"""The prefill walk: what a batch that begins prompts does to this rank's blocks, from top to bottom.

Step thread.  1. Whoever left something in a block that may be written is heard first, and its spill waited for.
2. What the pool promised is loaded, as far as it arrived on every rank.  3. The blocks that will be computed belong to
their sequences.  The host then computes what is left, in the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import PoolHit, Prompt
from mindie_kvpool_plugin.core.rank import Rank
from mindie_kvpool_plugin.core.reload import Reload
from mindie_kvpool_plugin.core.spill import Spill

Lengths = npt.NDArray[np.int64]


class Prefill:
    """One rank's prefill walk.

    Attributes:
        agreed: int64 [hits] as ``run`` returns them, from the moment the ranks have agreed on the current batch's
            hits; they stand, whatever goes wrong afterwards.  None before.
    """

    def __init__(self, rank: Rank, spill: Spill, reload: Reload) -> None:
        self.agreed: Lengths | None = None
        self._rank = rank
        self._spill = spill
        self._reload = reload

    def begin(self) -> None:
        """A batch arrives, and its step begins; nothing is agreed on yet."""
        self.agreed = None
        self._rank.held.seconds = 0.0
        if self._rank.why is not None:
            self._rank.why.begin()

    def run(self, prompts: Sequence[Prompt], hits: Sequence[PoolHit]) -> Lengths:
        """Prepare the blocks of a batch.

        Args:
            prompts: those of this rank's cache.
            hits: pool hits of the whole batch, equal on all ranks that run it.

        Returns:
            int64 [hits], leading blocks of each hit's prompt that may be reused.
        """
        size = self._rank.keys.block_size
        self._rank.counters.prompts += len(prompts)
        for prompt in prompts:
            self._spill.before_write(prompt.sequence_id, prompt.written(prompt.computed, size))
        lengths = self._reload.load(hits) if hits else np.zeros(0, dtype=np.int64)
        self.agreed = lengths
        reused = {hit.row: length for hit, length in zip(hits, lengths.tolist(), strict=True)}
        for prompt in prompts:
            length = reused.get(prompt.row, prompt.computed)
            self._rank.directory.rewrite(prompt.sequence_id, prompt.written(length, size))
        return lengths

    def give_up(self, num_hits: int) -> Lengths | None:
        """Something went wrong: answer what was agreed on, or tell all ranks that no hit of the batch may be used.

        Args:
            num_hits: pool hits of the whole batch.
        """
        if self.agreed is None and num_hits:
            self._reload.give_up(num_hits)
        return self.agreed

    def lost(self, num_blocks: int) -> None:
        """Count the blocks promised to prompts of this rank's cache that were given up."""
        self._reload.lost(num_blocks)
