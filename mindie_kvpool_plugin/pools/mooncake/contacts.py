"""Ends a first contact with a peer that hangs.

Before Mooncake moves bytes to or from a process it has not met it asks that process what it is, on the thread that
called: it connects, 5 s at most, and reads the answer, 60 s at most, for each key of the call anew
(``transfer_metadata_plugin.cpp``).  A get asks first whether its peers live (``peers``).  A put cannot: the master
says only afterwards where it went, and its list of processes is on an HTTP port that a pool file does not name.

So calls that take long are looked at from beside.  The kernel tells which system call a thread is in, and of a read or
a poll for what.  If that is a connection, and whoever is at its other end does not answer our own question either, the
connection is shut down: the wait ends as if the peer had hung up, and Mooncake answers that the transfer failed.  Its
transfers themselves run on threads of its own, and the master is asked on others, so that a thread which is inside the
binding and waits for a connection is in a first contact.

The thread that watches sleeps while no call is on its way, and ends with ``close``.  Calls on their way are under
``_lock``; the rest is the watching thread's.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from mindie_kvpool_plugin.options.mooncake import joined
from mindie_kvpool_plugin.pools.mooncake.address import remote_of
from mindie_kvpool_plugin.pools.mooncake.peers import Peers

LOOK_S = 0.25  # how often; a call that is younger is not looked at, and hardly one is older
NEXT_KEY_S = 0.005  # after one was ended: the next key's most likely hangs, too
# Linux: asm/unistd.h; where there is no poll it is ppoll, whose first argument is the same
READ, POLL = {"x86_64": (0, 7), "aarch64": (63, 73)}.get(os.uname().machine, (-2, -2))


class FirstContacts:
    """Those of one client.

    Args:
        peers: who answers; None where nobody can be asked, and nothing is looked at.

    Attributes:
        looks: how often calls were looked at.
        ended: how many contacts were ended.
    """

    def __init__(self, peers: Peers | None) -> None:
        self.looks = self.ended = 0
        self._peers = peers
        self._began_s: dict[int, float] = {}
        self._lock = threading.Lock()
        self._is_called = threading.Event()
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def bounded(self) -> Iterator[None]:
        """The calling thread is inside the binding within the ``with``, and in no first contact for long."""
        if self._peers is None:
            yield
            return
        caller = threading.get_native_id()
        with self._lock:
            self._began_s[caller] = time.monotonic()
            if self._thread is None:
                self._thread = self._start(self._peers)
        self._is_called.set()
        try:
            yield
        finally:
            with self._lock:
                del self._began_s[caller]

    def close(self) -> None:
        """Calls on their way are looked at no more."""
        self._is_closed.set()
        self._is_called.set()

    def _start(self, peers: Peers) -> threading.Thread | None:
        thread = threading.Thread(target=self._watch, args=(peers,), name="kvpool-contacts", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # none is left: the call goes on unbounded, and the next one tries again
            return None
        return thread

    def _watch(self, peers: Peers) -> None:
        troubled: set[tuple[int, float]] = set()
        while not self._is_closed.wait(NEXT_KEY_S if troubled else LOOK_S):
            with self._lock:
                calls = set(self._began_s.items())
                if not calls:
                    self._is_called.clear()
            troubled &= calls
            old_s = time.monotonic() - LOOK_S
            for caller, began_s in calls:
                if began_s <= old_s and self._end(caller, peers):
                    troubled.add((caller, began_s))
            self.looks += 1
            self._is_called.wait()

    def _end(self, caller: int, peers: Peers) -> bool:
        # the thread has ended meanwhile, or no file descriptor is left: there is a next look
        with contextlib.suppress(OSError):
            if end_contact(caller, peers):
                self.ended += 1
                return True
        return False


def end_contact(thread: int, peers: Peers) -> bool:
    """If a thread of this process waits for a peer that does not answer, end that; whether it did.

    Takes as long as the question to the peer.

    Raises:
        OSError: the thread has ended, or no file descriptor is left.
    """
    doing = _system_call(thread)
    fd = _waited_for(doing)
    connection = _connection(fd) if fd >= 0 else None
    if connection is None:
        return False
    with connection:
        peer = _peer_of(connection)
        if peer is None or not peers.not_answering([peer]):
            return False
        # what is shut down is what the thread waits for now, and nothing else that got the same number meanwhile
        is_same = _system_call(thread) == doing and _waited_for(doing) == fd
        is_same = is_same and os.path.sameopenfile(fd, connection.fileno())
        if is_same:
            connection.shutdown(socket.SHUT_RDWR)
    return is_same


def _system_call(thread: int) -> list[int]:
    """Number, arguments, stack pointer and place of the system call that a thread waits in; [-1]: it runs.

    Raises:
        OSError: it has ended, or the kernel does not tell.
    """
    words = Path(f"/proc/self/task/{thread}/syscall").read_text(encoding="ascii").split()
    return [int(word, 0) for word in words] if len(words) > 2 else [-1]


def _waited_for(doing: Sequence[int]) -> int:
    """The file descriptor that a system call reads from or, as the first of all, waits for; -1: it does neither.

    Raises:
        OSError: the call is over, and its memory gone.
    """
    if doing[0] == READ:
        return doing[1]
    if doing[0] != POLL:
        return -1
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # unlike a pointer it is no crash if nothing is there
        return int.from_bytes(os.pread(memory.fileno(), 4, doing[1]), sys.byteorder, signed=True)


def _connection(fd: int) -> socket.socket | None:
    """Another descriptor of a connection over IP, established or not; None if it is something else.

    Raises:
        OSError: it has been closed, or no descriptor is left.
    """
    copy = os.dup(fd)
    is_blocking = os.get_blocking(copy)
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return None
    os.set_blocking(copy, is_blocking)  # both descriptors share it, and a default time limit of this process changes it
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        return connection
    connection.close()
    return None


def _peer_of(connection: socket.socket) -> str | None:
    """``host:port`` to which a connection leads, or is to lead; None if it is not known."""
    with contextlib.suppress(OSError):
        return joined(*connection.getpeername()[:2])
    return remote_of(os.fstat(connection.fileno()).st_ino)
