"""Sizes that must multiply out: devices, instances, tensor, data, context and expert parallelism."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.check.rules.layout import parallel_size, rank_counts
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, Section, View, integer, text, worker_integer

_CPP_NUMBER = re.compile(r"\s*[+-]?\d+")


@rule(
    "HC-55", "error", "boot",
    "service: BackendConfig参数说明; service: ModelConfig参数说明; code: src/config_manager/backend_config.cpp",
    wrong='"modelInstanceNumber": 1, "npuDeviceIds": [[0,1]], "worldSize": 4',
    right='"modelInstanceNumber": 1, "npuDeviceIds": [[0,1,2,3]], "worldSize": 4',
)  # fmt: skip
def device_sets_match(view: View) -> Iterator[Fault]:
    """One set per instance, each exactly worldSize distinct ids."""
    sets = view.backend.get("npuDeviceIds")
    if not isinstance(sets, list):
        return
    instances = integer(view.backend, "modelInstanceNumber")
    if instances is not None and len(sets) != instances:
        yield fault(B, "npuDeviceIds", variant="sets", sets=len(sets), instances=instances)
    world = integer(view.models[0], "worldSize") if view.models else None
    for index, ids in enumerate(sets[:20]):
        if not isinstance(ids, list):
            continue
        if world is not None and len(ids) != world:
            yield fault(B, "npuDeviceIds", index, variant="length", length=len(ids), world=world)
        plain = [number for number in ids[:2000] if isinstance(number, (int, float))]
        if len(set(plain)) != len(plain):
            yield fault(B, "npuDeviceIds", index, variant="repeat")


@rule(
    "HC-56", "warning", "run",
    "service: BackendConfig参数说明; code: src/config_manager/backend_config.cpp",
    wrong='"npuDeviceIds": [[0,1],[1,2]]',
    right='"npuDeviceIds": [[0,1],[2,3]]',
)  # fmt: skip
def device_sets_are_disjoint(view: View) -> Iterator[Fault]:
    """Two instances on one device; the host does not notice."""
    sets = view.backend.get("npuDeviceIds")
    seen: set[Any] = set()
    for index, ids in enumerate(sets[:20] if isinstance(sets, list) else []):
        own = {number for number in ids[:2000] if isinstance(number, int)} if isinstance(ids, list) else set()
        if own & seen:
            yield fault(B, "npuDeviceIds", index, shared=", ".join(map(str, sorted(own & seen)[:8])))
        seen |= own


@rule(
    "CF-08", "error", "boot",
    "dp: 参数说明; sp: 参数说明; cp: 参数说明; code: src/config_manager/model_deploy_config.cpp",
    wrong='"dp": -1',
    right='"dp": 1   (or no such key)',
)  # fmt: skip
def outer_sizes_are_positive(view: View) -> Iterator[Fault]:
    """dp, sp and cp are read by the host: at least 1, and -1 does not mean off."""
    for index, model in enumerate(view.models):
        for key in ("dp", "sp", "cp"):
            if key in model:
                yield from _outer(view.model_path(index, key), key, model[key], model)


def _outer(path: tuple[str | int, ...], key: str, value: Any, model: Section) -> Iterator[Fault]:
    if value is None or isinstance(value, (list, dict)):
        yield fault(*path, variant="dropped", severity="warning", outcome="silent", key=key)
        return
    if isinstance(value, str):
        match = _CPP_NUMBER.match(value)
        size = int(match.group()) if match and len(value) < 20 else None
        if size is None or not 1 <= size < 2**31:
            yield fault(*path, key=key)
        elif worker_integer(model, key) is None:
            yield fault(*path, variant="text", outcome="late", key=key)
        return
    size = worker_integer(model, key)
    if size is None or size < 1:
        yield fault(*path, key=key)
    elif isinstance(value, (bool, float)) or value != size:
        yield fault(*path, variant="cast", severity="warning", outcome="silent", key=key, size=size)


@rule(
    "CF-19", "warning", "late",
    "ep: 参数说明; service: ModelConfig参数说明",
    wrong='"moe_ep": "x"',
    right='"moe_ep": 8',
)  # fmt: skip
def inner_sizes_are_integers(view: View) -> Iterator[Fault]:
    """tp, moe_tp and moe_ep are read by the worker only: a mistake shows late."""
    for index, model in enumerate(view.models):
        for key in ("tp", "moe_tp", "moe_ep"):
            if key not in model:
                continue
            value, size = model[key], worker_integer(model, key)
            if value is None or isinstance(value, (list, dict)):
                yield fault(*view.model_path(index, key), variant="dropped", outcome="silent", key=key)
            elif size is None or size == 0 or size < -1:
                yield fault(*view.model_path(index, key), severity="error", key=key)
            elif isinstance(value, (bool, float)):
                yield fault(*view.model_path(index, key), variant="cast", outcome="silent", key=key, size=size)


@rule(
    "HC-57", "error", "late",
    "dp: 参数说明; cp: 参数说明",
    wrong='"worldSize": 8, "dp": 2   (tp defaults to 8)',
    right='"worldSize": 8, "dp": 2, "tp": 4, "moe_tp": 1, "moe_ep": 8',
)  # fmt: skip
def tensor_data_context_multiply_out(view: View) -> Iterator[Fault]:
    """Tp x dp x cp is the number of ranks over all nodes."""
    for index, model in enumerate(view.models):
        ranks = rank_counts(view, model)
        sizes = {key: parallel_size(model, key, 1) for key in ("dp", "cp")}
        if ranks is None or min(sizes.values()) < 1:
            continue
        total, _ = ranks
        tp = parallel_size(model, "tp", total)
        if tp * sizes["dp"] * sizes["cp"] != total:
            key = next((k for k in ("tp", "dp", "cp") if k in model), "worldSize")
            yield fault(*view.model_path(index, key), tp=tp, dp=sizes["dp"], cp=sizes["cp"], total=total)


@rule(
    "HC-58", "error", "late",
    "ep: 参数说明",
    wrong='"worldSize": 8, "dp": 2, "tp": 4   (moe_tp defaults to 4)',
    right='"worldSize": 8, "dp": 2, "tp": 4, "moe_tp": 8',
)  # fmt: skip
def expert_sizes_multiply_out(view: View) -> Iterator[Fault]:
    """moe_ep x moe_tp is the number of ranks, for dense models too."""
    for index, model in enumerate(view.models):
        ranks = rank_counts(view, model)
        if ranks is None or model.get("backendType", "atb") != "atb":
            continue
        total, _ = ranks
        moe_tp = parallel_size(model, "moe_tp", parallel_size(model, "tp", total))
        moe_ep = parallel_size(model, "moe_ep", 1)
        if moe_ep < 1 or moe_tp < 1 or moe_ep * moe_tp == total:
            continue
        key = next((k for k in ("moe_ep", "moe_tp", "tp") if k in model), "worldSize")
        yield fault(*view.model_path(index, key), moe_tp=moe_tp, moe_ep=moe_ep, total=total)


@rule(
    "HC-59", "error", "late",
    "cp: 限制与约束; sp: 限制与约束",
    wrong='"tp": 8, "sp": 4',
    right='"tp": 8, "sp": 8',
)  # fmt: skip
def sequence_and_context_fit(view: View) -> Iterator[Fault]:
    """Sp equals tp; cp needs dp 1, is 2, and wants sp."""
    for index, model in enumerate(view.models):
        ranks = rank_counts(view, model)
        sp, cp, dp = (parallel_size(model, key, 1) for key in ("sp", "cp", "dp"))
        if ranks is not None:
            total, per_node = ranks
            tp = parallel_size(model, "tp", total)
            if sp > 1 and sp != tp:
                yield fault(*view.model_path(index, "sp"), variant="sp", sp=sp, tp=tp)
            if tp > per_node and tp != total:
                yield fault(*view.model_path(index, "tp"), variant="node", tp=tp, per_node=per_node)
        if cp > 1 and dp != 1:
            yield fault(*view.model_path(index, "cp"), variant="dp", cp=cp, dp=dp)
        if cp > 2:
            yield fault(*view.model_path(index, "cp"), variant="two", severity="warning", outcome="advice", cp=cp)
        if cp > 1 and sp <= 1:
            yield fault(*view.model_path(index, "cp"), variant="alone", severity="warning", outcome="advice", cp=cp)


@rule(
    "HC-44", "warning", "wrong",
    "code: src/engine/construct_execute_request.cpp",
    wrong='"dp": 2 with "maxPreemptCount": 10',
    right='"dp": 2 with "maxPreemptCount": 0',
)  # fmt: skip
def swaps_have_one_memory(view: View) -> Iterator[Fault]:
    """Block ids are counted per group; under cp and sp blocks lie on several ranks; of a prompt some may be empty yet.

    MindIE-LLM starts and serves with it, so it is a warning; what kv_pool stores of such blocks outlives the service.
    """
    count = integer(view.schedule, "maxPreemptCount") or 0
    severity = "error" if KV_POOL in view.words else None
    if count > 0 and "splitfuse" in view.words:
        yield fault(*view.plugins_path(), variant="chunks", severity=severity, count=count)
    for index, model in enumerate(view.models) if count > 0 else ():
        dp, cp, sp = (parallel_size(model, key, 1) for key in ("dp", "cp", "sp"))
        if dp > 1 and view.schedule.get("distributedEnable") is not True:
            yield fault(*view.model_path(index, "dp"), severity=severity, dp=dp, count=count)
        if text(model, "backendType") == "torch":
            place = view.model_path(index, "backendType")
            yield fault(*place, variant="torch", severity=severity, outcome="run", count=count)
        if cp * sp > 1:
            key = "cp" if cp > 1 else "sp"
            place = view.model_path(index, key)
            yield fault(*place, variant="shares", severity=severity, outcome="run", key=key, count=count)
