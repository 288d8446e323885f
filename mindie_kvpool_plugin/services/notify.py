"""What systemd is told of a service (``Type=notify``): one datagram each, nothing without NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket

from mindie_kvpool_plugin.observability.log import logger

VARIABLE = "NOTIFY_SOCKET"


def notify(**state: str | int) -> None:
    """Send ``NAME=value`` lines such as ``READY=1``, as sd_notify(3) does; failing is logged, never raised."""
    place = os.environ.get(VARIABLE, "")
    if not place:
        return
    address = "\0" + place[1:] if place.startswith("@") else place
    lines = "\n".join(f"{name}={value}" for name, value in state.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(1.0)
            sender.sendto(lines.encode(), address)
    except OSError as error:
        logger.warning("cannot tell systemd %s (%s=%s): %s", lines, VARIABLE, place, error)
