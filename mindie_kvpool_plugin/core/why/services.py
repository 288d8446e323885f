"""Who else stores in this pool: names that services leave there, found letter by letter.

Only services with ``kv_pool.why_requests`` leave their name, and a pool may lose it; so what is found is true, and
what is not found says nothing.  The judging thread's alone, but for ``due``, which belongs to the spill thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mindie_kvpool_plugin.core.block_keys import Service, next_service_keys, service_keys, service_of

Ask = Callable[[Sequence[str]], "list[bool] | None"]
"""Which keys exist; None when the pool did not answer."""

EVERY_S = 60.0
"""Between two times a name is left, and between two searches."""
MAX_SERVICES = 16
MAX_LETTERS = 128
"""A namespace has 64 at most, a fingerprint 32."""


class Announcement:
    """This service's name, left again from time to time.  Spill thread."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = service_keys(service)
        self._clock = clock
        self._next_s = float("-inf")

    def due(self) -> list[str]:
        """The keys to put now, mostly none."""
        now = self._clock()
        if now < self._next_s:
            return []
        self._next_s = now + EVERY_S
        return self._keys


class Services:
    """The others.

    Args:
        own: this one, which is left out.
        ask: the pool's answers.
        clock: seconds, monotonic.
    """

    def __init__(self, own: Service, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._own = own
        self._ask = ask
        self._clock = clock
        self._found: list[Service] = []
        self._next_s = float("-inf")

    def others(self) -> list[Service]:
        """Those found by the latest search, which is at most ``EVERY_S`` old."""
        if self._clock() >= self._next_s:
            self._found = self._search()
            self._next_s = self._clock() + EVERY_S
        return self._found

    def _search(self) -> list[Service]:
        """One question to the pool per letter, for all names at once."""
        found: list[Service] = []
        begun = [""]
        for _ in range(MAX_LETTERS):
            keys = [key for name in begun for key in next_service_keys(name)]
            answers = self._ask(keys) if keys else []
            if not answers:
                break
            there = [key for key, is_there in zip(keys, answers, strict=True) if is_there]
            found += [service for service in map(service_of, there) if service is not None]
            begun = [key for key in there if service_of(key) is None][:MAX_SERVICES]
        return [service for service in found if not self._is_own(service)]

    def _is_own(self, service: Service) -> bool:
        return service[:2] == self._own[:2]
