"""What ``mooncake_master`` tells over HTTP to anybody who asks: health, metrics, segments.

Plain GETs with time limits, for commands and the doctor: no library of Mooncake's, no client, no lease.  The
server knows no authentication, and the pool file does not name its port (``--metrics_port``).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.mooncake import joined
from mindie_kvpool_plugin.pools.mooncake.address import look_up

DEFAULT_PORT = 9003  # mooncake_master --metrics_port
TIMEOUT_S = 2.0  # a healthy master answers within milliseconds
MAX_PAGE_BYTES = 64 * 1024**2  # a list of half a million keys; nothing asked here is near it
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Health:
    """What ``/health`` says.

    Attributes:
        is_ready: it serves; true for a moment also of a master whose RPC port is taken, which then ends.
        role: "leader", or "standby" with high availability.
        state: such as "serving".
    """

    is_ready: bool
    role: str
    state: str


@dataclass(frozen=True, slots=True)
class Segment:
    """Memory that one client has given to the pool.

    Attributes:
        name: ``host:port`` of the client.
        endpoint: ``host:port`` where its bytes are moved.
        size_bytes, used_bytes: of the memory, and what keys occupy of it.
        status: "OK", or what is happening to it.
    """

    name: str
    endpoint: str
    size_bytes: int
    used_bytes: int
    status: str


@dataclass(frozen=True, slots=True)
class Admin:
    """The admin server of one master.

    Every method raises PoolError if it cannot be reached, does not answer in time, or answers something else.

    Attributes:
        host, port: of the HTTP server.
        timeout_s: of the connection, of a silence, and of a whole page.
    """

    host: str
    port: int = DEFAULT_PORT
    timeout_s: float = TIMEOUT_S

    @property
    def url(self) -> str:
        """How a person would reach it."""
        return f"http://{joined(self.host, self.port)}"

    def page(self, path: str) -> str:
        """The text of a page such as ``/metrics/summary``.

        Raises:
            PoolError: not reached, not in time, too long, or a status other than 200.
        """
        try:
            status, text = self._get(path)
        except (OSError, http.client.HTTPException) as error:
            raise PoolError(
                f"{self.url}{path}: {error or type(error).__name__}; is this mooncake_master's --metrics_port "
                f"(default {DEFAULT_PORT}), and does its --metrics_host let this machine in?"
            ) from error
        if status != http.client.OK:
            raise PoolError(f"{self.url}{path}: HTTP status {status}, expected 200; another service may listen there")
        return text

    def health(self) -> Health:
        """Whether the master serves."""
        found = self._object("/health")
        return Health(found.get("service_ready") is True, str(found.get("role", "")), str(found.get("ha_state") or ""))

    def metrics(self) -> dict[str, float]:
        """Its figures, as ``parse_metrics`` gives them."""
        return parse_metrics(self.page("/metrics"))

    def segments(self) -> list[Segment]:
        """The memory of the pool, a segment per client and piece."""
        found = self._object("/get_segments_detail").get("segments")
        each = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
        return [
            Segment(
                str(one.get("segment_name", "")),
                str(one.get("te_endpoint", "")),
                _whole(one.get("size_bytes")),
                _whole(one.get("allocator_used_bytes")),
                str(one.get("status", "")),
            )
            for one in each
        ]

    def _object(self, path: str) -> dict[str, Any]:
        text = self.page(path)
        with contextlib.suppress(ValueError):
            found = json.loads(text)
            if isinstance(found, dict):
                return found
        raise PoolError(f"{self.url}{path}: expected a JSON object, got {text[:60]!r}; another service listens there")

    def _get(self, path: str) -> tuple[int, str]:
        address = look_up(self.host, self.port)[0][4][0]
        deadline = time.monotonic() + self.timeout_s
        with contextlib.closing(http.client.HTTPConnection(address, self.port, timeout=self.timeout_s)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = bytearray()
            while piece := answer.read1(_PIECE_BYTES):
                body += piece
                if len(body) > MAX_PAGE_BYTES or time.monotonic() > deadline:
                    raise TimeoutError(f"{len(body)} bytes in {self.timeout_s:g} s, and no end")
            return answer.status, body.decode("utf-8", "replace")


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus text as name -> value; of samples with labels the name includes them as written (``name{a="b"}``)."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.strip().rpartition(" ")
        if name and not name.startswith("#"):
            with contextlib.suppress(ValueError):
                found[name] = float(value)
    return found


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
