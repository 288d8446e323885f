"""What the scheduler was answered, for whoever asks why a prompt was promised no more.

A lookup names blocks and no request; it is found again by the host's hash of the last full block, which is chained over
all tokens before it.  Scheduler's thread; ``told`` from any.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

Outcome = Literal["answered", "late", "left_alone", "failed"]


class Lookup(NamedTuple):
    """The latest lookup of a prompt.

    Attributes:
        at_s: when, seconds since 1970.
        asked, found: blocks behind those in device memory.
        took_s: how long the scheduler waited.
        outcome: "late": no answer within ``lookup_budget_s``; "left_alone": nobody was asked.
        times: that it was asked, waiting requests at every step.
    """

    at_s: float
    asked: int
    found: int
    took_s: float
    outcome: Outcome
    times: int


class Lookups:
    """The latest ones.

    Args:
        capacity: prompts.
        budget_s: after which an answer comes too late.
        no_block: how a key begins that names no full block.
    """

    def __init__(self, capacity: int, budget_s: float, no_block: str) -> None:
        self._capacity = capacity
        self._budget_s = budget_s
        self._no_block = no_block
        self._latest: OrderedDict[str, Lookup] = OrderedDict()

    def note(self, keys: Sequence[str], found: int, took_s: float, outcome: Outcome) -> None:
        """The scheduler was answered.

        Args:
            keys: the host's.
            found: leading hits among them.
            took_s: how long it took.
            outcome: what is known of it besides.
        """
        full = len(keys)
        while full and keys[full - 1].startswith(self._no_block):
            full -= 1
        if not full:
            return
        block, _, rest = keys[full - 1].partition("_")
        width = rest.split("_", 2)[1] if rest.count("_") > 1 else "1"
        ranks = max(1, int(width)) if width.isdecimal() else 1
        before = self._latest.pop(block, None)
        if outcome == "answered" and took_s >= self._budget_s:
            outcome = "late"
        times = before.times + 1 if before is not None else 1
        self._latest[block] = Lookup(time.time(), full // ranks, found // ranks, took_s, outcome, times)
        if len(self._latest) > self._capacity:
            self._latest.popitem(last=False)

    def told(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """All of them, by the last block's hash, whatever was asked for."""
        del question
        return {"lookups": {block: each._asdict() for block, each in list(self._latest.items())}}
