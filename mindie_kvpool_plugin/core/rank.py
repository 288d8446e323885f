"""What both walks of one rank work on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mindie_kvpool_plugin.core.block_directory import BlockDirectory
from mindie_kvpool_plugin.core.block_keys import BlockKeys
from mindie_kvpool_plugin.core.device_gate import DeviceGate
from mindie_kvpool_plugin.core.held_up import HeldUp
from mindie_kvpool_plugin.core.memory import BlockMemory
from mindie_kvpool_plugin.core.right_of_way import RightOfWay
from mindie_kvpool_plugin.core.why.notes import Notes
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.base import PoolBackend


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's share of the service.

    Attributes:
        pool: where blocks go and come from.
        memory: the device's blocks.
        keys: their names in the pool.
        directory: what they contain.
        counters: where the walks count.
        device_idle: waits until earlier batches have left the device; False when they did not in time.
        gate: what every copy from and to the device passes.
        way: what reloads take and spills give.
        held: how long the step that runs was held up.
        why: where the walks note what ends a prompt's prefix; None: nobody asks.
        clock: seconds, monotonic, by which the walks measure what a step waits for.
    """

    pool: PoolBackend
    memory: BlockMemory
    keys: BlockKeys
    directory: BlockDirectory
    counters: Counters
    device_idle: Callable[[], bool]
    gate: DeviceGate = field(default_factory=DeviceGate)
    way: RightOfWay = field(default_factory=RightOfWay)
    held: HeldUp = field(default_factory=HeldUp)
    why: Notes | None = None
    clock: Callable[[], float] = time.monotonic
