"""Reloads first: a step waits for a reload, nobody waits for a spill.

Both take from one bandwidth.  So the step thread says when it moves blocks, and the spill thread looks before each
piece it puts: while a reload moves, it waits.  A reload therefore meets one piece at most, the one that had begun.
Reloads that follow each other without end stop no spill for good: one that has waited ``GIVE_WAY_S`` puts its next
piece.

Each rank has its own, and the ranks that share a batch reload in the same step.  Where the step thread spills itself
(``asyncWrite`` false), the two never meet.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

GIVE_WAY_S = 0.25
"""A reload of 2 GB at 10 GB/s takes 0.2 s; with a piece of 64 MiB each, spills keep 256 MB/s beside endless ones."""

PIECE_S = 0.02
"""What a piece takes, about: longer ones are made smaller, since it is what a reload has to share the pool with."""

PIECE_BYTES = 64 << 20
"""Twice what gains speed (measured), and the most that Mooncake moves into the own memory in one call."""

LEAST_PIECE_SHARE = 1 / 8
"""Of ``PIECE_BYTES``: below it, calls cost more than bytes; so much the first one may have, when nothing is known."""


class PieceSize:
    """How much of a spill is put at once, by how fast the last piece was.  Owned by whoever runs spills.

    Attributes:
        num_bytes: of the next piece, at most.
    """

    def __init__(self) -> None:
        self.num_bytes = int(PIECE_BYTES * LEAST_PIECE_SHARE)

    def learn(self, num_bytes: int, seconds: float, longest_s: float) -> None:
        """A piece took so long; one that calls would make dear takes ``longest_s`` at most."""
        bytes_per_s = num_bytes / max(seconds, 1e-9)
        least = min(PIECE_BYTES * LEAST_PIECE_SHARE, bytes_per_s * longest_s)
        self.num_bytes = int(min(PIECE_BYTES, max(least, bytes_per_s * PIECE_S)))


class RightOfWay:
    """The step thread takes it, one reload at a time; the spill thread gives it."""

    def __init__(self) -> None:
        self._is_free = threading.Event()
        self._is_free.set()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A reload moves blocks inside the ``with``.  Step thread; never waits."""
        self._is_free.clear()
        try:
            yield
        finally:
            self._is_free.set()

    def give(self) -> None:
        """Wait until no reload moves blocks, ``GIVE_WAY_S`` at most.  Spill thread; it holds nothing meanwhile."""
        self._is_free.wait(GIVE_WAY_S)
