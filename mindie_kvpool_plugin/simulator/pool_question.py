"""What the host's scheduler asks a pool, and how it reads the answer."""

from __future__ import annotations

from typing import Any


def leading_hits(lookup: Any, hashes: list[int], tp: int, model_name: str) -> int:
    """How many of the blocks, from the first on, the pool has for all ranks.

    Args:
        lookup: the scheduler's pool object; None: no pool.
        hashes: names of the blocks.  One that is not full has none: the host asks for hash 0.
        tp: ranks.
        model_name: the served name.

    Raises:
        TypeError: the answer is not one Python bool per key: the host casts nothing else.
    """
    if lookup is None or not hashes:
        return 0
    keys = [f"{name}_{rank}_{tp}_{model_name}" for name in hashes for rank in range(tp)]
    answer = lookup.batch_exist(keys)
    if len(answer) != len(keys) or not all(type(found) is bool for found in answer):
        raise TypeError("batch_exist must answer one Python bool per key: the host casts nothing else")
    leading = next((index for index, found in enumerate(answer) if not found), len(answer))
    return leading // tp
