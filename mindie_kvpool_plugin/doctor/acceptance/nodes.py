"""The probe between nodes: the same command runs on each, with its number; they exchange blocks through the pool."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.check.rules.nodes import node_count
from mindie_kvpool_plugin.doctor.acceptance import nodes_child
from mindie_kvpool_plugin.doctor.acceptance.trial import Trial, remove
from mindie_kvpool_plugin.doctor.child import Told, run_child
from mindie_kvpool_plugin.doctor.lines import Line, absent, good, trouble
from mindie_kvpool_plugin.doctor.master import answer_timeout_s
from mindie_kvpool_plugin.doctor.npu import needs_npu
from mindie_kvpool_plugin.doctor.rank_share import find_share
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.records import MIB
from mindie_kvpool_plugin.pools.mooncake.codes import meaning
from mindie_kvpool_plugin.pools.mooncake.limits import MIN_SEGMENT_BYTES

CHILD = nodes_child.__name__
NODES_TIMEOUT_S = 300.0  # the others have to be started, too
ENDING_S = 20.0  # for what the child does after it gave up waiting


def nodes(case: Trial) -> Iterator[Line]:
    """Only where it was asked for; several nodes in the configuration are told how."""
    if not case.node:
        count = node_count(case.view) or 1
        yield Line("nodes.not_asked", "skipped", {"nodes": count}) if count > 1 else absent("nodes.one")
        return
    keys = set(nodes_child.names(case.run_keys, case.node, case.nodes).values())
    case.keys |= keys
    wait_s = max(5.0, case.left_s(NODES_TIMEOUT_S) - 2 * ENDING_S)
    share = find_share(case)
    size = min(share.block_bytes, 16 * MIB) if share is not None else MIB
    told = run_child(CHILD, _question(case, size, wait_s), wait_s + ENDING_S, case.env)
    removed = told.step("removed")
    if removed is not None and not removed["left"]:
        case.keys -= keys
    yield from _judged(case, told, size, wait_s)
    if case.keys & keys:
        yield from remove(case, keys)


def _question(case: Trial, size: int, wait_s: float) -> dict[str, Any]:
    options = case.mooncake
    if options is None:
        raise PoolError("the pool file was not read")
    own = MIN_SEGMENT_BYTES * math.ceil(4 * size / MIN_SEGMENT_BYTES)
    changed = dataclasses.replace(
        options, global_segment_size=own, local_buffer_size=0, rpc_timeout_s=answer_timeout_s(case)
    )
    device = {"device": case.devices[0] if case.devices else 0} if needs_npu(case) else {}
    return {
        "options": dataclasses.asdict(changed),
        "place": str(case.pool_path),
        "prefix": case.run_keys,
        "node": case.node,
        "nodes": case.nodes,
        "size": size,
        "wait_s": wait_s,
        **device,
    }


def _judged(case: Trial, told: Told, size: int, wait_s: float) -> Iterator[Line]:
    refused, put = told.step("refused"), told.step("put")
    if refused is not None:
        yield trouble("nodes.refused", error=refused["error"])
        return
    if put is None or put["code"] != 0:
        yield trouble("nodes.put_failed", code=meaning(put["code"]) if put else told.ending or "-")
        return
    got = {step["node"]: step for step in told.steps if step["step"] == "got"}
    proved = {step["node"] for step in told.steps if step["step"] == "proved"}
    for other in (each for each in range(1, case.nodes + 1) if each != case.node):
        found = got.get(other)
        if found is None:
            yield trouble("nodes.nobody", other=other, node=case.node, nodes=case.nodes, seconds=f"{wait_s:.0f}")
        elif not found["is_same"]:
            yield trouble("nodes.damaged", other=other, bytes=size)
        elif other not in proved:
            yield trouble("nodes.one_way", other=other, node=case.node, seconds=f"{wait_s:.0f}")
        else:
            speed = size / max(found["seconds"], 1e-9)
            yield good("nodes.exchanged", other=other, bytes=size, mbs=f"{speed / 1e6:,.0f}")
