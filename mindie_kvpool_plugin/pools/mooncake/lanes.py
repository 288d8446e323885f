"""Move the parts of a call one after the other, or two at a time.

The caller's thread is one lane, a helper thread the other; both take the next part from one iterator.
Whatever preparing a part costs, the other lane's part is on its way meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.pools.call_thread import CallThread

Rows: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """Keys of a call that move together.

    Attributes:
        rows: their places in the call.
        goes_alone: not beside another part that goes alone.
        peers: with whom they lie, ``host:port``, where that is known.
    """

    rows: Rows
    goes_alone: bool
    peers: frozenset[str] = frozenset()


class Lanes:
    """One or two lanes."""

    def __init__(self, name: str) -> None:
        self._second = CallThread(name)

    def run(self, parts: Iterator[Part], move: Callable[[Part], bool], *, both: bool) -> bool:
        """Move every part; no new one is begun after one for which ``move`` returned False or raised.

        Returns:
            Whether every part was moved.
        """
        turn, alone = threading.Lock(), threading.Lock()
        stopped = False

        def take() -> Part | None:
            with turn:
                return None if stopped else next(parts, None)

        def work() -> None:
            nonlocal stopped
            while (part := take()) is not None:
                with alone if part.goes_alone else contextlib.nullcontext():
                    if stopped:
                        return
                    goes_on = False
                    try:
                        goes_on = move(part)
                    finally:
                        stopped = stopped or not goes_on

        second = None
        if both:
            with contextlib.suppress(RuntimeError):  # no more threads: one lane does it, too
                second = self._second.start(work)
        try:
            work()
        finally:
            if second is not None and not second.take_back():
                second.wait()
        return not stopped

    def close(self) -> None:
        """End the helper thread."""
        self._second.close()
