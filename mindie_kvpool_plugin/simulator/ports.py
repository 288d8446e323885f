"""Ports of loopback for servers that are started later, each named to one process only.

A port that the kernel picked and that was closed again is as free for everybody else: the next process that asks for
any port may be given it before the server listens, or while it is restarted.  These lie below the range that the
kernel picks from (``ip_local_port_range``, from 32768 on) and beside Mooncake's own (12300 to 17000).  Which are taken
is marked by abstract Unix sockets, which belong to the same network namespace as the ports and go with their process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading

from mindie_kvpool_plugin.errors import PoolError

FIRST = 20_000
NUM_PORTS = 9_973  # prime: every step leads to all of them
STEP = 37  # servers that try the ports after theirs do not meet the next one that is named here

_HOST = "127.0.0.1"

_lock = threading.Lock()
_marks: list[int] = []  # file descriptors, open until the process ends
_places = itertools.count(os.getpid() * 131, STEP)


def named_port() -> int:
    """A port on which nobody listens, and that no other process is named as long as this one lives.

    Raises:
        PoolError: all are taken.
    """
    with _lock:
        for place in itertools.islice(_places, NUM_PORTS):
            port = FIRST + place % NUM_PORTS
            if _mark(port):
                return port
    raise PoolError(f"none of the ports {FIRST} to {FIRST + NUM_PORTS - 1} of {_HOST} is free; end what listens there")


def _mark(port: int) -> bool:
    """Whether it is ours now: nobody had marked it, and nobody listens."""
    with contextlib.ExitStack() as held:
        mark = held.enter_context(socket.socket(socket.AF_UNIX))
        probe = held.enter_context(socket.socket())
        try:
            mark.bind(f"\0mindie-kvpool-port-{port}")
            probe.bind((_HOST, port))
        except OSError:
            return False
        held.pop_all()
        probe.close()
    _marks.append(mark.detach())
    return True
