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
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mindie_kvpool_plugin.pools.mooncake.limits import FORGOTTEN_S

STRIKES = 3  # calls; one or two can be a connection that was just cut
SPAN_S = FORGOTTEN_S
UNKNOWN_PEER = ""  # a put that failed does not tell where the master had placed it


STALE_S = 600.0
"""Nothing was tried with it for so long: most likely it is gone, and its keys with it."""


@dataclass(slots=True)
class _Suspicion:
    first_s: float
    last_s: float
    calls: int = 0


class WedgeWatch:
    """Counts, per peer, the calls of which every transfer to that peer failed.

    Args:
        strikes: calls that are evidence enough.
        span_s: seconds they have to be spread over.
        clock: seconds, monotonic.
    """

    def __init__(
        self, strikes: int = STRIKES, span_s: float = SPAN_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._strikes = strikes
        self._span_s = span_s
        self._clock = clock
        self._suspicions: dict[str, _Suspicion] = {}
        self._lock = threading.Lock()

    @property
    def is_suspicious(self) -> bool:
        """Whether some peer failed lately, so that successes are worth reporting too."""
        if not self._suspicions:
            return False
        with self._lock:
            self._forget_stale(self._clock())
            return bool(self._suspicions)

    def observe(self, worked: Mapping[str, bool]) -> list[str]:
        """Take in one call.

        Args:
            worked: peer -> whether any of the call's transfers to it succeeded.

        Returns:
            The peers about which the evidence is complete; it starts anew for them.
        """
        now = self._clock()
        complete = []
        with self._lock:
            self._forget_stale(now)
            for peer, any_success in worked.items():
                if any_success:
                    self._suspicions.pop(peer, None)
                    continue
                suspicion = self._suspicions.setdefault(peer, _Suspicion(now, now))
                suspicion.calls += 1
                suspicion.last_s = now
                if suspicion.calls >= self._strikes and now - suspicion.first_s >= self._span_s:
                    del self._suspicions[peer]
                    complete.append(peer)
        return complete

    def _forget_stale(self, now: float) -> None:
        for peer, suspicion in tuple(self._suspicions.items()):
            if now - suspicion.last_s > STALE_S:
                del self._suspicions[peer]

    def forget(self) -> None:
        """Start anew, with a new client."""
        with self._lock:
            self._suspicions.clear()
