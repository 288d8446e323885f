"""TLS files: which are needed, and what is wrong with those named."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import B, S, Section, View, integer, text

MAX_FILES = 3
_BAD_BITS = 0o137


def _interfaces(view: View) -> list[str]:
    """Key prefixes of the interfaces that need certificates."""
    server = view.server
    same_address = text(server, "managementIpAddress") in {"", text(server, "ipAddress")}
    port = integer(server, "port")
    same_ports = integer(server, "managementPort", port) == port == integer(server, "metricsPort")
    return ["tls"] if same_address and same_ports else ["tls", "managementTls", "metricsTls"]


@rule(
    "CF-01", "error", "boot",
    "service: ServerConfig参数说明; code: src/config_manager/server_config.cpp",
    wrong='"httpsEnabled": true, "tlsCert": "none.pem"',
    right='"tlsCert": "security/certs/server.pem"   (there, mode 0640 or less)',
)  # fmt: skip
def certificates_are_there(view: View) -> Iterator[Fault]:
    """Every file HTTPS needs, relative to the installation."""
    if view.server.get("httpsEnabled") is not True:
        return
    folder = text(view.server, "tlsCaPath")
    for prefix in _interfaces(view):
        for key in (f"{prefix}Cert", f"{prefix}Pk"):
            name = view.server.get(key, "")
            if isinstance(name, str):
                yield from _file(view, (S, key), name)
        yield from _listed(view, view.server, S, f"{prefix}CaFile", folder)
        if text(view.server, f"{prefix}CrlPath"):
            yield from _listed(view, view.server, S, f"{prefix}CrlFiles", text(view.server, f"{prefix}CrlPath"))


@rule(
    "CF-02", "error", "boot",
    "service: ServerConfig参数说明; service: BackendConfig参数说明",
    wrong='"tlsCaFile": []',
    right='"tlsCaFile": ["ca.pem"]   (1 to 3 names)',
)  # fmt: skip
def file_lists_have_the_right_length(view: View) -> Iterator[Fault]:
    """One to three CA files, at most three revocation lists."""
    if view.server.get("httpsEnabled") is True:
        for prefix in _interfaces(view):
            yield from _length(view.server, S, f"{prefix}CaFile", 1, distinct=True)
            if text(view.server, f"{prefix}CrlPath"):
                yield from _length(view.server, S, f"{prefix}CrlFiles", 0, distinct=True)
    for key in ("interCommTlsCaFiles", "interCommTlsCrlFiles"):
        yield from _loose_list(view, key)
    if view.backend.get("interNodeTLSEnabled") is True:
        yield from _length(view.backend, B, "interNodeTlsCaFiles", 1, distinct=False)
        yield from _length(view.backend, B, "interNodeTlsCrlFiles", 0, distinct=False)


def _loose_list(view: View, key: str) -> Iterator[Fault]:
    """Lists whose type the host does not check: one text, or an object of texts, passes and is no list."""
    value = view.server.get(key, [])
    if isinstance(value, list) or view.server.get("interCommTLSEnabled") is False:
        return
    is_refused = isinstance(value, dict) and not all(isinstance(name, str) for name in value.values())
    severity, outcome = (None, None) if is_refused else ("warning", "silent")
    yield fault(S, key, variant="list", severity=severity, outcome=outcome)


def _length(values: Section, where: str, key: str, low: int, *, distinct: bool) -> Iterator[Fault]:
    names = values.get(key, [])
    if not isinstance(names, list):
        return
    plain = [name for name in names if isinstance(name, str)]
    count = len(set(plain)) if distinct else len(names)
    if not low <= count <= MAX_FILES:
        yield fault(where, key, count=count, low=low, high=MAX_FILES)
    elif len(set(plain)) != len(plain):
        yield fault(where, key, variant="repeat", severity="warning", outcome="silent")


@rule(
    "CF-03", "error", "boot",
    "service: BackendConfig参数说明; code: src/config_manager/backend_config.cpp",
    wrong='"interNodeTLSEnabled": true without interNodeTlsCert',
    right='"interNodeTLSEnabled": false   (on one node)',
)  # fmt: skip
def keys_between_nodes_are_there(view: View) -> Iterator[Fault]:
    """Demanded on one node too; the files only on several."""
    if view.backend.get("interNodeTLSEnabled") is not True:
        return
    for key in ("interNodeTlsCert", "interNodeTlsPk", "interNodeTlsCaPath", "interNodeTlsCrlPath"):
        if key not in view.backend:
            yield fault(B, key, variant="absent", key=key)
    if not view.is_multi_node:
        return
    for key in ("interNodeTlsCert", "interNodeTlsPk"):
        if text(view.backend, key):
            yield from _file(view, (B, key), text(view.backend, key))
    yield from _listed(view, view.backend, B, "interNodeTlsCaFiles", text(view.backend, "interNodeTlsCaPath"))


def _listed(view: View, values: Section, where: str, key: str, folder: str) -> Iterator[Fault]:
    names = values.get(key)
    for index, name in enumerate(names[:10] if isinstance(names, list) else []):
        if isinstance(name, str):
            yield from _file(view, (where, key, index), folder + name)


def _file(view: View, path: tuple[str | int, ...], name: str) -> Iterator[Fault]:
    """A file below the installation; not judged where there is none."""
    home = view.situation.home
    if not name.strip("/ "):
        yield fault(*path, variant="empty")
        return
    if home is None or not view.situation.follow or "\0" in name:
        return
    facts = view.followed.disk.facts(f"{home}/{name}")
    if not facts.is_file or not facts.real_path.startswith(f"{os.path.realpath(home)}/"):
        yield fault(*path, file=name[:80])
    elif facts.is_link:
        yield fault(*path, variant="link", file=name[:80])
    elif facts.mode & _BAD_BITS:
        yield fault(*path, variant="mode", file=name[:80], mode=f"{facts.mode:04o}")
