"""Pools of one size each under the device's log: what they hold, and what they answer.

Names only.  An ``OrderedDict`` is the order of eviction, the first leaves first; a disk below the pool takes what
leaves it.  The plugin's rules: a pool hit is a prefix (the question ends at the first miss), blocks are stored when
their request ends, and a block the pool holds is not stored again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from mindie_kvpool_plugin.planning.device_side import ENDED, OVERWRITTEN, Event
from mindie_kvpool_plugin.services.master_flags import EVICTED_SHARE, WATERMARK

Eviction = Literal["lru", "mooncake"]
EVICTIONS: tuple[Eviction, ...] = ("mooncake", "lru")


@dataclass(frozen=True, slots=True)
class PoolRules:
    """How a pool makes room, and when it is given what.

    Attributes:
        eviction: "lru": one block for one, the least recently stored or loaded, as ``local_dram``.  "mooncake": above
            the watermark a share of all objects leaves, those first whose last look-up or first put is longest ago;
            storing a block again does not make it younger.
        watermark, ratio: ``--eviction_high_watermark_ratio`` and ``--eviction_ratio`` of the master.
        at_overwrite: blocks are stored when the device overwrites them, instead of when their request ends.  Not what
            the plugin does; pool and device then hold different blocks, and the same memory answers more.
    """

    eviction: Eviction = "mooncake"
    watermark: float = WATERMARK
    ratio: float = EVICTED_SHARE
    at_overwrite: bool = False

    @property
    def stored_at(self) -> int:
        """The event of the device's log at which blocks are stored."""
        return OVERWRITTEN if self.at_overwrite else ENDED


@dataclass(frozen=True, slots=True)
class PoolHits:
    """Units that a pool answered and was given.

    Attributes:
        memory: from its memory.
        disk: from the disk below.
        writes: units that were put into it; what it had is not.
    """

    memory: int
    disk: int = 0
    writes: int = 0


def replay(events: Iterable[Event], pool_units: int, disk_units: int = 0, rules: PoolRules | None = None) -> PoolHits:
    """What a pool of so many units answers, of a device's log or what of it is admitted."""
    rules = rules or PoolRules()
    disk = _Disk(disk_units)
    pool = (_Mooncake if rules.eviction == "mooncake" else _Lru)(pool_units, rules, disk)
    wanted = rules.stored_at
    memory_hits = disk_hits = 0
    for names, what, _ in events:
        if what == wanted:
            pool.store(names)
        elif what >= 0:
            in_memory, on_disk = pool.load(names, what)
            memory_hits += in_memory
            disk_hits += on_disk
    return PoolHits(memory_hits, disk_hits, pool.writes)


class _Disk:
    """What left the pool's memory, the least recently used first.

    A block that is read from here stays here, and while it is here it is not stored in memory again: Mooncake knows
    the key (without ``--promotion_on_hit``, its default).
    """

    def __init__(self, capacity: int) -> None:
        self.held: OrderedDict[int, None] = OrderedDict()
        self._capacity = capacity

    def take(self, name: int) -> None:
        """A block leaves the pool's memory."""
        if self._capacity:
            self.held[name] = None
            if len(self.held) > self._capacity:
                self.held.popitem(last=False)


class _Lru:
    """One block makes room for one; what is stored again or loaded is young."""

    def __init__(self, capacity: int, rules: PoolRules, disk: _Disk) -> None:
        del rules
        self.held: OrderedDict[int, None] = OrderedDict()
        self.writes = 0
        self._capacity, self._disk = capacity, disk

    def load(self, names: Sequence[int], first: int) -> tuple[int, int]:
        """Look up and load the leading names from ``first`` on that are held: (in memory, on disk)."""
        held, disk = self.held, self._disk.held
        in_memory = on_disk = 0
        for name in islice(names, first, None):
            if name in held:
                held.move_to_end(name)
                in_memory += 1
            elif name in disk:
                disk.move_to_end(name)
                on_disk += 1
            else:
                break
        return in_memory, on_disk

    def store(self, names: Iterable[int]) -> None:
        """Put blocks in."""
        held, on_disk = self.held, self._disk.held
        for name in names:
            if name in held:
                held.move_to_end(name)
            elif name not in on_disk:
                held[name] = None
                self.writes += 1
                if len(held) > self._capacity:
                    self._disk.take(held.popitem(last=False)[0])


class _Mooncake(_Lru):
    """Above the watermark the master lets a share of all objects go (``MasterService::BatchEvict``)."""

    def __init__(self, capacity: int, rules: PoolRules, disk: _Disk) -> None:
        super().__init__(capacity, rules, disk)
        self._ratio, self._watermark = rules.ratio, rules.watermark

    def store(self, names: Iterable[int]) -> None:
        """Put blocks in; the pool knows those it has, and nothing changes for them."""
        held, on_disk = self.held, self._disk.held
        limit = self._watermark * self._capacity
        for name in names:
            if name not in held and name not in on_disk:
                held[name] = None
                self.writes += 1
                if len(held) > limit:
                    self._make_room()

    def _make_room(self) -> None:
        held = self.held
        used = len(held) / self._capacity
        share = max(self._ratio, used - self._watermark + self._ratio)
        for _ in range(max(1, math.ceil(share * len(held)))):
            self._disk.take(held.popitem(last=False)[0])
