"""What of a model and its deployment shapes the bytes of a block, and which ranks hold the same bytes.

Replication is decided from the weight directory's ``config.json`` alone: latent attention
(``kv_lora_rank``) gives every tensor-parallel rank the same cache, and with fewer KV heads than ranks,
groups of neighbouring ranks share one.  Where that file cannot be read every rank is taken to be
different, which costs memory and never correctness.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.core.spill import Replica
from mindie_kvpool_plugin.observability.log import logger

KEY_SCHEMA_VERSION = 1
"""Raised whenever the meaning of stored bytes changes; old entries are then never found."""


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


def read_model_config(weight_directory: str | None) -> dict[str, Any]:
    """The weight directory's config.json, or nothing."""
    try:
        content = json.loads(Path(weight_directory or "", "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def weights_digest(weight_directory: str | None) -> str:
    """A name for the weights: SHA-256 over config.json and the shard index files, which list every tensor."""
    directory = Path(weight_directory or "")
    state = hashlib.sha256()
    try:
        names = sorted(
            path
            for path in directory.iterdir()
            if path.name == "config.json" or path.name.endswith(("index.json", "_description.json"))
        )
        for path in names:
            state.update(path.name.encode() + b"\0" + path.read_bytes())
    except OSError:
        names = []
    if weight_directory and not names:
        logger.warning(
            "no config.json in the weight directory %s; blocks are told apart by model name and cache layout only",
            weight_directory,
        )
    return state.hexdigest()


def find_shard(model_config: dict[str, Any], tp_rank: int, tp_size: int, heads_per_rank: int, share: bool) -> Shard:
    """Which ranks hold the same bytes as this one.

    Args:
        model_config: the weight directory's config.json.
        tp_rank, tp_size: place in the attention's tensor-parallel group.
        heads_per_rank: KV heads in this rank's cache.
        share: false keeps every rank's blocks apart.
    """
    count = tp_size
    if share and heads_per_rank == 1:
        total_heads = model_config.get("num_key_value_heads")
        if model_config.get("kv_lora_rank"):
            count = 1
        elif isinstance(total_heads, int) and 0 < total_heads < tp_size and tp_size % total_heads == 0:
            count = total_heads
    replicas = tp_size // count
    index = tp_rank // replicas
    return Shard(index, count, Replica(tp_rank % replicas, replicas, writes_alias=index == 0))


def fingerprint_facts(
    model_name: str,
    weight_directory: str | None,
    block_size: int,
    segments: list[list[Any]],
    device_format: str,
    shard_count: int,
) -> dict[str, Any]:
    """Everything besides tokens that changes a block's bytes, as JSON values."""
    return {
        "schema": KEY_SCHEMA_VERSION,
        "model": model_name,
        "weights": weights_digest(weight_directory),
        "block_size": block_size,
        "segments": segments,
        "format": device_format,
        "shards": shard_count,
    }
