"""Tells a Mooncake client that has lost a peer for good from a peer that is gone.

A TCP client whose queue to a peer was overrun answers -800 for every later transfer to that peer, for
ever; other peers keep working and lookups still say "exists".  Only a new client helps, and that costs
this process's part of the pool, so the verdict needs all of this: several calls in which every
transfer to one peer failed and none succeeded, spread over longer than the master keeps the keys of a
dead or hanging process, and a peer that answers (``peers``).

The watch keeps counts and reads nothing else; whoever owns the client acts on the verdict.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from mindie_kvpool_plugin.pools.mooncake.limits import FORGOTTEN_S

STRIKES = 3  # calls; one or two can be a connection that was just cut
SPAN_S = FORGOTTEN_S
UNKNOWN_PEER = ""  # a put that failed does not tell where the master had placed it


@dataclass(slots=True)
class _Suspicion:
    first_s: float
    calls: int


class WedgeWatch:
    """Counts, per peer, the calls of which every transfer to that peer failed."""

    def __init__(self, strikes: int = STRIKES, span_s: float = SPAN_S) -> None:
        self._strikes = strikes
        self._span_s = span_s
        self._suspicions: dict[str, _Suspicion] = {}
        self._lock = threading.Lock()

    @property
    def is_suspicious(self) -> bool:
        """Whether some peer failed lately, so that successes are worth reporting too."""
        return bool(self._suspicions)

    def observe(self, worked: Mapping[str, bool]) -> list[str]:
        """Take in one call.

        Args:
            worked: peer -> whether any of the call's transfers to it succeeded.

        Returns:
            The peers about which the evidence is complete; it starts anew for them.
        """
        now = time.monotonic()
        complete = []
        with self._lock:
            for peer, any_success in worked.items():
                if any_success:
                    self._suspicions.pop(peer, None)
                    continue
                suspicion = self._suspicions.setdefault(peer, _Suspicion(now, 0))
                suspicion.calls += 1
                if suspicion.calls >= self._strikes and now - suspicion.first_s >= self._span_s:
                    del self._suspicions[peer]
                    complete.append(peer)
        return complete

    def forget(self) -> None:
        """Start anew, with a new client."""
        with self._lock:
            self._suspicions.clear()
