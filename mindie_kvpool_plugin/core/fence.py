"""Do not overwrite this block before its spill is done.

One counter per block id: spills that still have to read it.  The step thread closes and waits, the
thread that runs the spill opens; both under one condition, which the spill queue shares.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from mindie_kvpool_plugin.blocks import BlockIds


class Fence:
    """The fences of one rank's block ids.

    Attributes:
        changed: held while counters change, notified when a fence opens.
    """

    def __init__(self, num_blocks: int) -> None:
        self.changed = threading.Condition()
        self._readers = np.zeros(num_blocks, dtype=np.int32)
        self._num_closed = self._num_closed_ever = 0
        self._places = np.zeros(num_blocks, dtype=np.int64)  # of each block's last read among all there ever were

    def close(self, block_ids: BlockIds) -> None:
        """A spill will read these blocks (distinct ids)."""
        with self.changed:
            self._readers[block_ids] += 1
            self._places[block_ids] = self._num_closed_ever + np.arange(1, len(block_ids) + 1)
            self._num_closed_ever += len(block_ids)
            self._num_closed += len(block_ids)

    def open(self, block_ids: BlockIds) -> None:
        """That spill reads them no more."""
        with self.changed:
            self._readers[block_ids] -= 1
            self._num_closed -= len(block_ids)
            self.changed.notify_all()

    def is_open(self, block_ids: BlockIds) -> bool:
        """Whether no spill reads any of the blocks.  Step thread only: nobody else closes a fence."""
        return self._num_closed == 0 or not self._readers[block_ids].any()

    def ahead(self, block_ids: BlockIds) -> int:
        """Reads until the last one of these blocks, itself included, if all come in the order they were closed in.

        Step thread only; 0: nothing reads them.
        """
        with self.changed:
            waiting = block_ids[self._readers[block_ids] > 0]
            if not len(waiting):
                return 0
            return max(1, int(self._places[waiting].max()) - (self._num_closed_ever - self._num_closed))

    def wait(self, block_ids: BlockIds, timeout_s: float | None) -> bool:
        """Wait until no spill reads any of the blocks; False when the time ran out."""
        if self.is_open(block_ids):
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.changed:
            while not self.is_open(block_ids):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self.changed.wait(left)
        return True

    def num_closed(self) -> int:
        """Block reads that are outstanding."""
        return self._num_closed
