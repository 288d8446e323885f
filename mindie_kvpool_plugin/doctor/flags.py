"""Probes of how the master was started: its HTTP server, version, flags and age."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.lines import Line, good, note, trouble, warning
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.mooncake import master_addresses
from mindie_kvpool_plugin.pools.mooncake.admin import DEFAULT_PORT, TIMEOUT_S, Admin
from mindie_kvpool_plugin.pools.mooncake.limits import FORGOTTEN_S
from mindie_kvpool_plugin.pools.mooncake.start import installed_wheels
from mindie_kvpool_plugin.services.master_flags import EVICTED_SHARE, WATERMARK, seconds, slowest_transfer_s
from mindie_kvpool_plugin.services.places import is_public

YOUNG_S = 120.0  # a master of that age says why a pool is empty

DEFAULTS: Mapping[str, str] = {
    "eviction_high_watermark_ratio": "0.9",
    "eviction_ratio": "0.05",
    "default_kv_lease_ttl": "10000",
    "client_ttl": "10",
    "rpc_address": "0.0.0.0",  # noqa: S104 - what Mooncake does by itself
    "metrics_host": "0.0.0.0",  # noqa: S104 - what Mooncake does by itself
    "enable_kv_events": "false",
}
"""What ``mooncake_master`` 0.3.13 does without a flag."""
ADVISED: Mapping[str, float] = {"eviction_high_watermark_ratio": WATERMARK, "eviction_ratio": EVICTED_SHARE}
LEAST_CLIENT_TTL_S = 2.0  # below, a busy client is forgotten
_EVERYWHERE = ("0.0.0.0", "::", "[::]")  # noqa: S104 - what is compared with
_OFF = frozenset({"false", "0", "no"})


def admin(case: Case) -> Iterator[Line]:
    """Find the HTTP server: as it was told, where the process listens, or at its default port."""
    server = Admin(*_admin_address(case), timeout_s=case.left_s(TIMEOUT_S))
    try:
        health = server.health()
        case.metrics, case.segments = server.metrics(), server.segments()
    except PoolError as error:
        yield warning("admin.none", error=error)
        return
    figures = {"url": server.url, "role": health.role, "state": health.state}
    yield good("admin.answers", **figures) if health.is_ready else trouble("admin.not_ready", **figures)


def _admin_address(case: Case) -> tuple[str, int]:
    """Its flags say it, where they can be seen; of a file of flags in YAML the sockets do."""
    host, port = master_addresses(case.mooncake.master_server_address if case.mooncake else "", "")[0]
    if case.process is None:
        return host, case.metrics_port or DEFAULT_PORT
    flags = case.process.flags
    named = flags.get("metrics_host", "")
    others = sorted(case.process.ports - {port})
    default = DEFAULT_PORT if DEFAULT_PORT in others or not others else others[0]
    told = flags.get("metrics_port", "")
    found = case.metrics_port or (int(told) if told.isdecimal() else default)
    return (host if named in ("", *_EVERYWHERE) else named.strip("[]")), found


def flags(case: Case) -> Iterator[Line]:
    """Compare those of a process of this machine; of another machine's they cannot be seen."""
    if case.process is None or case.mooncake is None:
        yield note("flags.elsewhere")
        return
    yield _version(case.process.version, installed_wheels())
    values = {**DEFAULTS, **case.process.flags}
    lines = [*_advised(values), *_durations(values, slowest_transfer_s(case.mooncake)), *_other(values)]
    yield from lines or [good("flags.right")]


def _version(version: str, wheels: Mapping[str, str]) -> Line:
    ours = next(iter(wheels.values()), "-")
    if not version:
        return note("flags.version_unknown")
    if version != ours:
        return warning("flags.other_version", version=version, ours=ours)
    return good("flags.version", version=version)


def _advised(values: Mapping[str, str]) -> Iterator[Line]:
    """What ``mindie-kvpool master`` would set otherwise."""
    for flag, advised in ADVISED.items():
        if values[flag] != str(advised):
            yield warning("flags.advised", flag=flag, value=values[flag], advised=advised)


def _durations(values: Mapping[str, str], transfer_s: float) -> Iterator[Line]:
    lease, ttl = seconds(values["default_kv_lease_ttl"]), values["client_ttl"]
    ttl_s = seconds(f"{ttl}s" if ttl.isdecimal() else ttl)
    if lease is not None and lease < transfer_s:
        yield warning("flags.short_lease", seconds=f"{lease:g}", least=f"{transfer_s:g}")
    if ttl_s is not None and not LEAST_CLIENT_TTL_S <= ttl_s < FORGOTTEN_S:
        least = f"{LEAST_CLIENT_TTL_S:g}"
        yield warning("flags.client_ttl", seconds=f"{ttl_s:g}", least=least, most=f"{FORGOTTEN_S:g}")


def _other(values: Mapping[str, str]) -> Iterator[Line]:
    for flag in ("rpc_address", "metrics_host"):
        with contextlib.suppress(ValueError):  # a name: the network says who reaches it
            if is_public(values[flag].strip("[]")):
                yield warning("flags.public", flag=flag, value=values[flag])
    if values["enable_kv_events"].lower() not in _OFF:
        yield warning("flags.kv_events")


def lease_s(case: Case) -> float | None:
    """How long a looked-up block is safe; None for a master whose flags cannot be seen."""
    if case.process is None:
        return None
    return seconds({**DEFAULTS, **case.process.flags}["default_kv_lease_ttl"])


def history(case: Case) -> Iterator[Line]:
    """Whether the master was restarted: it has forgotten every key, and owners of memory came back to it.

    Each owner that mounts memory mounts it once more with its first ping (seen); those that only come again had
    mounted it with an earlier master, or were forgotten.
    """
    age_s = case.process.age_s if case.process is not None else None
    age = "?" if age_s is None else f"{age_s:.0f}"
    mounts = int(case.metrics.get("master_mount_segment_requests_total", 0))
    again = int(case.metrics.get("master_remount_segment_requests_total", 0)) - mounts
    keys = int(case.metrics.get("master_key_count", 0))
    if again > 0:
        yield warning("history.remounted" if mounts else "history.restarted", owners=again, keys=keys, seconds=age)
    elif age_s is not None and age_s < YOUNG_S:
        yield note("history.young", seconds=age, keys=keys)
    elif case.metrics:
        yield good("history.steady", keys=keys)
    else:
        yield note("history.unknown")
