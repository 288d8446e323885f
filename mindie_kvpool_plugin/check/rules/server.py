"""ServerConfig: addresses, ports, the edge/cloud split, and security notes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.check.rules.family import family
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import B, C, S, View, integer, section, text, worker_integer

MIN_PORT, MAX_PORT = 1024, 65535
DEFAULT_NODES_PORT = 1120
MAX_IPV4_CHARS = 32


def address_problem(address: str) -> str:
    """Why the host refuses an address; "" when it does not."""
    is_bracketed = ":" in address and address.startswith("[") and address.endswith("]")
    plain = (address[1:-1] if is_bracketed else address).split("\0", 1)[0]
    if not plain:
        return "empty"
    try:
        if ":" in plain:
            ipaddress.IPv6Address(plain)
            return "scope" if "%" in plain else ""
        if "." in plain and len(address) <= MAX_IPV4_CHARS:
            ipaddress.IPv4Address(plain)
            return ""
    except ValueError:
        return "port" if plain.count(":") == 1 and "." in plain else "name"
    return "name"


@rule(
    "CF-04", "error", "boot",
    "service: ServerConfig参数说明; code: src/config_manager/server_config.cpp",
    wrong='"ipAddress": "localhost"',
    right='"ipAddress": "127.0.0.1"',
)  # fmt: skip
def addresses_are_numeric(view: View) -> Iterator[Fault]:
    """IPv4 or IPv6, no host name, no port, no scope; the environment replaces two of them."""
    for key, variable in (
        ("ipAddress", "MIES_CONTAINER_IP"),
        ("managementIpAddress", "MIES_CONTAINER_MANAGEMENT_IP"),
    ):
        replaced = view.situation.variable(variable)
        value = replaced or view.server.get(key)
        if not isinstance(value, str):
            continue
        problem = address_problem(value)
        if problem:
            yield fault(S, key, variant=problem, value=value, key=variable if replaced else key)
        elif value in {"0.0.0.0", "::", "[::]"} and view.server.get("allowAllZeroIpListening") is False:  # noqa: S104
            yield fault(S, key, variant="zero", value=value, key=variable if replaced else key)


@rule(
    "HC-66", "error", "boot",
    "service: BackendConfig参数说明; code: src/config_manager/backend_config.cpp",
    wrong='"port": 1120',
    right='"port": 1025, "multiNodesInferPort": 1120',
)  # fmt: skip
def node_port_differs(view: View) -> Iterator[Fault]:
    """Compared on one node too; the second defaults to 1120."""
    port = integer(view.server, "port")
    other = integer(view.backend, "multiNodesInferPort", DEFAULT_NODES_PORT)
    if port is not None and port == other:
        variant = "" if "multiNodesInferPort" in view.backend else "default"
        yield fault(S, "port", variant=variant, port=port)


@rule(
    "HC-79", "warning", "advice",
    "service: ServerConfig参数说明; service: BackendConfig参数说明",
    wrong='"httpsEnabled": false, "ipAddress": "192.168.10.11"',
    right='"httpsEnabled": true',
)  # fmt: skip
def switches_are_on_the_safe_side(view: View) -> Iterator[Fault]:
    """Security notes of the manual."""
    if view.server.get("httpsEnabled") is False:
        addresses = [text(view.server, key) for key in ("ipAddress", "managementIpAddress") if key in view.server]
        local = all(address.startswith("127.") or address in {"::1", "[::1]"} for address in addresses)
        yield fault(S, "httpsEnabled", variant="https", severity="info" if local else None)
    if view.is_dmi and view.server.get("interCommTLSEnabled") is False:
        yield fault(S, "interCommTLSEnabled", variant="tls")
    if view.is_multi_node and view.backend.get("interNodeTLSEnabled") is False:
        yield fault(B, "interNodeTLSEnabled", variant="tls")
    if view.server.get("allowAllZeroIpListening") is True:
        yield fault(S, "allowAllZeroIpListening", variant="zero")
    for index, model in enumerate(view.models):
        if model.get("trustRemoteCode") is True:
            yield fault(*view.model_path(index, "trustRemoteCode"), variant="code")


@rule(
    "HC-60", "error", "boot",
    "code: src/config_manager/server_config.cpp; code: src/config_manager/backend_config.cpp",
    wrong='"layerwiseDisaggregated": true with prefix_cache',
    right='"layerwiseDisaggregated": false',
)  # fmt: skip
def edge_cloud_split_excludes(view: View) -> Iterator[Fault]:
    """The edge/cloud split takes none of these; pooling is impossible with it."""
    if view.server.get("layerwiseDisaggregated") is not True:
        return
    at = (S, "layerwiseDisaggregated")
    excluded = [
        ("multiNodesInferEnabled", view.is_multi_node),
        ("distDPServerEnabled", view.server.get("distDPServerEnabled") is True),
        ("backendType", bool(view.models) and text(view.models[0], "backendType") in {"torch", "ms"}),
        ("templateType", view.schedule.get("templateType") == "Mix"),
        ("supportSelectBatch", view.schedule.get("supportSelectBatch") is True),
        ("bufferResponseEnabled", view.schedule.get("bufferResponseEnabled") is True),
        ("plugin_type", bool(view.models) and view.models[0].get("plugin_type") == "splitfuse"),
        ("prefix_cache", view.is_prefix),
        ("kvPoolConfig", view.is_pool),
    ]
    for name, is_set in excluded:
        if is_set:
            yield fault(*at, excluded=name)
    if text(view.server, "layerwiseDisaggregatedRoleType") not in {"master", "slave"}:
        yield fault(S, "layerwiseDisaggregatedRoleType", variant="role")
    yield from _split_sizes(view)


def _split_sizes(view: View) -> Iterator[Fault]:
    nodes = section(view.backend, "layerwiseDisaggregated").get("layerwiseDisaggregatedMultiNodesInferEnabled") is True
    slaves = view.server.get("layerwiseDisaggregatedSlaveIpAddress")
    dp = worker_integer(view.models[0], "dp") if view.models else None
    if nodes and len(slaves if isinstance(slaves, list) else []) != 2:
        yield fault(S, "layerwiseDisaggregatedSlaveIpAddress", variant="slaves")
    if nodes and dp not in {1, 2}:
        yield fault(*view.model_path(0, "dp"), variant="dp")
    kind = family(view, 0) if view.models else None
    is_deepseek = kind is not None and kind.name in {"deepseek", "deepseek_v32"}
    if not nodes and dp is not None and dp != 1 and not is_deepseek:
        yield fault(*view.model_path(0, "dp"), variant="dp")


@rule(
    "CF-15", "error", "boot",
    "code: src/config_manager/server_config.cpp; code: src/config_manager/backend_config.cpp",
    wrong='"layerwiseDisaggregatedDataPort": 80',
    right='"layerwiseDisaggregatedDataPort": 10024',
)  # fmt: skip
def edge_cloud_values_are_valid(view: View) -> Iterator[Fault]:
    """Addresses and ports of the split, looked at only when it is on."""
    nodes = section(view.backend, "layerwiseDisaggregated")
    if "layerwiseDisaggregatedMultiNodesInferEnabled" in nodes:
        key = "layerwiseDisaggregatedMultiNodesCtrlPort"
        is_on = nodes["layerwiseDisaggregatedMultiNodesInferEnabled"] is True
        if not _is_number(nodes.get(key)) or (is_on and not _is_port(nodes.get(key))):
            yield fault(B, "layerwiseDisaggregated", key, variant="port")
    if view.server.get("layerwiseDisaggregated") is not True:
        return
    master = text(view.server, "layerwiseDisaggregatedMasterIpAddress")
    if address_problem(master) or master in {"0.0.0.0", "::"}:  # noqa: S104
        yield fault(S, "layerwiseDisaggregatedMasterIpAddress", variant="address")
    slaves = view.server.get("layerwiseDisaggregatedSlaveIpAddress", [])
    for index, slave in enumerate(slaves[:20] if isinstance(slaves, list) else []):
        if isinstance(slave, str) and (address_problem(slave) or slave in {"0.0.0.0", "::"}):  # noqa: S104
            yield fault(S, "layerwiseDisaggregatedSlaveIpAddress", index, variant="address")
    if not _is_port(view.server.get("layerwiseDisaggregatedDataPort", MIN_PORT)):
        yield fault(S, "layerwiseDisaggregatedDataPort", variant="port")
    ports = view.server.get("layerwiseDisaggregatedCrtlPort", [])
    for index, port in enumerate(ports[:20] if isinstance(ports, list) else []):
        if not _is_port(port):
            yield fault(S, "layerwiseDisaggregatedCrtlPort", index, variant="port")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and MIN_PORT <= value <= MAX_PORT


@rule(
    "CF-20", "info", "advice",
    "service: ModelConfig参数说明",
    wrong='"tokenTimeout": 600 with "inferMode": "dmi"',
    right="timeouts of the controller",
)  # fmt: skip
def timeouts_do_nothing_between_nodes(view: View) -> Iterator[Fault]:
    """The manual calls both timeouts ineffective with separate prefill and decode nodes."""
    changed = any(integer(view.server, key, 600) != 600 for key in ("tokenTimeout", "e2eTimeout"))
    if view.is_dmi and changed:
        yield fault(S, "inferMode", key=C)
