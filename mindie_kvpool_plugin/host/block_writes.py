"""Which blocks the host writes outside a batch, as it names them where it does.

A batch names its blocks in its tables (``host.step_view``).  Everything else that writes the cache passes one of
the host's functions below; ``host.patches`` wraps each, asks here for the blocks, and tells the plugin before the
host goes on.  ``tests/host/test_block_writes.py`` lists every function of the host's source that writes the cache
and how it is seen.

* ``Generator.copy_blocks``: copy-on-write for n, best_of and beams (router_impl.py, before the batch).
* ``Generator.swap``: preempted sequences come back from host memory (router_impl.py, before the batch).
* ``PDInterface.pull_kv``: another node's prefill, on a transfer thread.
* ``Generator.execute_recover_command``: a device is closed, repaired and opened again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mindie_kvpool_plugin.blocks import BlockIds

SWAP_IN = 0
"""Of a swap decision [kind, source, destination]: from host memory to the device."""

CLOSING_COMMANDS = frozenset({"CMD_PAUSE_ENGINE", "CMD_PAUSE_ENGINE_ROCE"})
OPENING_COMMAND = "CMD_START_ENGINE"


def copied(source_and_destination: Any) -> BlockIds:
    """Destinations of ``copy_blocks``.

    Args:
        source_and_destination: int [copies, 2].
    """
    pairs = np.asarray(source_and_destination, dtype=np.int64).reshape(-1, 2)
    destinations: BlockIds = pairs[:, 1]
    return destinations


def swapped_in(block_operation: Any) -> BlockIds:
    """Device blocks that ``swap`` fills.

    Args:
        block_operation: int [1, operations, 3] of kind, source and destination.
    """
    decisions = np.asarray(block_operation[0], dtype=np.int64).reshape(-1, 3)
    filled: BlockIds = decisions[decisions[:, 0] == SWAP_IN, 2]
    return filled


def pulled(sources: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> BlockIds:
    """Device blocks that ``pull_kv`` fills.

    Args:
        sources: (node, its blocks, our blocks) per node.
    """
    return np.array([block for _, _, own in sources for block in own], dtype=np.int64)


def all_arrived(result: tuple[Any, int]) -> bool:
    """Whether ``pull_kv`` brought everything.

    Args:
        result: (the host's status, the node that failed); its status for success is 0.
    """
    status = result[0]
    return bool(getattr(status, "value", status) == 0)
