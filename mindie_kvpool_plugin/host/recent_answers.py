"""What the pool answered a moment ago.

Bounded in age and in size: two generations; the younger becomes the older when it is half the allowed age
old or half full, and the older is dropped when its first answer has the allowed age.  So nothing is kept
per answer but its name, and nothing is ever searched.  A remembered hit may be gone from the pool, which
costs a recompute; a remembered miss may have arrived, which costs the hit, so misses are remembered for a
shorter time.

Scheduler's thread only.
"""

from __future__ import annotations

from collections.abc import Callable

CAPACITY_BLOCKS = 65_536
MISS_AGE_S = 0.05
"""A step or two.  Blocks arrive all the time: 0.2 s cost a replayed trace 2 % of its hits."""


class RecentAnswers:
    """Hits and misses by name.

    Attributes:
        age_s: seconds for which a hit is believed; 0: nothing is remembered.

    Args:
        clock: seconds, monotonic.
        capacity_blocks: names it may hold.
    """

    def __init__(self, age_s: float, clock: Callable[[], float], capacity_blocks: int = CAPACITY_BLOCKS) -> None:
        self.age_s = age_s
        self._clock = clock
        self._half_capacity = capacity_blocks // 2
        self._began_s = self._old_began_s = 0.0
        self._young: set[str] = set()
        self._old: set[str] = set()
        self._misses: dict[str, float] = {}  # name -> until when

    def __len__(self) -> int:
        return len(self._young) + len(self._old) + len(self._misses)

    def leading(self, names: list[str]) -> tuple[int, bool]:
        """How many leading names are known to be hits, and whether the next one is known to be a miss."""
        if self.age_s <= 0:
            return 0, False
        now = self._clock()
        if now - self._began_s > self.age_s / 2:
            self._turn(now)
        if now - self._old_began_s > self.age_s:
            self._old = set()
        young, old = self._young, self._old
        for index, name in enumerate(names):
            if name not in young and name not in old:
                return index, self._misses.get(name, 0.0) > now
        return len(names), False

    def note(self, hits: list[str], miss: str | None) -> None:
        """The pool was asked just now."""
        if self.age_s <= 0:
            return
        now = self._clock()
        if len(self._young) + len(hits) > self._half_capacity or len(self._misses) >= self._half_capacity:
            self._turn(now)
        self._young.update(hits[: self._half_capacity])
        if miss is not None:
            self._misses[miss] = now + MISS_AGE_S

    def _turn(self, now: float) -> None:
        self._old, self._old_began_s = self._young, self._began_s
        self._young, self._began_s = set(), now
        self._misses = {}
