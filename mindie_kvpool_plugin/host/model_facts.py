"""What of a model and its deployment shapes the bytes of a block, and which ranks hold the same bytes.

Replication is decided from the weight directory's ``config.json`` alone (``kv_shape.num_shards``).  Where that
file cannot be read every rank is taken to be different, which costs memory and never correctness.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.core.spill import Replica
from mindie_kvpool_plugin.kv_shape import num_shards

KEY_SCHEMA_VERSION = 2
"""Raised whenever the meaning of stored bytes changes; old entries are then never found."""

FORCED_BALANCE = 3
"""``eplb.level`` for measuring: "no accuracy guarantee in the forced load balance case" (moe_utils.py, EPLBType)."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a block this rank holds.

    Attributes:
        index: of the part.
        count: parts that differ.
        replica: this rank's share of the storing.
    """

    index: int
    count: int
    replica: Replica

    @property
    def name(self) -> str:
        """Last part of a data key."""
        return f"{self.index}of{self.count}"


def read_model_config(weight_directory: str) -> dict[str, Any]:
    """The weight directory's config.json, or nothing."""
    try:
        content = json.loads(Path(weight_directory, "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def find_shard(
    model_config: dict[str, Any],
    tp_rank: int,
    tp_size: int,
    heads_per_rank: int,
    share: bool,
    is_dealt_out: bool = False,
) -> Shard:
    """Which ranks hold the same bytes as this one.

    Args:
        model_config: the weight directory's config.json.
        tp_rank, tp_size: place in the attention's tensor-parallel group.
        heads_per_rank: KV heads in this rank's cache.
        share: false keeps every rank's blocks apart.
        is_dealt_out: sequence parallelism: of the ranks that would hold the same bytes each has other blocks.
    """
    if is_dealt_out:
        return Shard(0, 1, Replica())
    count = num_shards(model_config, tp_size) if share and heads_per_rank == 1 else tp_size
    replicas = tp_size // count
    index = tp_rank // replicas
    return Shard(index, count, Replica(tp_rank % replicas, replicas, writes_alias=index == 0))


def computing_options(model_wrapper: Any, model_config: Mapping[str, Any]) -> dict[str, Any]:
    """What the host was told that makes the same weights compute other numbers; nothing as a rule.

    * ``models.*.eplb.level`` 3 sends tokens to experts in turn, whatever the router says; other levels move experts
      only (moe_utils.py, EPLBType).
    * ``models.*.enable_init_routing_cutoff`` drops a share of what experts get (``topk_scaling_factor``).
    * ``max_position_embeddings`` of a ModelConfig takes the place of the weights' own, from which scaled positions are
      derived (position_rotary_embedding.py).

    All else there says where and by which operators is computed: a prefill and a decode node that differ in it share
    blocks.

    Args:
        model_wrapper: the host's; its model runner holds the configuration as it was merged.
        model_config: the weight directory's config.json.
    """
    found: dict[str, Any] = {}
    merged = getattr(getattr(getattr(model_wrapper, "model_runner", None), "llm_config", None), "models", None)
    models = {} if merged is None else merged.to_dict()
    for name, options in models.items():
        if isinstance(options, Mapping):
            found.update({f"{name}.{key}": value for key, value in _of_experts(options).items()})
    positions = getattr(model_wrapper, "max_position_embeddings", None)
    if positions is not None and positions != model_config.get("max_position_embeddings"):
        found["max_position_embeddings"] = str(positions)
    return found


def _of_experts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of one branch of ``models``, what changes which experts compute a token."""
    found: dict[str, Any] = {}
    eplb = options.get("eplb")
    if isinstance(eplb, Mapping) and eplb.get("level") == FORCED_BALANCE:
        found["eplb.level"] = FORCED_BALANCE
    if options.get("enable_init_routing_cutoff"):
        found["topk_scaling_factor"] = str(options.get("topk_scaling_factor"))
    return found


def fingerprint_facts(
    model_name: str,
    weights: str,
    backend_type: str,
    host_version: str,
    block_size: int,
    segments: list[list[Any]],
    device_format: str,
    shard_count: int,
    computing: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything besides tokens that changes a block's bytes, as JSON values.

    Args:
        model_name: as served.
        weights: their name (``host.weights``).
        backend_type: "atb" or "torch": other operators, other bytes.
        host_version: of MindIE-LLM, for the same reason.
        block_size: tokens per block.
        segments: shape and dtype of a block's segments.
        device_format: ACL format number of the cache.
        shard_count: parts a block is split into over the ranks.
        computing: as of ``computing_options``.
    """
    facts = {
        "schema": KEY_SCHEMA_VERSION,
        "model": model_name,
        "weights": weights,
        "backend": backend_type,
        "host": host_version,
        "block_size": block_size,
        "segments": segments,
        "format": device_format,
        "shards": shard_count,
    }
    # where it says nothing, blocks stay those of a host that was told nothing
    return {**facts, "computing": dict(computing)} if computing else facts
