"""The file as a whole: permissions, and files that are something else."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import View

# nesting of the deepest known text is 9; a configuration has some hundred texts
MAX_DEPTH = 12
MAX_TEXTS = 10_000
_OTHER_KINDS = {
    "old": ("ResourceParam", "ServeParam", "ServeCommand", "OtherParam", "WorkFlowParam", "ModelDeployParam"),
    "motor": (
        "deploy_config",
        "motor_deploy_config",
        "mindie_server_prefill_config",
        "p_instances_num",
        "kv_transfer_config",
        "kv_cache_store_config",
    ),
    "atb": ("llm",),
    "weights": ("architectures", "model_type"),
    "ranks": ("server_list", "server_group_list"),
}
"""Variant of the message -> keys at the top of such a file."""


@rule(
    "HC-80", "error", "boot",
    "service: 配置文件参数说明; code: src/config_manager/param_checker.cpp",
    wrong="-rw-r--r-- config.json",
    right="chmod 640 config.json",
)  # fmt: skip
def file_has_the_right_mode(view: View) -> Iterator[Fault]:
    """No bit outside 0640, and the service's user owns it; judged where the service runs."""
    path = view.situation.config_path
    if path is None:
        return
    facts = view.followed.disk.facts(path)
    if not facts.exists:
        return
    here = view.situation.on_server
    if facts.mode & 0o137:
        yield fault(severity=None if here else "info", mode=f"{facts.mode:04o}", value=f"{facts.mode:04o}")
    if here and facts.owner not in {os.getuid(), -1}:
        yield fault(variant="owner", severity="warning", owner=facts.owner, value=facts.owner)
    if here and facts.is_link:
        yield fault(variant="link", severity="warning")


@rule(
    "CF-22", "warning", "silent",
    "code: src/config_manager/param_checker.cpp",
    wrong='"ipAddress": "127.0.0.1\\u0000.example"',
    right='"ipAddress": "127.0.0.1"',
)  # fmt: skip
def texts_hold_no_nul(view: View) -> Iterator[Fault]:
    """C++ hands texts to the system as far as their first NUL."""
    for path, value in itertools.islice(_texts(view.root, (), 0), MAX_TEXTS):
        if "\0" in value:
            yield fault(*path, value=value)


def _texts(value: Any, path: tuple[str | int, ...], depth: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, (dict, list)) and depth < MAX_DEPTH:
        items: Iterable[tuple[str | int, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _texts(item, (*path, key), depth + 1)


@rule(
    "CF-16", "error", "boot",
    "service: 配置文件参数说明",
    wrong='{"motor_deploy_config": {...}, "mindie_server_prefill_config": {...}}',
    right='{"ServerConfig": {...}, "BackendConfig": {...}}',
    is_other_kind=True,
)  # fmt: skip
def file_is_a_service_configuration(view: View) -> Iterator[Fault]:
    """Layouts of 1.0.RC1 and RC2, and files that lie beside config.json or share its name."""
    keys = view.root if isinstance(view.root, dict) else {}
    if "BackendConfig" in keys or "ServerConfig" in keys:
        return
    found = ((variant, key) for variant, known in _OTHER_KINDS.items() for key in known if key in keys)
    for variant, key in list(found)[:1]:
        yield fault(variant=variant, key=key)
