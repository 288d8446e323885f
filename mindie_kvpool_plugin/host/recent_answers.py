"""What the pool answered a moment ago.

One entry per question, found by its last full block: the host's hash of a block is chained over all tokens
before it, so it and the number of keys up to it name all blocks asked for, and asking again costs the same
however long the prompt is.  A remembered hit may be gone from the pool, which costs a recompute; a remembered miss
may have arrived, which costs the hit, so misses are believed for a shorter time.

Scheduler's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

CAPACITY = 8192
MISS_AGE_S = 0.05
"""A step or two.  Blocks arrive all the time: 0.2 s cost a replayed trace 2 % of its hits."""


class _Answer(NamedTuple):
    full: int
    asked: int
    found: int
    hits_until_s: float
    miss_until_s: float


class RecentAnswers:
    """Answers by question.

    Attributes:
        age_s: seconds for which a hit is believed; 0: nothing is remembered.

    Args:
        no_block: how a key begins that names no full block.
        clock: seconds, monotonic.
        capacity: questions it may hold; the oldest make room.
    """

    def __init__(self, age_s: float, no_block: str, clock: Callable[[], float], capacity: int = CAPACITY) -> None:
        self.age_s = age_s
        self._no_block = no_block
        self._clock = clock
        self._capacity = capacity
        self._answers: dict[str, _Answer] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def leading(self, keys: Sequence[str]) -> tuple[int, bool]:
        """How many leading keys are known to be hits, and whether that is all there is to know."""
        full = self._full(keys)
        answer = self._answers.get(keys[full - 1]) if full else None
        if answer is None or answer.full != full or answer.asked != len(keys):
            return 0, False
        now = self._clock()
        if now >= answer.hits_until_s:
            return 0, False
        return answer.found, answer.found == answer.asked or now < answer.miss_until_s

    def note(self, keys: Sequence[str], known: int, found: int) -> None:
        """``found`` leading keys are hits, of which ``known`` were known and not asked for again."""
        full = self._full(keys)
        if self.age_s <= 0 or not full:
            return
        now = self._clock()
        before = self._answers.pop(keys[full - 1], None)
        # what was not asked for again is no younger for it
        hits_until_s = before.hits_until_s if before is not None and known else now + self.age_s
        if len(self._answers) >= self._capacity:
            del self._answers[next(iter(self._answers))]
        self._answers[keys[full - 1]] = _Answer(full, len(keys), found, hits_until_s, now + MISS_AGE_S)

    def _full(self, keys: Sequence[str]) -> int:
        """How many leading keys there are up to the last one that names a full block."""
        full = len(keys)
        while full and keys[full - 1].startswith(self._no_block):
            full -= 1
        return full
