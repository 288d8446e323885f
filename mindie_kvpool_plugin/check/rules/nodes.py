"""Several nodes: rank table, prefill and decode, and what older hosts excluded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, C, K, S, View, integer
from mindie_kvpool_plugin.check.schema import profiles

MAX_SERVERS = 60
MAX_DEVICES = 32
MAX_DEVICE_ID = 63
MAX_RANK = 511


def node_count(view: View) -> int | None:
    """Nodes of one instance: 1, or what the rank table says; None when that is not known."""
    if not view.is_multi_node and view.schedule.get("distributedEnable") is not True:
        return 1
    servers = _servers(view)
    return len(servers) or None


def _servers(view: View) -> list[Any]:
    table = view.followed.rank_table
    value = table.value.get("server_list") if table is not None and isinstance(table.value, dict) else None
    return value if isinstance(value, list) else []


@rule(
    "HC-67", "error", "boot",
    "ranks: 文件格式说明; code: src/config_manager/ranktable_config.cpp",
    wrong='"multiNodesInferEnabled": true   (RANK_TABLE_FILE not set)',
    right="export RANK_TABLE_FILE=/etc/mindie/rank_table.json",
)  # fmt: skip
def several_nodes_need_a_rank_table(view: View) -> Iterator[Fault]:
    """The table is opened before anything else of the nodes."""
    if view.is_multi_node:
        at: tuple[str, str] = (B, "multiNodesInferEnabled")
    elif view.schedule.get("distributedEnable") is True:
        at = (B + "/" + C, "distributedEnable")
    else:
        return
    path = "/" + "/".join(at)
    table = view.followed.rank_table
    named = view.situation.variable("RANK_TABLE_FILE")
    if not named:
        severity = "error" if view.situation.is_env_known and view.situation.on_server else "info"
        yield Fault(path, {}, "unset", severity)  # type: ignore[arg-type]
        return
    if table is None:
        return
    params = {"file": named[:80]}
    if not table.facts.is_file:
        yield Fault(path, params, "missing")
    elif view.situation.on_server and table.facts.mode & 0o137:
        yield Fault(path, params | {"mode": f"{table.facts.mode:04o}"}, "mode")
    elif not isinstance(table.value, dict) or table.document is None or not table.document.is_valid:
        yield Fault(path, params, "json")
    else:
        for problem, extra in _table_problems(table.value):
            yield Fault(path, params | extra, problem)


def _table_problems(table: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    count, servers = table.get("server_count"), table.get("server_list")
    if not isinstance(servers, list) or not servers or not all(isinstance(server, dict) for server in servers):
        yield "servers", {}
        return
    if not isinstance(count, str) or not _is_in(count, MAX_SERVERS) or int(count) < 2:
        yield "count", {"count": str(count)[:20]}
    elif int(count) != len(servers):
        yield "length", {"count": count, "servers": len(servers)}
    devices = [server.get("device") if isinstance(server.get("device"), list) else [] for server in servers]
    sizes = {len(each) for each in devices}
    if len(sizes) > 1 or not 1 <= max(sizes) <= MAX_DEVICES:
        yield "devices", {"sizes": ", ".join(map(str, sorted(sizes)[:6]))}
    if any(not isinstance(server.get("container_ip"), str) or not server["container_ip"] for server in servers):
        yield "container", {}
    for device in (device for each in devices for device in each[:MAX_DEVICES]):
        number = device.get("device_id") if isinstance(device, dict) else None
        rank = device.get("rank_id") if isinstance(device, dict) else None
        if not _is_in(number, MAX_DEVICE_ID) or not _is_in(rank, MAX_RANK):
            yield "ids", {"device": str(number)[:12], "rank": str(rank)[:12]}
            return


def _is_in(value: Any, limit: int) -> bool:
    return isinstance(value, str) and value.isdecimal() and len(value) < 5 and int(value) <= limit


@rule(
    "CF-13", "error", "boot",
    "service: BackendConfig参数说明; code: src/config_manager/backend_config.cpp",
    wrong='"multiNodesInferEnabled": true, "interNodeTLSEnabled": true, "interNodeTlsCrlPath": "security/grpc/certs/"',
    right='"interNodeTlsCrlPath": ""',
)  # fmt: skip
def revocation_path_between_nodes_is_empty(view: View) -> Iterator[Fault]:
    """The host tests this directory as if it were a file: only an empty text passes."""
    path = view.backend.get("interNodeTlsCrlPath")
    if view.is_multi_node and view.backend.get("interNodeTLSEnabled") is True and isinstance(path, str) and path:
        yield fault(B, "interNodeTlsCrlPath")


@rule(
    "CF-14", "warning", "advice",
    "service: BackendConfig参数说明",
    wrong='"multiNodesInferEnabled": true, "modelInstanceNumber": 2',
    right='"modelInstanceNumber": 1',
)  # fmt: skip
def several_nodes_serve_one_instance(view: View) -> Iterator[Fault]:
    """The manual wants one instance with several nodes."""
    if view.is_multi_node and (integer(view.backend, "modelInstanceNumber", 1) or 1) > 1:
        yield fault(B, "modelInstanceNumber")


@rule(
    "HC-31", "info", "late",
    "prefix: 限制与约束; code: mindie_llm/text_generator/generator.py",
    wrong="a decode node with prefix_cache in plugin_params (3.0.0)",
    right="prefix_cache,kv_pool on prefill nodes, kv_pool alone on decode nodes",
)  # fmt: skip
def decode_nodes_have_no_prefix_cache(view: View) -> Iterator[Fault]:
    """The role arrives at run time: the file cannot tell, so both sides are named."""
    if view.is_dmi and view.is_prefix:
        old = profiles.is_before(view.situation.host_version, "2.x-docs")
        yield fault(*view.plugins_path(), variant="both" if old else "")


@rule(
    "HC-32", "warning", "advice",
    "prefix: 限制与约束",
    wrong='prefix_cache with "multiNodesInferEnabled": true on 2.2.RC1',
    right="a newer host",
)  # fmt: skip
def old_hosts_exclude_several_nodes(view: View) -> Iterator[Fault]:
    """An exclusion of older documents."""
    if view.is_prefix and view.is_multi_node and profiles.is_before(view.situation.host_version, "2.x-docs"):
        yield fault(B, "multiNodesInferEnabled")


@rule(
    "HC-39", "info", "advice",
    "pool: 限制与约束",
    wrong="pooling with RAS recovery on 2.2.RC1",
    right="one of the two",
)  # fmt: skip
def old_hosts_exclude_recovery(view: View) -> Iterator[Fault]:
    """Stated for 2.2.RC1 only."""
    if view.is_pool and view.situation.host_version == "2.2.RC1":
        yield fault(B, K, "backend")


@rule(
    "HC-29", "info", "advice",
    "prefix: 限制与约束",
    wrong="prefix_cache on the decode node",
    right="prefix_cache with mtp, several nodes, CP, SP, DP, EP on the prefill node",
)  # fmt: skip
def prefix_cache_goes_with(view: View) -> Iterator[Fault]:
    """What the documents tick, so that a long list of features is no worry."""
    ticked = []
    for index, _ in enumerate(view.models):
        ticked += [key.upper() for key in ("dp", "cp", "sp", "moe_ep") if isinstance(view.models[index].get(key), int)]
    ticked += ["MTP"] if "mtp" in view.words else []
    if view.is_prefix and ticked:
        yield fault(*view.plugins_path(), features=", ".join(dict.fromkeys(ticked)))


@rule(
    "KP-09", "info", "silent",
    "readme: What is pooled",
    wrong='"inferMode": "dmi", "{\\"plugin_type\\":\\"kv_pool\\"}" on a prefill node',
    right='"{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}" on prefill nodes, kv_pool alone on decode nodes',
)  # fmt: skip
def kv_pool_alone_is_for_decode_nodes(view: View) -> Iterator[Fault]:
    """The role arrives at run time: the file cannot tell."""
    if view.is_dmi and KV_POOL in view.words and not view.is_prefix:
        yield fault(S, "inferMode")
