"""Which known name was probably meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable

# a longer slip is another word
MAX_DISTANCE = 2


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name within two typing mistakes of ``name``, ignoring case and separators; None if there is none."""
    plain = _plain(name)
    best, best_distance = None, MAX_DISTANCE + 1
    for candidate in known:
        target = _plain(candidate)
        # short words are all neighbours of each other
        allowed = min(MAX_DISTANCE, len(target) // 3)
        if abs(len(plain) - len(target)) > allowed:
            continue
        found = _distance(plain, target, allowed)
        if found <= allowed and found < best_distance:
            best, best_distance = candidate, found
    return best


def _plain(name: str) -> str:
    return name[:80].replace("_", "").replace("-", "").replace(" ", "").lower()


def _distance(a: str, b: str, limit: int) -> int:
    """Insertions, deletions, replacements and swaps of neighbours; anything above ``limit`` is ``limit + 1``."""
    if a == b:
        return 0
    before_last: list[int] = []
    last = list(range(len(b) + 1))
    for i, ca in enumerate(a, 1):
        row = [i]
        for j, cb in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (ca != cb))
            if before_last and j > 1 and ca == b[j - 2] and a[i - 2] == cb:
                cost = min(cost, before_last[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
        before_last, last = last, row
    return last[-1]
