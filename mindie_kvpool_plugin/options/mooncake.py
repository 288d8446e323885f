"""What Mooncake's keys may say, as far as a file alone can tell: addresses, and what does not go together."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.problems import PAYLOAD_FIX, Problem, shown
from mindie_kvpool_plugin.options.records import MIB

SMALLEST_SEGMENT_BYTES = 16 * MIB
"""Mooncake refuses less; 0 means none."""

BUFFER_BYTES = 1024 * MIB
BUFFER_SHARE = 4
"""A rank reads through a buffer of so many bytes, but of at most this part of its share of the DRAM."""

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):(?P<port>[0-9]{1,5})")
_MASTER_WORDS = '"host:port" of mooncake_master such as "10.0.0.1:50051" (an IPv6 address in brackets)'
_HOSTNAME_WORDS = (
    'an address of this machine such as "10.0.0.2"; '
    "a port may follow (host:port), but each rank needs one of its own, so leave it off"
)


class TooLittleMemoryError(ValueError):
    """A rank's share is less than the smallest segment; ``needed`` is what the node must give at least."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def share_memory(dram_bytes: int, ranks: int) -> tuple[int, int]:
    """(segment, buffer) of each rank, in whole MiB, so that all ranks of a node take no more than was given.

    Raises:
        TooLittleMemoryError: it does not suffice for a segment per rank.
    """
    share = dram_bytes // ranks
    buffer = min(BUFFER_BYTES, share // BUFFER_SHARE) // MIB * MIB
    segment = (share - buffer) // MIB * MIB
    if segment < SMALLEST_SEGMENT_BYTES:
        smallest = SMALLEST_SEGMENT_BYTES * BUFFER_SHARE // (BUFFER_SHARE - 1)
        raise TooLittleMemoryError(ranks * (smallest // MIB + 1) * MIB)
    return segment, buffer


def master_addresses(value: str, place: str) -> list[tuple[str, int]]:
    """The addresses of a ``host:port``, or of ``etcd://host:port;host:port``.

    Raises:
        ConfigError: not of that form.
    """
    found = _masters(value)
    if found is None:
        raise ConfigError(f'{place} is "{value}", expected {_MASTER_WORDS}')
    return found


def split_hostname(value: str, place: str) -> tuple[str, int]:
    """Host and port of ``local_hostname``; port 0 if it names none.

    Raises:
        ConfigError: neither a host nor ``host:port``.
    """
    found = _hostname(value)
    if found is None:
        raise ConfigError(f'{place} is "{value}", expected {_HOSTNAME_WORDS}')
    return found


def joined(host: str, port: int) -> str:
    """``host:port``, an IPv6 address in brackets: what ``split_hostname`` takes apart."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def judge(own: Mapping[str, Any], kv_pool: Mapping[str, Any] | None) -> list[Problem]:
    """What cannot work though every value alone is good.

    Args:
        own: Mooncake's keys as the record holds them, with defaults; a value of another type was told already.
        kv_pool: the section's likewise; None when the file has none, and only the host's own client reads it.
    """
    problems = [
        Problem("form", (key,), own[key], f"{key} is {shown(own[key])}", f"expected {words}")
        for key, parse, words in (
            ("master_server_address", _masters, _MASTER_WORDS),
            ("local_hostname", _hostname, _HOSTNAME_WORDS),
        )
        if isinstance(own.get(key), str) and own[key].strip() and parse(own[key]) is None
    ]
    return problems if kv_pool is None else problems + _together(own, kv_pool)


def _together(own: Mapping[str, Any], kv_pool: Mapping[str, Any]) -> list[Problem]:
    problems = []
    if own.get("use_ascend_direct") is False:
        what = (
            "use_ascend_direct is false: that path copies with Mooncake calls (batch_put_from_ascend, "
            "batch_get_into_ascend) that Mooncake 0.3.13 no longer has"
        )
        problems.append(Problem("direct", ("use_ascend_direct",), False, what, "remove the key or set it to true"))
    size = own.get("global_segment_size")
    if isinstance(size, int) and not isinstance(size, bool) and 0 < size < SMALLEST_SEGMENT_BYTES:
        what = f"global_segment_size is {size} bytes: Mooncake refuses segments below {SMALLEST_SEGMENT_BYTES} (16MB)"
        fix = "give at least that, or 0 to use the pool without adding to it"
        problems.append(Problem("segment", ("global_segment_size",), size, what, fix))
    is_direct = own.get("protocol") == "ascend" and kv_pool.get("staging") != "on"
    if kv_pool.get("verify_payload") is True and is_direct:
        what = (
            "verify_payload is true, but blocks travel straight between device memory and pool, where the processor "
            "cannot read them"
        )
        problems.append(Problem("payload", ("kv_pool", "verify_payload"), True, what, PAYLOAD_FIX))
    return problems


def _masters(value: str) -> list[tuple[str, int]] | None:
    scheme, separator, rest = value.rpartition("://")
    parts = [part for part in rest.split(";") if part] if separator and scheme == "etcd" else [value]
    matches = [_ADDRESS.fullmatch(part) for part in parts]
    found = [(m["host"].strip("[]"), int(m["port"])) for m in matches if m is not None and 0 < int(m["port"]) <= 65535]
    return found if found and len(found) == len(parts) else None


def _hostname(value: str) -> tuple[str, int] | None:
    bare = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    with contextlib.suppress(ValueError):
        return str(ipaddress.IPv6Address(bare)), 0
    if re.fullmatch(r"[^\s:\[\]/]+", value):
        return value, 0
    match = _ADDRESS.fullmatch(value)
    if match is None or not 0 < int(match["port"]) <= 65535:
        return None
    return match["host"].strip("[]"), int(match["port"])
