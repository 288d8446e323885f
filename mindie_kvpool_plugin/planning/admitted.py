"""What the devices' log gives to a pool under ``kv_pool.admission`` second_use, by the plugin's own code.

What is admitted depends on the sequences that ended and not on the pool, so it is decided once for all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mindie_kvpool_plugin.blocks import Digests
from mindie_kvpool_plugin.core.admission import CAPACITY_BLOCKS, SecondUse
from mindie_kvpool_plugin.planning.device_side import ENDED, DeviceLog, Event

_WORD = (1 << 64) - 1
_MIX = ((0xBF58476D1CE4E5B9, 30), (0x94D049BB133111EB, 27))  # of splitmix64


def second_use(log: DeviceLog, stored_at: int, ratio: float) -> list[Event]:
    """The events with what is not admitted left out.

    Args:
        log: as it came from the devices.
        stored_at: ``ENDED`` or ``OVERWRITTEN``: when the pool is given blocks.
        ratio: units of the log for each block.
    """
    groups = 1 + max((group for _, _, group in log.events), default=0)
    # a group's ranks are not told what the others' see
    memories = [SecondUse(max(1, math.ceil(CAPACITY_BLOCKS * ratio))) for _ in range(groups)]
    return [
        (_admitted(names, memories[group], is_chain=what == ENDED) if what == stored_at else names, what, group)
        for names, what, group in log.events
    ]


def _admitted(names: Sequence[int], memory: SecondUse, *, is_chain: bool) -> Sequence[int]:
    digests = _digests(names)
    if is_chain:
        admitted = names[: memory.leading(digests)]
    else:
        admitted = [name for name, is_seen in zip(names, memory.seen(digests).tolist(), strict=True) if is_seen]
    memory.note(digests)
    return admitted


def _digests(names: Sequence[int]) -> Digests:
    """Two words per name that are spread as a digest's are."""
    words = np.array([name & _WORD for name in names], dtype=np.uint64)
    mixed = []
    for number in (1, 2):
        value = words * np.uint64(2) + np.uint64(number)
        for factor, shift in _MIX:
            value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
        mixed.append(value ^ (value >> np.uint64(31)))
    return np.stack(mixed, axis=1)
