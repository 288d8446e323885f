"""Addresses: the master's, this client's name, and whether somebody listens there.

``setup`` looks names up and connects with every Python thread stopped, so it is done here first, with
time limits.  A client's name is ``host:port``: with a port ``setup`` does not retry for 90 s, and two
clients of one name would be two segments of one name.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.options.mooncake import joined, master_addresses, split_hostname
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.limits import P2P_HANDSHAKE

CONNECT_TIMEOUT_S = 3.0  # name resolution and TCP connect together
DEFAULT_PORTS = (12300, 14300)  # where Mooncake itself looks for a client's port

_LISTENING = "0A"  # Linux: include/net/tcp_states.h


def probe_master(options: MooncakeOptions, place: str) -> None:
    """Connect to the master's port, before ``setup`` would wait for it with every thread stopped.

    Raises:
        PoolError: no address of it accepts a connection in time.
    """
    tried = []
    for host, port in master_addresses(options.master_server_address, place):
        try:
            _reach(host, port)
        except OSError as error:
            tried.append(f"{host}:{port} for {CONNECT_TIMEOUT_S:g} s: {error}")
        else:
            return
    raise PoolError(
        f"cannot reach mooncake_master at {options.master_server_address} ({place}): tried to connect to "
        f"{'; '.join(tried)}; start it (mooncake_master --rpc_port=...), correct the address, "
        "or open the port between the machines"
    )


def _reach(host: str, port: int) -> None:
    """Connect to the first address of the host that accepts, all within the time limit."""
    deadline = time.monotonic() + CONNECT_TIMEOUT_S
    failure = OSError("the name has no address")
    for family, kind, protocol, _, address in look_up(host, port):
        with socket.socket(family, kind, protocol) as probe:
            probe.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                probe.connect(address)
            except OSError as error:
                failure = error
            else:
                return
    raise failure


def look_up(host: str, port: int | None) -> list[Any]:
    """``socket.getaddrinfo``, within ``CONNECT_TIMEOUT_S``.

    In a thread unless the host is a number: the resolver's own time limits can add up to half a minute.

    Raises:
        OSError: not known, or not in time.
    """
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    result: list[list[Any] | OSError] = []

    def run() -> None:
        try:
            result.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            result.append(error)
        except ValueError:  # the codec for names, not the resolver
            result.append(OSError("a part of the name between dots is empty or longer than 63 letters"))

    thread = threading.Thread(target=run, name="kvpool-resolve", daemon=True)
    thread.start()
    thread.join(CONNECT_TIMEOUT_S)
    answer = result[0] if result else OSError(f"the name was not resolved within {CONNECT_TIMEOUT_S:g} s")
    if isinstance(answer, OSError):
        raise answer
    return answer


def is_here(host: str) -> bool:
    """Whether an address or a name is this machine's own."""
    with contextlib.suppress(OSError):
        family, _, _, _, found = look_up(host, None)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((found[0], 0))
            return True
    return False


def listening_ports(process: int | str = "self") -> frozenset[int]:
    """TCP ports on which this process, or another one of this user, listens, as ``/proc`` tells."""
    sockets = set()
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{process}/fd"):
            with contextlib.suppress(OSError):
                sockets.add(os.readlink(f"/proc/{process}/fd/{number}"))
    ports = set()
    for table in (f"/proc/{process}/net/tcp", f"/proc/{process}/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and f"socket:[{fields[9]}]" in sockets:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return frozenset(ports)


def remote_of(inode: int) -> str | None:
    """``host:port`` to which a socket of this process leads, or is to lead, as ``/proc`` tells; None if it does not."""
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/self/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[9] == str(inode):
                    host, _, port = fields[2].partition(":")
                    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]  # in this machine's order
                    return joined(socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), int(port, 16))
    return None


def claim_name(options: MooncakeOptions, place: str, *, any_port: bool) -> tuple[str, socket.socket | None]:
    """A ``host:port`` that no other client of this machine has, and the socket that keeps it ours.

    With a port in the name ``setup`` does not retry for 90 s, and the pool tells segments apart by it.

    Raises:
        PoolError: the host is not known, or the port has been taken.
    """
    host, port = split_hostname(options.local_hostname, place)
    try:
        family, _, _, _, address = look_up(host, None)[0]
    except OSError as error:
        raise PoolError(
            f'{place} is "{options.local_hostname}", which cannot be resolved ({error}); '
            "write this machine's address that the other machines reach"
        ) from error
    if port and not any_port:
        holder = _bind(family, address[0], port)
        if holder is None:
            raise PoolError(
                f'{place} is "{options.local_hostname}", but port {port} is taken on this machine; each rank needs a '
                "port of its own, so leave the port off and one is chosen"
            )
    else:
        holder = _bind_free(family, address[0])
        port = holder.getsockname()[1]
    name = joined(host, port)
    if options.metadata_server == P2P_HANDSHAKE:
        return name, holder
    holder.close()  # with a metadata service Mooncake listens on this port itself
    return name, None


def _bind(family: int, host: str, port: int) -> socket.socket | None:
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.bind((host, port))
    except OSError:
        holder.close()
        return None
    return holder


def _bind_free(family: int, host: str) -> socket.socket:
    first, last = DEFAULT_PORTS
    with contextlib.suppress(ValueError):
        first = int(os.environ.get("MC_STORE_CLIENT_MIN_PORT", first))
        last = int(os.environ.get("MC_STORE_CLIENT_MAX_PORT", last))
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        try:
            trial.bind((host, 0))
        except OSError:
            logger.warning("local_hostname %s is no address of this machine; it must lead here from the others", host)
            host = ""
    # not the first free one: a client that died a moment ago is still listed under its port for client_ttl, and
    # what a namesake puts with preferred_segment would go to the dead one's memory
    for port in random.sample(range(first, last + 1), max(0, last + 1 - first)):
        holder = _bind(family, host, port)
        if holder is not None:
            return holder
    raise PoolError(
        f"no free port in {first}..{last} for a Mooncake client on this machine; "
        "widen MC_STORE_CLIENT_MIN_PORT and MC_STORE_CLIENT_MAX_PORT"
    )
