"""NPU memory: the share for weights and KV, and what the links of a pool take from it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.check.rules.family import family
from mindie_kvpool_plugin.check.rules.pool_file import at_key
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, K, View, integer, text, worker_integer
from mindie_kvpool_plugin.kv_shape import num_shards
from mindie_kvpool_plugin.options.records import MooncakeOptions, defaults

MAX_LINKS = 512
LINK_MB = 4
# what a hundredth of the memory share frees
STEP_MB = 600
STEP = 0.01
GROWTH_RESERVE = 0.04
# the share the deployment scripts for A2 and A3 set; the host's own default is 0.8
BASE_FRACTION = 0.92


def link_reserve(dies: int) -> float:
    """Share of NPU memory to leave for the links of a pool of ``dies`` dies."""
    return STEP * math.ceil((dies - 1) * LINK_MB / STEP_MB)


def fraction(view: View) -> float | None:
    """NPU_MEMORY_FRACTION; None when unset or not a number."""
    try:
        return float(view.situation.variable("NPU_MEMORY_FRACTION"))
    except ValueError:
        return None


def _has_links(view: View) -> bool:
    """Whether the pool copies between devices over HCCL links."""
    if not view.is_pool or text(view.kv_pool, "backend") not in {"mooncake", "memcache"}:
        return False
    pool = view.followed.pool
    value = pool.value if pool is not None and isinstance(pool.value, dict) else {}
    protocol = value.get("protocol", defaults(MooncakeOptions)["protocol"])
    return not isinstance(protocol, str) or protocol.strip().lower() == "ascend"


@rule(
    "HC-45", "error", "run",
    "pool: 限制与约束",
    wrong="--dies 576",
    right="at most 512 dies in one pool",
)  # fmt: skip
def pool_has_few_enough_dies(view: View) -> Iterator[Fault]:
    """Above 512 links are torn down and built again."""
    dies = view.situation.dies
    if dies is not None and dies > MAX_LINKS and _has_links(view):
        yield fault(B, K, "backend", dies=dies, limit=MAX_LINKS)


@rule(
    "HC-46", "warning", "run",
    "pool: 限制与约束",
    wrong="--dies 128 with NPU_MEMORY_FRACTION=0.92",
    right="NPU_MEMORY_FRACTION=0.91",
)  # fmt: skip
def links_have_memory(view: View) -> Iterator[Fault]:
    """Each link takes 4 MB of every die."""
    dies, share = view.situation.dies, fraction(view)
    if dies is None or not 1 < dies <= MAX_LINKS or not _has_links(view) or view.situation.scale_out:
        return
    best = BASE_FRACTION - link_reserve(dies)
    params: dict[str, Any] = {"dies": dies, "links_mb": (dies - 1) * LINK_MB, "best": f"{best:.2f}"}
    if share is not None and share > best + 1e-9:
        yield fault(B, K, "backend", share=share, **params)
    else:
        yield fault(B, K, "backend", variant="numbers", severity="info", outcome="advice", **params)


@rule(
    "HC-47", "warning", "run",
    "pool: 限制与约束",
    wrong="--scale-out with NPU_MEMORY_FRACTION=0.92",
    right="NPU_MEMORY_FRACTION=0.88",
)  # fmt: skip
def growing_pools_keep_a_reserve(view: View) -> Iterator[Fault]:
    """A pool that may grow to 512 dies needs the full 0.04 from the start."""
    share = fraction(view)
    best = BASE_FRACTION - GROWTH_RESERVE
    if view.situation.scale_out and _has_links(view) and share is not None and share > best + 1e-9:
        yield fault(B, K, "backend", share=share, best=f"{best:.2f}")


@rule(
    "HC-48", "warning", "silent",
    "env: 其他可选环境变量; service: ModelConfig参数说明",
    wrong='"npuMemSize": 20 with NPU_MEMORY_FRACTION=0.88',
    right='"npuMemSize": -1',
)  # fmt: skip
def fraction_is_used(view: View) -> Iterator[Fault]:
    """A fixed npuMemSize makes the host ignore the variable."""
    for index, model in enumerate(view.models):
        if (integer(model, "npuMemSize") or 0) > 0 and view.situation.variable("NPU_MEMORY_FRACTION"):
            yield fault(
                *view.model_path(index, "npuMemSize"), share=view.situation.variable("NPU_MEMORY_FRACTION")[:20]
            )


@rule(
    "HC-49", "error", "late",
    "env: 其他可选环境变量; code: mindie_llm/model_wrapper/utils/env.py",
    wrong="NPU_MEMORY_FRACTION=92%",
    right="NPU_MEMORY_FRACTION=0.92",
)  # fmt: skip
def fraction_is_a_number(view: View) -> Iterator[Fault]:
    """The worker's import fails on anything but a number above 0 and at most 1."""
    value = view.situation.variable("NPU_MEMORY_FRACTION")
    share = fraction(view)
    if value and (share is None or not 0 < share <= 1):
        yield fault(B, value=value[:40])


@rule(
    "HC-40", "warning", "run",
    "prefix: 限制与约束",
    wrong="TASK_QUEUE_ENABLE=0 with DeepSeek and prefix_cache",
    right="TASK_QUEUE_ENABLE=1",
)  # fmt: skip
def task_queue_is_on(view: View) -> Iterator[Fault]:
    """Older documents demand it for DeepSeek; the shipped scripts export it."""
    off = (
        view.situation.variable("TASK_QUEUE_ENABLE") == "0" or view.situation.variable("ASCEND_LAUNCH_BLOCKING") == "1"
    )
    if off and view.is_prefix:
        yield fault(*view.plugins_path())


def identical_ranks(view: View) -> int:
    """How many ranks hold the same KV bytes: all of them with MLA, groups with few KV heads; 1 when unknown."""
    config = family(view, 0).config
    model = view.models[0]
    named = worker_integer(model, "tp") or -1
    tp = max(named if named > 0 else integer(model, "worldSize") or 1, 1)
    return tp // num_shards(config, tp)


@rule(
    "KP-05", "warning", "advice",
    "readme: Options of the `kv_pool` section",
    wrong='"kv_pool": {"shards": "per_rank"} with DeepSeek and tp 8',
    right='"kv_pool": {"shards": "auto"}',
)  # fmt: skip
def identical_blocks_are_stored_once(view: View) -> Iterator[Fault]:
    """The weights' config.json tells how many ranks hold the same bytes."""
    pool = view.followed.pool
    value = pool.value if pool is not None and isinstance(pool.value, dict) else {}
    section = value.get(KV_POOL)
    if pool is None or not view.models or not isinstance(section, dict) or section.get("shards") != "per_rank":
        return
    copies = identical_ranks(view)
    if copies > 1 and KV_POOL in view.words:
        yield fault(B, K, "configPath", place=at_key(pool, KV_POOL, "shards"), copies=copies)
