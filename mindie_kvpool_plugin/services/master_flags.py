"""The flags of ``mooncake_master`` that fit a pool file, each with the name of its reason.

What is not set here has a default that fits.  Sentences are in the catalogs: ``master.why.<flag>`` says
why a flag has its value, ``master.extra.<name>`` what is wrong with one that the user added.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.limits import FORGOTTEN_S, P2P_HANDSHAKE

WATERMARK = 0.95
EVICTED_SHARE = 0.02
"""Measured on a real master with 12,000 puts of 64 KiB into 256 MiB: filled to 0.95 on average and nothing lost; with
the documents' 0.8 and 0.05 to 0.79, with 0.99 and 0.01 the first 980 puts were refused."""
LEASE_S = 10.0  # Mooncake's own default; above the slowest get of a block and the step between lookup and get
STEP_S = 4.0  # between the lookup that takes a lease and the end of the get that needs it, the transfer apart
CLIENT_TTL_S = 10  # Mooncake's own default; the plugin leaves a silent peer alone for FORGOTTEN_S, which is longer
RPC_THREADS = 4  # a call takes microseconds; 8 instead of 2 gained nothing
ASCEND_TIMEOUT_MS = 3000  # default of both variables below
ASCEND_VARIABLES = ("ASCEND_CONNECT_TIMEOUT", "ASCEND_TRANSFER_TIMEOUT")

_RATIOS = ("eviction_high_watermark_ratio", "eviction_ratio")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1e-3}
_OWN_OPTIONS = {"rpc_address": "--bind", "metrics_host": "--metrics-host", "metrics_port": "--metrics-port"}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag.

    Attributes:
        name, value: ``--name=value``.
        params: for the sentence ``master.why.<name>``.
    """

    name: str
    value: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """As the command line has it."""
        return f"--{self.name}={self.value}"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a master listens.

    Attributes:
        address, port: numeric, of its RPC service.
        admin_address, admin_port: of its HTTP server.
    """

    address: str
    port: int
    admin_address: str
    admin_port: int


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about a flag the user added.

    Attributes:
        kind: of the sentence ``master.extra.<kind>``.
        params: for it.
        refuses: it cannot work, so nothing is started.
    """

    kind: str
    params: Mapping[str, Any]
    refuses: bool = False


def fitting(options: MooncakeOptions, bound: Bound, *, with_ssd: bool) -> list[Flag]:
    """The flags for a pool file, in the order in which they are told."""
    lease_s = lease(options)
    flags = [
        Flag("rpc_address", bound.address),
        Flag("rpc_port", str(bound.port), {"address": options.master_server_address}),
        Flag("rpc_thread_num", str(min(RPC_THREADS, max(2, os.cpu_count() or 2)))),
        Flag("metrics_host", bound.admin_address),
        Flag("metrics_port", str(bound.admin_port)),
        Flag("enable_metric_reporting", "false"),
        Flag("minloglevel", "2"),
        Flag("default_kv_lease_ttl", f"{lease_s:g}s", {"transfer": f"{slowest_transfer_s(options):g}"}),
        Flag("client_ttl", str(CLIENT_TTL_S), {"forgotten": f"{FORGOTTEN_S:g}"}),
        Flag("eviction_high_watermark_ratio", str(WATERMARK)),
        Flag("eviction_ratio", str(EVICTED_SHARE)),
    ]
    return [*flags, Flag("enable_offload", "true"), Flag("offload_on_evict", "true")] if with_ssd else flags


def slowest_transfer_s(options: MooncakeOptions) -> float:
    """How long the get of a block may take at most, as the transport bounds it; over tcp our own bounds are smaller."""
    if options.protocol != "ascend":
        return 4.0  # a piece to a peer that stops answering: 1 to 2 s for each key, a first piece has at most 4 MiB
    return sum(_milliseconds(name) for name in ASCEND_VARIABLES) / 1000


def lease(options: MooncakeOptions) -> float:
    """Seconds a looked-up key is kept: above the slowest get, or the get fails after a hit."""
    return max(LEASE_S, math.ceil(slowest_transfer_s(options) + STEP_S))


def given(extra: Sequence[str]) -> dict[str, str]:
    """Name -> value of the flags a user added, as gflags reads them: ``--a=b``, ``-a b``, ``--a``, ``--noa``."""
    found: dict[str, str] = {}
    waiting = ""
    for word in extra:
        if not word.startswith("-"):
            found[waiting] = word
            waiting = ""
            continue
        name, equals, value = word.lstrip("-").partition("=")
        found[name] = value if equals else ""
        waiting = "" if equals else name
    found.pop("", None)
    return found


def merged(flags: Sequence[Flag], extra: Sequence[str]) -> list[str]:
    """All flags as words; one that the user added replaces ours."""
    names = given(extra)
    return [flag.text for flag in flags if flag.name not in names] + list(extra)


def judge(extra: Sequence[str], options: MooncakeOptions, flags: Sequence[Flag]) -> Iterator[Remark]:
    """What is to be said of the flags a user added."""
    ours = {flag.name: flag.value for flag in flags}
    for name, value in given(extra).items():
        about = {"flag": name, "value": value, "ours": ours.get(name, "")}
        yield from _about(name, value, about, options, with_ssd="enable_offload" in ours)
    if options.metadata_server != P2P_HANDSHAKE and "enable_http_metadata_server" not in given(extra):
        yield Remark("metadata_server", {"server": options.metadata_server})


def _about(
    name: str, value: str, about: Mapping[str, Any], options: MooncakeOptions, *, with_ssd: bool
) -> Iterator[Remark]:
    if name in _OWN_OPTIONS:
        yield Remark("own_option", {**about, "option": _OWN_OPTIONS[name]}, refuses=True)
    elif name in ("rpc_port", "port"):
        if value != about["ours"]:
            yield Remark("port", {**about, "address": options.master_server_address}, refuses=True)
    elif name in _RATIOS and not _is_ratio(value):
        yield Remark("ratio", about, refuses=True)
    elif name in ("enable_offload", "offload_on_evict") and with_ssd and value in ("false", "0", "no"):
        yield Remark("offload", about, refuses=True)
    elif name == "enable_kv_events" and value not in ("false", "0", "no"):
        yield Remark("kv_events", about)
    elif name == "memory_allocator" and value == "cachelib":
        yield Remark("cachelib", about)
    elif name == "default_kv_lease_ttl" and (seconds(value) or 0.0) < slowest_transfer_s(options):
        yield Remark("lease", {**about, "transfer": f"{slowest_transfer_s(options):g}"})
    elif name == "client_ttl" and value.isdecimal() and int(value) >= FORGOTTEN_S:
        yield Remark("client_ttl", {**about, "forgotten": f"{FORGOTTEN_S:g}"})
    elif name == "config_path":
        yield Remark("config_path", about)
    elif about["ours"] and value != about["ours"]:
        yield Remark("replaces", about)


def seconds(text: str) -> float | None:
    """A duration as the master takes it: ``5s``, ``500ms``, or bare milliseconds; None for anything else."""
    match = _DURATION.fullmatch(text)
    return float(match[1]) * _UNIT_S[match[2] or ""] if match is not None else None


def _is_ratio(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _milliseconds(variable: str) -> float:
    try:
        return max(0.0, float(os.environ.get(variable, ASCEND_TIMEOUT_MS)))
    except ValueError:
        return ASCEND_TIMEOUT_MS
