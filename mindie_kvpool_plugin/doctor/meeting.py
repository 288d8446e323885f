"""The probe of ``kv_pool.agreement``: where ranks of several servers meet."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.lines import Line, absent, good, note, trouble, warning
from mindie_kvpool_plugin.pools.mooncake.address import CONNECT_TIMEOUT_S, is_here, listening_ports, look_up
from mindie_kvpool_plugin.services.places import state

SCHEME = "tcp://"


def meeting(case: Case) -> Iterator[Line]:
    """Resolve; on rank 0's machine the port must be free or a rank's own, from others the machine must be reached."""
    options = case.pool_file.options if case.pool_file is not None else None
    place = options.agreement if options is not None else "auto"
    if not place.startswith(SCHEME):
        yield absent("meeting.file")
        return
    host, _, number = place.removeprefix(SCHEME).rpartition(":")
    host, port = host.strip("[]"), int(number)
    if not 0 < port <= 65535:
        yield trouble("meeting.port", place=place)
        return
    try:
        found = look_up(host, port)[0]
    except OSError as error:
        yield trouble("meeting.unresolved", place=place, host=host, reason=error)
        return
    yield _here(found[4], place) if is_here(host) else _elsewhere(found[:3], found[4], place, case)


def _here(address: tuple[str, int], place: str) -> Line:
    if state(address[0], address[1]) == "free":
        return good("meeting.free", place=place)
    holder = next((pid for pid in _python_processes() if address[1] in listening_ports(pid)), None)
    return trouble("meeting.taken", place=place) if holder is None else note("meeting.in_use", place=place, pid=holder)


def _python_processes() -> Iterator[int]:
    """Processes that may be rank 0: those whose program is a Python or MindIE-LLM's."""
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            program = os.path.basename(os.readlink(f"/proc/{entry}/exe"))
            if program.startswith(("python", "mindie")):
                yield int(entry)


def _elsewhere(kind: tuple[int, int, int], address: tuple[str, int], place: str, case: Case) -> Line:
    with socket.socket(*kind) as probe:
        probe.settimeout(case.left_s(CONNECT_TIMEOUT_S))
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            return good("meeting.nobody_yet", place=place)
        except OSError as error:
            return warning("meeting.unreachable", place=place, reason=error)
    return good("meeting.reached", place=place)
