"""The life of a Mooncake client: open, used by many threads, replaced if it wedged, closed.

Mooncake's binding ends the process with SIGSEGV when it is called before a ``setup`` that returned 0,
after ``close``, or while ``close`` runs.  So nobody holds a client: a call is lent one, counted, and a
client is closed only when its count is zero.  ``setup`` and ``close`` stop every Python thread while
they run (tens of milliseconds and 1 s, 7.5 s with a dead master): they happen at start, at the end and
at a replacement, never on the hot path.

Ownership: the current connection and all counts belong to ``_changed``; a retired connection belongs to
the call that returns last from it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from mindie_kvpool_plugin.blocks import Region
from mindie_kvpool_plugin.errors import KvPoolError, PoolError
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.pools.attempt import Failed, attempt
from mindie_kvpool_plugin.pools.mooncake import segments
from mindie_kvpool_plugin.pools.mooncake.codes import meaning
from mindie_kvpool_plugin.pools.mooncake.gate import SliceGate
from mindie_kvpool_plugin.pools.mooncake.limits import MAX_REGIONS, STUCK_TRANSFER_S

Store: TypeAlias = Any
"""``mooncake.store.MooncakeDistributedStore``, which has no type information."""

DRAIN_S = 2.0  # an ordinary call returns well within; a wedged one can sit in the store for 60 s
CLOSE_WAIT_S = STUCK_TRANSFER_S + 5.0
GRACE_S = 1  # the shortest there is: with none Mooncake would free memory that others may be reading
REPLACE_INTERVAL_S = 60.0  # a replacement that did not help will not help at once again


@dataclass(eq=False, slots=True)
class Connection:
    """A client after a successful ``setup``.

    Attributes:
        store: the binding's object.
        name: ``host:port`` under which the pool knows this client's segment.
        gate: slices in flight of this client; a new client does not wait for a stuck one's.
        endpoints: ``host:port`` that replica descriptors may give for this client's own segment; none if transfers
            with it go through a socket like all others.
        port_holder: keeps the port of the name ours while the client lives; None if the client does.
        in_flight: calls that are inside the binding now.
        is_retired: lent to no new call; closed when the last call returns.
        segment_ids: of the memory it gave to the pool, if that was mounted apart (``segments``) and has not left.
    """

    store: Store
    name: str
    gate: SliceGate
    endpoints: frozenset[str] = frozenset()
    port_holder: socket.socket | None = None
    in_flight: int = 0
    is_retired: bool = False
    segment_ids: tuple[str, ...] = ()


class MooncakeClient:
    """Lends the current connection to calls.

    Attributes:
        replacements: how often a wedged client was replaced.
    """

    def __init__(self, connect: Callable[[bool], Connection]) -> None:
        """Connect.

        Args:
            connect: makes a connection; its argument says whether it replaces another one, which may still be alive.

        Raises:
            PoolError: from ``connect``.
        """
        self.replacements = 0
        self._connect = connect
        self._regions: dict[Region, None] = {}
        self._changed = threading.Condition()
        self._current: Connection | None = connect(False)
        self._num_to_close = 0
        self._is_closing = False
        self._replacer: threading.Thread | None = None
        self._next_replacement_s = 0.0

    @contextmanager
    def lent(self) -> Iterator[Connection | None]:
        """The open connection for the length of a ``with`` block; None if there is none."""
        with self._changed:
            connection = self._current
            if connection is not None:
                connection.in_flight += 1
        try:
            yield connection
        finally:
            if connection is not None:
                self._give_back(connection)

    def is_current(self, connection: Connection) -> bool:
        """Whether it is still the one that is lent; whoever holds another one should give it back soon."""
        return self._current is connection

    def register(self, regions: Sequence[Region]) -> None:
        """Register each region once, and again with every client that replaces this one.

        Raises:
            PoolError: too many, refused, or the pool is not open.
        """
        wanted = [region for region in dict.fromkeys(regions) if region not in self._regions]
        if len(self._regions) + len(wanted) > MAX_REGIONS:
            raise PoolError(
                f"{len(self._regions) + len(wanted)} memory regions to register with Mooncake, but a process may "
                f"register {MAX_REGIONS}; allocate the KV cache in fewer, larger pieces"
            )
        for region in wanted:
            with self.lent() as connection:
                if connection is None:
                    raise PoolError("cannot register memory with the Mooncake pool: it is not open")
                register_region(connection, region)
            self._regions[region] = None

    def replace(self, why: str) -> None:
        """Replace a wedged client by a new one, in a thread of its own; at most once a minute."""
        with self._changed:
            now = time.monotonic()
            if self._is_closing or now < self._next_replacement_s or self._current is None:
                return
            self._next_replacement_s = now + REPLACE_INTERVAL_S
            old = self._current
            replacer = threading.Thread(target=self._replace, args=(old,), name="kvpool-mooncake", daemon=True)
            try:
                replacer.start()  # under the lock, for which it waits: close() must not find it unstarted
            except RuntimeError as error:
                logger.error("%s, and the Mooncake client cannot be replaced now: %s", why, error)
                return
            self._replacer, self._current = replacer, None
        logger.warning("%s: replacing the Mooncake client; what this process held in the pool is lost", why)

    def leave(self) -> None:
        """Take this process's memory out of the pool; calls in flight go on, and so does the client."""
        with self.lent() as connection:
            if connection is None or not connection.segment_ids:
                return
            ids, connection.segment_ids = connection.segment_ids, ()
            code = segments.unmount(connection.store, ids, GRACE_S)
        if code == 0:
            logger.info("the memory of %s leaves the pool; in %d s it is forgotten there", connection.name, GRACE_S)
        else:
            logger.warning(
                "the memory of %s could not be taken out of the pool (%s); it is listed until the master's client_ttl",
                connection.name,
                meaning(code),
            )

    def close(self) -> None:
        """Wait for calls in flight, then close.  Later calls are lent nothing; idempotent."""
        deadline = time.monotonic() + CLOSE_WAIT_S
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            last, self._current = self._current, None
            replacer = self._replacer
        if last is not None:
            self._retire(last)
        if replacer is not None:
            replacer.join()
        with self._changed:
            if not self._changed.wait_for(lambda: self._num_to_close == 0, deadline - time.monotonic()):
                logger.error("a Mooncake call has not returned in %.0f s; its client is left open", CLOSE_WAIT_S)

    def _give_back(self, connection: Connection) -> None:
        with self._changed:
            connection.in_flight -= 1
            is_mine = connection.in_flight == 0 and connection.is_retired
            if connection.in_flight == 0:
                self._changed.notify_all()
        if is_mine:
            self._close(connection)

    def _retire(self, connection: Connection) -> None:
        """Close a connection that is lent to no new call: now, or by the call that returns last."""
        with self._changed:
            connection.is_retired = True
            self._num_to_close += 1
            is_mine = connection.in_flight == 0
        if is_mine:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        close_connection(connection)
        with self._changed:
            self._num_to_close -= 1
            self._changed.notify_all()

    def _replace(self, old: Connection) -> None:
        """Close the old client first, so that memory holds one segment; a stuck one is closed when its call returns."""
        with self._changed:
            self._changed.wait_for(lambda: old.in_flight == 0 or self._is_closing, DRAIN_S)
        self._retire(old)
        while (new := self._reconnect()) is None:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closing, REPLACE_INTERVAL_S):
                    return
        with self._changed:
            self.replacements += 1
            if not self._is_closing:
                self._current = new
                return
        self._retire(new)

    def _reconnect(self) -> Connection | None:
        try:
            new = self._connect(True)
        except KvPoolError as error:
            logger.error("the Mooncake client could not be replaced, the pool stays closed until it can: %s", error)
            return None
        try:
            for region in tuple(self._regions):
                register_region(new, region)
        except KvPoolError as error:
            logger.error("the new Mooncake client is of no use, the pool stays closed: %s", error)
            close_connection(new)
            return None
        return new


def register_region(connection: Connection, region: Region) -> None:
    """Make a region known to the transport.

    Raises:
        PoolError: refused.
    """
    code = connection.store.register_buffer(region.address, region.size_bytes)
    if code != 0:
        raise PoolError(
            f"Mooncake refused to register {region.size_bytes} bytes at {region.address:#x}: {meaning(code)}; a region "
            "may be registered once and must not overlap another one, and host memory counts against the "
            "transport's limits (ulimit -l for rdma, HDK's limit for ascend)"
        )


def close_connection(connection: Connection) -> None:
    """Close a client that nobody uses any more."""
    code = attempt(connection.store.close)
    if isinstance(code, Failed):
        logger.warning("closing the Mooncake client %s failed", connection.name, exc_info=code.error)
    elif code:
        logger.warning("closing the Mooncake client %s: %s", connection.name, meaning(code))
    if connection.port_holder is not None:
        connection.port_holder.close()
