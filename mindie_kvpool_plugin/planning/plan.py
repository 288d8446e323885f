"""All there is to tell about a pool, and the form of it that programs read."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin.planning.curve import Curve, Point
from mindie_kvpool_plugin.planning.instance import Instance
from mindie_kvpool_plugin.planning.pool_side import PoolRules
from mindie_kvpool_plugin.planning.sizes import Sizes
from mindie_kvpool_plugin.planning.worth import Worth


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything there is to tell; None where nobody asked or nothing is known.

    Attributes:
        instance: model and ranks.
        sizes: what fits.
        memory_source: name of the text that says where the memory's size is from; "": it was given.
        device_blocks: blocks of sequences that a data-parallel group's devices hold.
        device_source: name of the text that says where that number is from.
        curve: hit rates.
        planned: blocks of the pool that was asked about.
        worth: the verdict.
        remarks: names of texts about what is not known.
        rules: how the pools of the curve make room.
    """

    instance: Instance | None
    sizes: Sizes | None
    memory_source: str
    device_blocks: int | None
    device_source: str
    curve: Curve | None
    planned: int | None
    worth: Worth | None
    remarks: tuple[str, ...]
    rules: PoolRules


def as_json(plan: Plan) -> str:
    """All figures; sizes in bytes, shares of 1."""
    instance = plan.instance
    content: dict[str, Any] = {"remarks": list(plan.remarks), "rules": dataclasses.asdict(plan.rules)}
    if instance is not None:
        content["cache"] = {
            **dataclasses.asdict(instance.shape),
            **dataclasses.asdict(instance.layout),
            "block_size": instance.block_size,
            "shards": instance.shards,
            "rank_block_bytes": instance.rank_block_bytes,
            "pool_block_bytes": instance.pool_block_bytes,
            "rank_token_bytes": instance.rank_block_bytes / instance.block_size,
            "pool_token_bytes": instance.pool_block_bytes / instance.block_size,
        }
    content["device_blocks"] = plan.device_blocks
    if plan.sizes is not None:
        content["pool"] = {**dataclasses.asdict(plan.sizes), "memory_source": plan.memory_source}
    if plan.curve is not None:
        points, second = ([_point(each) for each in row] for row in (plan.curve.points, plan.curve.second_use))
        content["curve"] = {
            **dataclasses.asdict(plan.curve),
            "points": points,
            "second_use": second,
            "knee": plan.curve.knee.blocks,
        }
        content["planned_blocks"] = plan.planned
    if plan.worth is not None:
        content["worth"] = dataclasses.asdict(plan.worth)
    return json.dumps(content, indent=2)


def _point(point: Point) -> dict[str, Any]:
    return {**dataclasses.asdict(point), "hits": point.hits}
