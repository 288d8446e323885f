"""The probe of where metrics go: ports that are free or already this plugin's own, or a folder for files."""

from __future__ import annotations

import contextlib
import http.client
import os
from collections.abc import Iterator

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.lines import Line, absent, good, trouble, warning
from mindie_kvpool_plugin.doctor.software import version_of
from mindie_kvpool_plugin.observability.telling import SCHEDULER_PORTS_AFTER
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.services.places import numeric, state

HTTP_TIMEOUT_S = 1.0
HEAD_BYTES = 64 * 1024
OURS = b"mindie_kvpool_"


def metrics(case: Case) -> Iterator[Line]:
    """Nothing with ``metrics`` off."""
    options = case.pool_file.options if case.pool_file is not None else None
    if options is None or options.metrics == "off":
        yield absent("metrics.off")
        return
    if not version_of("prometheus_client"):
        yield warning("metrics.no_library", how=options.metrics)
    yield from _files(options) if options.metrics == "file" else _ports(options, case)


def _files(options: KvPoolOptions) -> Iterator[Line]:
    folder = options.metrics_dir
    if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
        yield good("metrics.folder", folder=folder)
    else:
        yield trouble("metrics.no_folder", folder=folder)


def _ports(options: KvPoolOptions, case: Case) -> Iterator[Line]:
    """The first port that each process tries: one that another program holds is passed over for the next free one."""
    served = set()
    for address in case.metrics_addresses:
        port = int(address.rpartition(":")[2])
        served.add(port)
        yield (
            good("metrics.served", address=address) if _is_ours(address) else trouble("metrics.silent", address=address)
        )
    try:
        host = numeric(options.metrics_host)
    except OSError as error:
        yield trouble("metrics.no_address", host=options.metrics_host, reason=error)
        return
    devices = [number for number in case.devices if number < SCHEDULER_PORTS_AFTER] or [0]
    wanted = [options.metrics_port + number for number in (*devices, SCHEDULER_PORTS_AFTER)]
    states = {port: state(host, port) for port in wanted if port not in served and port <= 65535}
    if "elsewhere" in states.values():
        yield trouble("metrics.no_address", host=host, reason="-")
        return
    taken = [str(port) for port, found in states.items() if found == "taken"]
    if taken:
        yield warning("metrics.taken", host=host, ports=", ".join(taken))
    elif states:
        yield good("metrics.free", host=host, ports=", ".join(map(str, states)))


def _is_ours(address: str) -> bool:
    """Whether this plugin's metrics are served there."""
    connection = http.client.HTTPConnection(address, timeout=HTTP_TIMEOUT_S)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/metrics")
        return OURS in connection.getresponse().read(HEAD_BYTES)
    return False
