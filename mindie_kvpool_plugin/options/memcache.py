"""What a pool file for MemCache may say, and the reading of MemCache's own ``key = value`` file it names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.problems import PAYLOAD_FIX, Problem
from mindie_kvpool_plugin.options.sizes import parse_size

META_URL = "ock.mmc.meta_service_url"
STORE_URL = "ock.mmc.local_service.config_store_url"
SIZES = ("ock.mmc.local_service.dram.size", "ock.mmc.local_service.hbm.size")
DEFAULTS: Mapping[str, str] = {
    META_URL: "tcp://127.0.0.1:5000",
    STORE_URL: "tcp://127.0.0.1:6000",
    SIZES[0]: "1GB",
    SIZES[1]: "0",
}
"""MemCache's own (1.3.0), of the keys that are read here."""

MAX_LINES = 10_000

_LINE = re.compile(r"\s*([A-Za-z0-9_.]+)\s*=\s*(.*?)\s*")
_URL = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):(?P<port>[0-9]{1,5})")
_SHORT_UNIT = re.compile(r"(?<=[0-9])\s*([tgmk])\s*$", re.IGNORECASE)


class AddressError(ConfigError):
    """A service's address is none.

    Args:
        place: the file.
        key, url: what it says.
    """

    def __init__(self, place: str, key: str, url: str) -> None:
        expected = 'expected "tcp://host:port" as in the meta service\'s own configuration'
        super().__init__(f'{place}: {key} is "{url}", {expected}')
        self.key, self.url = key, url


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """What opening a pool must know of MemCache's file; everything else in it is MemCache's.

    Attributes:
        services: name of the key, host and port of each service that must answer.
        size_bytes: memory this process adds to the pool; 0 if it cannot be read.
    """

    services: tuple[tuple[str, str, int], ...]
    size_bytes: int


def key_value_lines(text: str) -> dict[str, str]:
    """``key = value`` lines; comments and everything else are skipped."""
    matches = (_LINE.fullmatch(line) for line in text.splitlines()[:MAX_LINES] if not line.lstrip().startswith("#"))
    return {match[1]: match[2] for match in matches if match}


def local_config(text: str, place: str) -> LocalConfig:
    """Read MemCache's local configuration.

    Args:
        text: of the file.
        place: the file, for messages.

    Raises:
        AddressError: an address is not of the form ``tcp://host:port``.
    """
    values = {**DEFAULTS, **key_value_lines(text)}
    services = tuple((key, *_address(values[key], key, place)) for key in (META_URL, STORE_URL))
    return LocalConfig(services, sum(_size(values[key]) for key in SIZES))


def judge(own: Mapping[str, Any], kv_pool: Mapping[str, Any]) -> list[Problem]:
    """What cannot work though every value alone is good (see ``options.mooncake.judge``)."""
    del own
    if kv_pool.get("verify_payload") is not True or kv_pool.get("staging") == "on":
        return []
    what = (
        "verify_payload is true, but MemCache moves blocks straight between device memory and pool, where the "
        "processor cannot read them"
    )
    return [Problem("payload", ("kv_pool", "verify_payload"), True, what, PAYLOAD_FIX)]


def _address(url: str, key: str, place: str) -> tuple[str, int]:
    match = _URL.fullmatch(url)
    if match is None or not 0 < int(match["port"]) <= 65535:
        raise AddressError(place, key, url)
    return match["host"].strip("[]"), int(match["port"])


def _size(text: str) -> int:
    """Bytes; MemCache takes "200m" for "200MB"."""
    return parse_size(_SHORT_UNIT.sub(r"\1b", text)) or 0
