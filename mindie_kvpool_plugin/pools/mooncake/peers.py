"""Which peers of a TCP client answer, found out before Mooncake talks to them.

A process that was stopped still accepts connections: the kernel does that for it.  Mooncake's first
contact with such a peer waits a minute for every key, a later transfer a second or two, and
the master lists its keys until ``client_ttl`` is over.  So a peer of which nothing was heard lately is
asked first.  The question is empty: connect, send nothing, close our half; whoever reads there hangs up
in turn, 0.1 ms later on the same machine.

Called by step and spill threads; who hangs is asked again on a thread of its own.  All state is under ``_lock``, which
is not held while peers are waited for.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.options.mooncake import split_hostname
from mindie_kvpool_plugin.pools.mooncake.address import is_here, look_up
from mindie_kvpool_plugin.pools.mooncake.limits import FORGOTTEN_S

ANSWER_TIMEOUT_S = 0.8  # for all peers of one question together; a get may ask twice
ANSWERS_FOR_S = 0.5  # believed to be well this long after it was heard
SILENT_FOR_S = 5.0  # not asked again for this long; its keys are answered "no" meanwhile
LISTED_S = FORGOTTEN_S  # afterwards nothing is placed there

Verdict: TypeAlias = Literal["answers", "silent", "gone"]
"""Gone: nobody accepts connections there.  Silent: somebody does, or nothing at all came back."""


@dataclass(frozen=True, slots=True)
class _Known:
    verdict: Verdict
    since_s: float
    until_s: float


class Peers:
    """What is known about the peers of one client."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def heard(self, peers: Iterable[str]) -> None:
        """A transfer with each of them worked."""
        with self._lock:
            for peer in peers:
                self._note(peer, "answers")

    def met(self, peers: Iterable[str]) -> None:
        """Blocks lie with each of them, and were perhaps put there just now: who is not known is taken to answer."""
        with self._lock:
            for peer in peers:
                if peer not in self._known:
                    self._note(peer, "answers")

    def not_answering(self, peers: Iterable[str]) -> set[str]:
        """Those of the peers that are silent, gone or could not be asked; asks where it is not known.

        That takes ``ANSWER_TIMEOUT_S`` at most, and the first time the look-up of names.  Who did not answer the last
        time is asked again beside the caller, who does not wait for one that most likely still hangs.

        Args:
            peers: ``host:port`` as the pool's replica descriptors give it.
        """
        now = time.monotonic()
        wanted = set(peers)
        with self._lock:
            due = [peer for peer in wanted if peer not in self._known or now >= self._known[peer].until_s]
            again = [peer for peer in due if peer in self._known and self._known[peer].verdict != "answers"]
            for peer in again:  # by one thread at a time
                self._known[peer] = replace(self._known[peer], until_s=now + SILENT_FOR_S)
        # out of file descriptors or threads: who is known is believed, nobody is met for the first time
        with contextlib.suppress(RuntimeError):
            if again:
                threading.Thread(target=self._ask, args=(again,), name="kvpool-peers", daemon=True).start()
        self._ask([peer for peer in due if peer not in again], is_first=True)
        with self._lock:
            return {peer for peer in wanted if peer not in self._known or self._known[peer].verdict != "answers"}

    def _ask(self, peers: Sequence[str], *, is_first: bool = False) -> None:
        found: dict[str, Verdict] = {}
        with contextlib.suppress(OSError, RuntimeError):
            found = ask(peers, ANSWER_TIMEOUT_S) if peers else {}
        with self._lock:
            for peer, verdict in found.items():
                if is_first or peer in self._known:  # one that was forgotten meanwhile is not met anew
                    self._note(peer, verdict)

    def any_is_silent(self) -> bool:
        """Whether the master may still place blocks with a known peer on which a transfer would hang."""
        now = time.monotonic()
        with self._lock:
            for peer, known in tuple(self._known.items()):
                if known.verdict != "answers" and now - known.since_s > LISTED_S:
                    del self._known[peer]
            peers = tuple(self._known)
        self.not_answering(peers)
        with self._lock:
            return any(known.verdict == "silent" for known in self._known.values())

    def dead(self, peers: Iterable[str]) -> set[str]:
        """Those that are gone for good: processes of this machine where nobody listens, asked now.

        Of another machine that is not known: what refuses us may let others in.
        """
        with self._lock:
            gone = {peer for peer in peers if peer in self._known and self._known[peer].verdict == "gone"}
        here = {peer for peer in gone if _is_of_this_machine(peer)}
        found: dict[str, Verdict] = {}
        with contextlib.suppress(OSError, RuntimeError):
            found = ask(here, ANSWER_TIMEOUT_S) if here else {}
        return {peer for peer, verdict in found.items() if verdict == "gone"}

    def _note(self, peer: str, verdict: Verdict) -> None:
        now = time.monotonic()
        before = self._known.get(peer)
        is_new = before is None or before.verdict != verdict
        lasts_s = ANSWERS_FOR_S if verdict == "answers" else SILENT_FOR_S
        self._known[peer] = _Known(verdict, now if before is None or is_new else before.since_s, now + lasts_s)
        if is_new and verdict != "answers":
            logger.warning(
                "Mooncake peer %s %s: the blocks it holds are recomputed; it is asked again every %.0f s%s",
                peer,
                "does not answer" if verdict == "silent" else "is gone",
                SILENT_FOR_S,
                f", and for {LISTED_S:.0f} s nothing is stored that could be placed there" * (verdict == "silent"),
            )
        elif is_new and before is not None:
            logger.warning("Mooncake peer %s answers again", peer)


def ask(peers: Iterable[str], timeout_s: float) -> dict[str, Verdict]:
    """Ask all of them at once.

    Raises:
        OSError, RuntimeError: this process has no file descriptor or thread left.
    """
    found: dict[str, Verdict] = {}
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as sockets:
        for peer in peers:
            connection = _begin(peer)
            found[peer] = "silent" if connection is not None else "gone"
            if connection is not None:
                sockets.enter_context(connection)
                selector.register(connection, selectors.EVENT_WRITE, (peer, connection))
        deadline = time.monotonic() + timeout_s
        is_last = False  # whoever has answered by then is heard, however late this thread came to look
        while selector.get_map() and not is_last:
            left = deadline - time.monotonic()
            is_last = left <= 0
            for key, events in selector.select(max(0.0, left)):
                peer, connection = key.data
                if events & selectors.EVENT_WRITE and _hang_up(connection):
                    selector.modify(connection, selectors.EVENT_READ, key.data)
                else:
                    found[peer] = "answers" if events & selectors.EVENT_READ else "gone"
                    selector.unregister(connection)
    return found


def _begin(peer: str) -> socket.socket | None:
    """A connection on its way, or None if there can be none."""
    try:
        family, kind, protocol, _, address = _address_of(peer)
    except (OSError, ConfigError):
        return None
    connection = socket.socket(family, kind, protocol)
    connection.setblocking(False)
    connection.connect_ex(address)
    return connection


@functools.lru_cache(maxsize=4096)
def _address_of(peer: str) -> Any:
    return look_up(*split_hostname(peer, "peer"))[0]


def _is_of_this_machine(peer: str) -> bool:
    try:
        address = _address_of(peer)[4][0]  # looked up when it was asked: no name is resolved here
    except (OSError, ConfigError):
        return False
    return is_here(address)


def _hang_up(connection: socket.socket) -> bool:
    """Whether the connection came about; our half of it is closed then."""
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return False
    return True
