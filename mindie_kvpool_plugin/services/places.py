"""Addresses a service listens on: whether they are this machine's, free, and closed to the outside."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Literal

from mindie_kvpool_plugin.pools.mooncake.address import look_up

State = Literal["free", "taken", "elsewhere", "unknown"]

_CARRIER = ipaddress.ip_network("100.64.0.0/10")  # shared within a provider's net, as private as 10/8 is


def numeric(host: str) -> str:
    """The first address of a host.

    Raises:
        OSError: the name is not known, or not in time.
    """
    return str(look_up(host, None)[0][4][0])


def is_public(address: str) -> bool:
    """Whether others than the own network may reach it: a wildcard address, or one that is routed on the internet."""
    found = ipaddress.ip_address(address)
    if found.is_unspecified:
        return True
    is_carrier = found.version == 4 and found in _CARRIER
    return not (found.is_private or found.is_loopback or found.is_link_local or is_carrier)


def state(address: str, port: int) -> State:
    """Whether a service could listen there.  Nothing is left behind."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # connections of a service that ended a moment ago stand in nobody's way, as for the service itself
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "taken"
            return "elsewhere" if error.errno == errno.EADDRNOTAVAIL else "unknown"
    return "free"
