"""The answers to a pool call, as the walks use them.

Whatever a backend raises has become a failed call in its guards (``pools.guards.breaker``).  What is left is the
count: an answer that speaks of other keys than were asked for says nothing about any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindie_kvpool_plugin.core.block_directory import Mask
from mindie_kvpool_plugin.pools.base import Answers, Elsewhere


def answers(count: int, told: Sequence[bool]) -> Mask:
    """One bool per key: what the pool told, or all false when it told another number than ``count``."""
    found = np.array(told, dtype=np.bool_)
    return found if found.shape == (count,) else np.zeros(count, dtype=np.bool_)


def from_elsewhere(told: Sequence[bool]) -> Elsewhere:
    """What of a get came from elsewhere, as far as the pool told."""
    return told.elsewhere if isinstance(told, Answers) else Elsewhere()
