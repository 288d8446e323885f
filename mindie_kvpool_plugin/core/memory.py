"""Where the bytes of a block are, as the walks see it.  ``host.device_memory`` implements it.

``read`` and ``write`` are called by the step thread and by the spill thread, each after
``bind_thread`` on that thread.  Before ``read``: the device has finished writing the blocks.  After
``write``: the bytes are where the next batch reads them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from mindie_kvpool_plugin.blocks import BlockIds, Buffers


class BlockMemory(Protocol):
    """The key-value cache of one rank."""

    @property
    def num_blocks(self) -> int:
        """Blocks the cache has; ids are below it."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: all layers and segments of this rank."""
        ...

    @property
    def max_blocks_per_call(self) -> int:
        """Blocks one ``read`` or ``write`` may name."""
        ...

    @property
    def reads_are_copies(self) -> bool:
        """Whether the blocks themselves may change as soon as ``read`` has been entered."""
        ...

    def read(self, block_ids: BlockIds) -> AbstractContextManager[Buffers]:
        """The blocks' bytes, valid inside the ``with``."""
        ...

    def write(self, block_ids: BlockIds) -> AbstractContextManager[Buffers]:
        """Room for the blocks' bytes; on leaving the ``with`` they are in the blocks."""
        ...

    def bind_thread(self) -> None:
        """Tie the calling thread to this rank's device."""
        ...
