"""The one broad except of the pools: a pool's failure, whatever it is, must not become the engine's.

Backends stand on libraries that may raise anything, in the middle of a step or in a thread nobody watches.
So whoever must go on afterwards makes the call through ``attempt`` and reads off what became of it; all
others let an exception pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Failed:
    """A call raised.

    Attributes:
        error: what.
    """

    error: Exception


def attempt(call: Callable[[], Answer]) -> Answer | Failed:
    """What the call returned, or that it raised."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - see the module's docstring
        return Failed(error)
