"""Probes of the master: its address, whether it is one at all, how fast it answers."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import statistics
import time
from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.child import Told, run_child
from mindie_kvpool_plugin.doctor.lines import Line, good, trouble, warning
from mindie_kvpool_plugin.doctor.processes import MasterProcess, masters
from mindie_kvpool_plugin.doctor.software import TRIAL
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.mooncake import master_addresses
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.address import CONNECT_TIMEOUT_S, is_here, look_up
from mindie_kvpool_plugin.pools.mooncake.admin import Admin

CONNECTS = 5
PINGS = 20
ANSWER_TIMEOUT_S = 2.0  # of a call to the master; what is no master never answers
CLIENT_TIMEOUT_S = 20.0  # a client that opens, or fails to, within the time limits above
SLOW_PING_S = 0.002  # a local master answers in 0.05 ms; every lookup waits for it
HTTP_TIMEOUT_S = 1.0


def address(case: Case) -> Iterator[Line]:
    """Resolve, connect, and measure that; where nobody listens, look for a master of this machine elsewhere."""
    places = master_addresses(_options(case).master_server_address, "master_server_address")
    lines = [_reach(host, port, case) for host, port in places]
    # of several one is enough
    yield from [line for line in lines if line.verdict == "good"] or lines


def _reach(host: str, port: int, case: Case) -> Line:
    try:
        found = look_up(host, port)[0]
    except OSError as error:
        return trouble("address.unresolved", host=host, reason=error)
    return _connect(host, port, found, case)


def _connect(host: str, port: int, found: Any, case: Case) -> Line:
    times = []
    for _ in range(CONNECTS):
        began = time.monotonic()
        try:
            with socket.socket(*found[:3]) as probe:
                probe.settimeout(case.left_s(CONNECT_TIMEOUT_S))
                probe.connect(found[4])
        except ConnectionRefusedError:
            return _refused(host, port)
        except OSError as error:
            return trouble("address.unreachable", host=host, port=port, reason=error)
        times.append(time.monotonic() - began)
    if is_here(host):
        case.process = next((each for each in masters() if each.listens_on(port)), None)
    return good("address.connected", host=host, port=port, milliseconds=_ms(statistics.median(times)), times=CONNECTS)


def _refused(host: str, port: int) -> Line:
    other = next(_masters_elsewhere(port), None) if is_here(host) else None
    if other is None:
        return trouble("address.refused", host=host, port=port)
    return trouble("address.other_port", host=host, port=port, pid=other.pid, other=other.service_port)


def _masters_elsewhere(port: int) -> Iterator[MasterProcess]:
    return (each for each in masters() if each.service_port not in (None, port))


def client(case: Case) -> Iterator[Line]:
    """Open a client that owns nothing, and ask; what accepts connections and is no master is found out here."""
    told = open_client(case, {"role": "scheduler", "pings": PINGS}, CLIENT_TIMEOUT_S)
    pinged = told.step("pinged")
    if pinged is None or pinged["code"] < 0:
        yield _no_master(told, case)
        return
    case.client_ping_s = pinged["seconds"]
    is_quick = case.client_ping_s < SLOW_PING_S
    say, name = (good, "client.answers") if is_quick else (warning, "client.slow")
    yield say(name, milliseconds=_ms(case.client_ping_s), times=PINGS)


def open_client(case: Case, question: dict[str, Any], limit_s: float, **changes: Any) -> Told:
    """A child with a client; what it asks is up to the question."""
    options = _options(case)
    kept: dict[str, Any] = {"global_segment_size": 0, "local_buffer_size": 0, **changes}
    kept["rpc_timeout_s"] = answer_timeout_s(case)
    asked = {"options": dataclasses.asdict(dataclasses.replace(options, **kept)), "place": str(case.pool_path)}
    env = {**case.env, "MC_RPC_TIMEOUT_MS": str(int(kept["rpc_timeout_s"] * 1000))}
    return run_child(TRIAL, {**asked, **question}, case.left_s(limit_s), env)


def answer_timeout_s(case: Case) -> float:
    """How long the doctor's clients wait for the master."""
    return min(_options(case).rpc_timeout_s, ANSWER_TIMEOUT_S)


def _no_master(told: Told, case: Case) -> Line:
    """Why no client came about; an HTTP server behind the port explains itself."""
    host, port = master_addresses(_options(case).master_server_address, "")[0]
    refused = told.step("refused")
    if told.step("connected") is None and told.ending not in ("", "killed"):
        return trouble("client.died", ending=told.ending)
    server = _http_server(host, port, case.left_s(HTTP_TIMEOUT_S))
    if server:
        return trouble(server, host=host, port=port)
    if refused is None or refused["seconds"] > 0.8 * answer_timeout_s(case):
        return trouble("client.silent", host=host, port=port, timeout=f"{answer_timeout_s(case):g}")
    return trouble("client.refused", error=PoolError(refused["error"]))


def _http_server(host: str, port: int, timeout_s: float) -> str:
    """The id of what is to be said of it: a master's, or somebody else's; "" if it is none."""
    with contextlib.suppress(PoolError):
        Admin(host, port, timeout_s).health()
        return "client.metrics_port"
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout_s) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return "client.http" if connection.recv(5) == b"HTTP/" else ""
    return ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


def _options(case: Case) -> MooncakeOptions:
    """The pool file's; the table runs these probes only where it could be read."""
    if case.mooncake is None:
        raise PoolError("the pool file was not read")
    return case.mooncake
