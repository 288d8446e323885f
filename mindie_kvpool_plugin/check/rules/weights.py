"""Weights and adapters on disk, and the extra keys of a model that reach the worker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import B, D, View, integer, text, worker_integer

MAX_PATH = 4096
MAX_PATH_LEVELS = 32
_PATH_CHARS = re.compile(r"[A-Za-z0-9_./-]+")


@rule(
    "CF-06", "error", "boot",
    "service: ModelConfig参数说明; code: src/config_manager/model_deploy_config.cpp",
    wrong='"modelWeightPath": "Qwen/Qwen2-7B"',
    right='"modelWeightPath": "/data/weights/Qwen2-7B-Instruct"',
)  # fmt: skip
def weights_are_there(view: View) -> Iterator[Fault]:
    """The host opens the directory and its config.json before anything else."""
    for index, model in enumerate(view.models):
        if "modelWeightPath" not in model or not isinstance(model["modelWeightPath"], str):
            continue
        named, path = text(model, "modelWeightPath"), view.model_path(index, "modelWeightPath")
        if not named.strip():
            yield fault(*path, variant="empty")
        elif not _PATH_CHARS.fullmatch(named.removeprefix("~")) or len(named) > MAX_PATH:
            yield fault(*path, variant="chars", value=named)
        elif len(Path(named).parts) - 1 > MAX_PATH_LEVELS:
            yield fault(*path, variant="levels", limit=MAX_PATH_LEVELS, value=named)
        elif view.situation.follow and view.situation.weight_config is None:
            yield from _on_disk(view, named, path)


def _on_disk(view: View, named: str, path: tuple[str | int, ...]) -> Iterator[Fault]:
    disk = view.followed.disk
    folder = Path(named)
    if not folder.is_absolute():
        yield fault(*path, variant="relative", severity="warning", outcome="advice", value=named)
        if view.situation.home is None:
            return
        folder = view.situation.home / folder
    folder_facts, config_facts = disk.facts(folder), disk.facts(folder / "config.json")
    if not folder_facts.exists:
        here = view.situation.on_server or disk.facts(folder.parent).is_dir
        variant = "missing" if here else "elsewhere"
        yield fault(*path, variant=variant, severity=None if here else "info", value=named)
    elif not folder_facts.is_dir:
        yield fault(*path, variant="no_folder", value=named)
    elif not config_facts.is_file:
        yield fault(*path, variant="no_config", value=named)
    else:
        weights = view.followed.weights.get(int(path[3]))
        document = weights.document if weights is not None else None
        if document is not None and not (document.is_valid and isinstance(document.value, dict)):
            yield fault(*path, variant="bad_config", value=named)


@rule(
    "CF-07", "error", "boot",
    "lora: 参数说明; code: src/config_manager/model_deploy_config.cpp",
    wrong='"LoraModules": [{"name": "a", "path": "/data/loras/a", "baseModelName": "other"}]',
    right='"baseModelName" equal to a modelName',
)  # fmt: skip
def adapters_are_there(view: View) -> Iterator[Fault]:
    """Each adapter needs a directory and a model of this file."""
    names = {text(model, "modelName") for model in view.models}
    seen: set[str] = set()
    modules = view.deploy.get("LoraModules")
    for index, module in enumerate(modules[:50] if isinstance(modules, list) else []):
        if not isinstance(module, dict):
            continue
        base, folder = text(module, "baseModelName"), text(module, "path")
        if base and base not in names:
            yield fault(
                B, D, "LoraModules", index, "baseModelName", variant="base", known=", ".join(sorted(names))[:80]
            )
        if "path" in module:
            yield from _adapter_folder(view, folder, (B, D, "LoraModules", index, "path"))
        name = text(module, "name")
        if name in seen:
            yield fault(B, D, "LoraModules", index, "name", variant="twice", severity="warning", outcome="silent")
        seen.add(name)


def _adapter_folder(view: View, folder: str, at: tuple[str | int, ...]) -> Iterator[Fault]:
    """The host judges an adapter's path as it does that of the weights."""
    path = Path(folder)
    if not folder.strip():
        yield fault(*at)
        return
    if not _PATH_CHARS.fullmatch(folder.removeprefix("~")):
        yield fault(*at, variant="chars")
        return
    if not path.is_absolute() and not folder.startswith("~"):
        yield fault(*at, variant="relative", severity="warning", outcome="advice")
        if view.situation.home is None:
            return
        path = view.situation.home / path
    if view.situation.follow and not view.followed.disk.facts(path).is_dir:
        here = view.situation.on_server or view.followed.disk.facts(path.parent).is_dir
        yield fault(*at, severity=None if here else "info")


_TYPED = frozenset(
    (
        "modelInstanceType", "modelName", "modelWeightPath", "worldSize", "cpuMemSize", "npuMemSize", "backendType",
        "trustRemoteCode", "pluginParams", "plugin_params", "models", "dp", "sp", "cp", "tp", "moe_tp", "moe_ep",
    )
)  # fmt: skip
"""Keys of a model that other rules and the schema judge."""


@rule(
    "CF-12", "warning", "silent",
    "service: ModelConfig参数说明; code: src/config_manager/model_deploy_config.cpp",
    wrong='"temperature": 0.9',
    right='"temperature": "0.9"',
)  # fmt: skip
def numbers_reach_the_worker_unchanged(view: View) -> Iterator[Fault]:
    """Extra keys are handed over as text of 32-bit integers."""
    for index, model in enumerate(view.models):
        for key, value in list(model.items())[:200]:
            path = view.model_path(index, key)
            if key in _TYPED or isinstance(value, (str, bool)):
                continue
            size = worker_integer(model, key)
            if size is None:
                yield fault(*path, variant="dropped", key=key[:40])
            elif size != value:
                yield fault(*path, key=key[:40], size=size)
    for key in ("maxLoras", "maxLoraRank"):
        count = integer(view.deploy, key)
        if count is not None and count >= 2**31:
            yield fault(B, D, key, variant="lora", key=key)
