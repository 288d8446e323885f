"""The life of this process's MemCache client: opened by the first pool, shared by all, closed by the last.

MemCache keeps one client per process behind all its ``DistributedObjectStore`` objects: a second ``init``
changes nothing, and a ``close`` through any of them closes it for all.  So pools hold shares of one client,
and the last one closes it, after the calls in flight.  ``close`` stops every Python thread while it runs
(3 s, 9 s without a meta service; measured): it happens at the end, never on the hot path.

Ownership: everything here belongs to ``_changed``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.pools.attempt import Failed, attempt
from mindie_kvpool_plugin.pools.memcache.codes import meaning

Store: TypeAlias = Any
"""``memcache_hybrid.DistributedObjectStore``, which has no type information."""

CLOSE_WAIT_S = 65.0  # MemCache's own time limit of a call is 60 s


@dataclass(frozen=True, slots=True)
class Setup:
    """What a client was opened with; it cannot be changed while it lives.

    Attributes:
        config_path: MemCache's local configuration.
        device_id: the NPU.
        moves_bytes: it owns a part of the pool and copies; without, it only asks what exists.
    """

    config_path: str
    device_id: int
    moves_bytes: bool


class SharedClient:
    """The one client of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._store: Store | None = None
        self._setup: Setup | None = None
        self._num_shares = 0

    def open(self, setup: Setup, connect: Callable[[], Store]) -> Share:
        """Take a share of the client, opening it if nobody has one.

        Raises:
            PoolError: from ``connect``, or the process has a client that was opened otherwise.
        """
        with self._changed:
            if self._store is None:
                self._store, self._setup = connect(), setup
            elif not self._serves(setup):
                raise PoolError(
                    f"this process has a MemCache client already ({self._setup}), and MemCache allows one per process; "
                    f"a second one ({setup}) needs a process of its own"
                )
            self._num_shares += 1
            return Share(self._store, self._changed, self._give_back)

    def _serves(self, setup: Setup) -> bool:
        """A client that moves bytes answers questions, too."""
        has = self._setup
        if has is None or has.config_path != setup.config_path:
            return False
        return not setup.moves_bytes or (has.moves_bytes and has.device_id == setup.device_id)

    def _give_back(self) -> None:
        self._num_shares -= 1
        if self._num_shares == 0 and self._store is not None:
            store, self._store = self._store, None
            close_store(store)


class Share:
    """A pool's part in the client.

    Args:
        store: the client.
        changed: guards it, and tells when a call returned.
        give_back: called under ``changed`` when the share's last call has returned.
    """

    def __init__(self, store: Store, changed: threading.Condition, give_back: Callable[[], None]) -> None:
        self._store = store
        self._changed = changed
        self._give_back = give_back
        self._is_open = True
        self._in_flight = 0

    @contextmanager
    def lent(self) -> Iterator[Store | None]:
        """The open store for the length of a ``with`` block; None after ``close``."""
        with self._changed:
            is_open = self._is_open
            self._in_flight += is_open
        try:
            yield self._store if is_open else None
        finally:
            if is_open:
                with self._changed:
                    self._in_flight -= 1
                    self._changed.notify_all()

    def close(self) -> None:
        """Wait for this share's calls, then give it back; the last one closes the client.  Idempotent."""
        with self._changed:
            if not self._is_open:
                return
            self._is_open = False
            if self._changed.wait_for(lambda: self._in_flight == 0, CLOSE_WAIT_S):
                self._give_back()
            else:
                logger.error("a MemCache call has not returned in %.0f s; its client is left open", CLOSE_WAIT_S)


shared = SharedClient()


def close_store(store: Store) -> None:
    """Close a client that nobody uses any more."""
    code = attempt(store.close)
    if isinstance(code, Failed):
        logger.warning("closing the MemCache client failed", exc_info=code.error)
    elif code:
        logger.warning("closing the MemCache client: %s", meaning(code))
