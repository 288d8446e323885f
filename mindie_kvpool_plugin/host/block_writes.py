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


def counts_by_source(block_ids: BlockIds, sources: Sequence[tuple[int, Sequence[int], Sequence[int]]]) -> list[int]:
    """How many of a sequence's blocks came from each rank of another node, in the order of its table.

    Args:
        block_ids: int64 [blocks], its table; the pulled ones lead.
        sources: as of ``pulled``; several of one sequence where its blocks were dealt out (cp, sp).

    Returns:
        Nothing when they do not stand source after source.
    """
    own = [frozenset(blocks) for _, _, blocks in sources]
    held = [[number for number, blocks in enumerate(own) if block in blocks] for block in block_ids.tolist()]
    came = [numbers for numbers in held if numbers]
    if came != held[: len(came)]:
        return []
    if any(all(number in numbers for numbers in came) for number in range(len(own))):
        return [len(came)]
    first = [numbers[0] for numbers in came if len(numbers) == 1]
    is_in_order = len(first) == len(came) and first == sorted(first, key=list(dict.fromkeys(first)).index)
    return [first.count(number) for number in dict.fromkeys(first)] if is_in_order else []


def all_arrived(result: tuple[Any, int]) -> bool:
    """Whether ``pull_kv`` brought everything.

    Args:
        result: (the host's status, the node that failed); its status for success is 0.
    """
    status = result[0]
    return bool(getattr(status, "value", status) == 0)
