"""What n things take: a part for the call and a part for each, fitted to a few measured calls, stalls among them.

A resistant line (after Tukey): through one typical call of the smaller and one of the larger half, so that some that
stalled do not move it.  Where all are of about one size the parts cannot be told apart, and all of it is each one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LEAST_SPREAD = 2.0
"""How many times the size of the smaller half the larger one must be: closer ones differ by what stalls do."""


class Line(NamedTuple):
    """Attributes:
    call_s: seconds of a call, however few things it moves.
    each_s: seconds of each.
    """

    call_s: float
    each_s: float


def fit(calls: Sequence[tuple[float, float]]) -> Line:
    """The line through measured calls.

    Args:
        calls: number of things and seconds of each, at least one; numbers above 0.
    """
    ordered = sorted(calls)
    half = (len(ordered) + 1) // 2
    few, few_s = typical(ordered[:half])
    many, many_s = typical(ordered[-half:])
    if many < LEAST_SPREAD * few:
        return Line(0.0, many_s / many)
    each_s = min(max((many_s - few_s) / (many - few), 0.0), many_s / many)
    return Line(max(few_s - each_s * few, 0.0), each_s)


def typical(calls: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The call of the median pace; of two, the faster."""
    return sorted(calls, key=lambda call: call[1] / call[0])[(len(calls) - 1) // 2]
