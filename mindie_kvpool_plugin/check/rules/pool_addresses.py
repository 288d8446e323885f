"""Addresses in the pool file, judged together with those of the service."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindie_kvpool_plugin.check.rules.pool_file import AT, at_key, pool_value
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, S, View, text

_PORT = re.compile(r"[0-9]{1,5}")
_LOCAL = re.compile(r"(?:localhost|127\.[0-9.]+|\[?::1\]?)(?::\d+)?", re.IGNORECASE)
_PUBLIC_HINT = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})")


@rule(
    "HC-75", "info", "advice",
    "mempool: 声明",
    wrong='"master_server_address": "8.8.4.4:50051"',
    right='"master_server_address": "192.168.10.1:50051"',
)  # fmt: skip
def pool_traffic_stays_private(view: View) -> Iterator[Fault]:
    """Nothing between clients and master is encrypted or authenticated."""
    value, pool = pool_value(view), view.followed.pool
    if value is None or pool is None or text(view.kv_pool, "backend") != "mooncake":
        return
    addresses = [value.get("master_server_address"), value.get("local_hostname")]
    severity = "warning" if any(isinstance(a, str) and _is_public(a) for a in addresses) else "info"
    yield fault(*AT, severity=severity, variant="public" if severity == "warning" else "",
                place=at_key(pool, "master_server_address"))  # fmt: skip


def _is_public(address: str) -> bool:
    match = _PUBLIC_HINT.match(address)
    if not match:
        return False
    a, b = int(match[1]), int(match[2])
    private = a in {0, 10, 127} or a >= 224 or (a, b) in {(192, 168), (169, 254)}
    return not (private or (a == 172 and 16 <= b < 32) or (a == 100 and 64 <= b < 128))


@rule(
    "HC-76", "warning", "run",
    "mempool: 二、准备Mooncake Client配置文件",
    wrong='"local_hostname": "localhost", "master_server_address": "192.168.10.1:50051"',
    right='"local_hostname": "192.168.10.11"',
)  # fmt: skip
def segment_can_be_reached(view: View) -> Iterator[Fault]:
    """Other nodes cannot reach a segment that calls itself localhost."""
    value, pool = pool_value(view), view.followed.pool
    if value is None or pool is None:
        return
    host, master = value.get("local_hostname"), value.get("master_server_address")
    if not isinstance(host, str) or not _LOCAL.fullmatch(host.strip()):
        return
    if view.is_multi_node or (isinstance(master, str) and not _LOCAL.fullmatch(master.strip())):
        yield fault(*AT, place=at_key(pool, "local_hostname"), host=host.strip()[:60])


@rule(
    "HC-78", "warning", "run",
    "mempool: 三、在MindIE中使用; service: ServerConfig参数说明",
    wrong='"port": 1025, "master_server_address": "127.0.0.1:1025"',
    right='"master_server_address": "127.0.0.1:50051"',
)  # fmt: skip
def master_port_is_free(view: View) -> Iterator[Fault]:
    """The master and the service cannot share a port on one machine."""
    value, pool = pool_value(view), view.followed.pool
    master = (value or {}).get("master_server_address")
    if pool is None or not isinstance(master, str):
        return
    host, _, port = master.strip().rpartition(":")
    same_host = _LOCAL.fullmatch(host) or host in (text(view.server, "ipAddress"), text(value or {}, "local_hostname"))
    if not _PORT.fullmatch(port):
        if KV_POOL in (value or {}):
            return  # refused by the plugin's reading, and told there
        yield fault(*AT, variant="no_port", place=at_key(pool, "master_server_address"), address=master[:60])
        return
    ports = {
        key: values[key]
        for values in (view.server, view.backend)
        for key in ("port", "managementPort", "metricsPort", "interCommPort", "multiNodesInferPort")
        if key in values
    }
    for key, used in ports.items():
        if same_host and used == int(port):
            yield fault(B if key in view.backend else S, key, port=used, key=key)
