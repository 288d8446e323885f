"""What is planned for: model, ranks, block size and device memory, from config.json or from options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check.follow import follow
from mindie_kvpool_plugin.check.messages import Refused
from mindie_kvpool_plugin.check.pipeline import read_object
from mindie_kvpool_plugin.check.pool_alone import is_pool_object
from mindie_kvpool_plugin.check.rules.layout import Layout, parallel_size, read_layout
from mindie_kvpool_plugin.check.rules.view import View, integer, text
from mindie_kvpool_plugin.check.situation import Disk, Situation, find_home
from mindie_kvpool_plugin.kv_shape import KvShape, num_shards
from mindie_kvpool_plugin.options.records import MooncakeOptions, defaults
from mindie_kvpool_plugin.options.sizes import UNITS, parse_size
from mindie_kvpool_plugin.planning.model_config import read_shape

HOST_BLOCK_TOKENS = 128
"""``cacheBlockSize`` of the shipped configuration."""


@dataclass(frozen=True, slots=True)
class Instance:
    """One instance, of which the pool may serve several.

    Attributes:
        model: the weights' config.json.
        shape: of its cache.
        layout: its ranks.
        block_size: tokens of a block.
        stores_once: ranks with identical bytes store them once (``shards`` auto).
        protocol: of the transport: "ascend", "tcp" or "rdma".
        device_memory: ``npuMemSize`` in bytes, which the host gives to the cache of each rank; None: it measures.
        instances: that share each server.
        pool_memory: (segment, buffer) of each rank as Mooncake's pool file has them; None: it does not say.
        backend: of the pool.
        in_stores: the ranks give none (``global_segment_size`` 0), so the memory lies in store processes.
    """

    model: Mapping[str, Any]
    shape: KvShape
    layout: Layout
    block_size: int = HOST_BLOCK_TOKENS
    stores_once: bool = True
    protocol: str = "ascend"
    device_memory: int | None = None
    instances: int = 1
    pool_memory: tuple[int, int] | None = None
    in_stores: bool = False
    backend: str = "mooncake"

    @property
    def ranks_of_server(self) -> int:
        """Dies of a server that give memory to the pool, of all instances."""
        return self.layout.ranks_per_node * self.instances

    @property
    def rank_block_bytes(self) -> int:
        """Of a block on one rank."""
        return self.shape.block_bytes(self.block_size, self.layout.tp)

    @property
    def shards(self) -> int:
        """Parts in which a block is stored: those of the ranks that hold one, each part once."""
        if self.layout.sp > 1:
            return 1  # blocks are dealt out: one rank of a group holds it
        return num_shards(self.model, self.layout.tp) if self.stores_once else self.layout.tp

    @property
    def pool_block_bytes(self) -> int:
        """Of a block in the pool."""
        return self.rank_block_bytes * self.shards

    @property
    def read_block_bytes(self) -> float:
        """That one rank reads for a block of a prompt, on average."""
        return self.rank_block_bytes / (self.layout.cp * self.layout.sp)

    def group_blocks(self, rank_blocks: int) -> int:
        """Blocks of sequences that a data-parallel group holds, with so many on each rank."""
        return rank_blocks * self.layout.cp * self.layout.sp


def from_config(
    path: Path,
    model_config: Path | None,
    pool_config: Path | None = None,
    shape_options: Mapping[str, Any] | None = None,
    layout_options: Mapping[str, int] | None = None,
) -> Instance:
    """The first model of a service's configuration.

    Args:
        path: config.json of the service.
        model_config: that of the weights; None: where the configuration says.
        pool_config: the pool file, likewise.
        shape_options: what else is known of the cache (``draft_layers``, ``is_nz``).
        layout_options: sizes of a layout that count instead of the configuration's.

    Raises:
        Refused: a file is unreadable, or does not say what is needed.
        OSError: ``path`` cannot be read.
    """
    view = _view(path, model_config, pool_config)
    if not view.models and is_pool_object(view.root):
        raise Refused("plan.is_pool_file", file=path)
    if not view.models:
        raise Refused("plan.no_models", file=path)
    model, place = _weights(view, path) if model_config is None else (read_object(model_config), str(model_config))
    layout = _layout(view, path, layout_options or {})
    entry, more = view.models[0], shape_options or {}
    shape = read_shape(
        model,
        place,
        draft_layers=_draft_layers(view) or more.get("draft_layers", 0),
        is_nz=view.is_option_on(0, "kv_cache_options", "enable_nz") or more.get("is_nz", False),
        is_torch=text(entry, "backendType") == "torch",
    )
    size = integer(view.schedule, "cacheBlockSize", HOST_BLOCK_TOKENS)
    if size is None or not 1 <= size <= HOST_BLOCK_TOKENS:
        raise Refused("plan.odd_block_size", file=path, most=HOST_BLOCK_TOKENS)
    memory = integer(entry, "npuMemSize") or 0
    known = memory * UNITS["gb"] if memory > 0 else None
    instances = max(1, integer(view.backend, "modelInstanceNumber", 1) or 1)
    segment, buffer = _pool_sizes(view)
    given = (segment, buffer) if segment else None
    return Instance(
        model=model,
        shape=shape,
        layout=layout,
        block_size=size,
        stores_once=_stores_once(view),
        protocol=_protocol(view),
        device_memory=known,
        instances=instances,
        pool_memory=given,
        in_stores=segment == 0,
        backend=text(view.kv_pool, "backend"),
    )


def _layout(view: View, path: Path, options: Mapping[str, int]) -> Layout:
    found = read_layout(view, 0) or _by_groups(view)
    if found is None:
        raise Refused("plan.no_layout", file=path)
    if options:
        return fitted(replace(found, **options))
    if min(found.tp, found.dp, found.cp) < 1 or not found.is_whole:
        params = {"tp": found.tp, "dp": found.dp, "cp": found.cp, "ranks": found.ranks}
        raise Refused("plan.other_ranks", file=path, **params)
    if found.sp not in {1, found.tp}:
        raise Refused("plan.odd_sp_of_file", file=path, sp=found.sp, tp=found.tp)
    return found


def _by_groups(view: View) -> Layout | None:
    """Where no rank table tells the nodes: as many as the named groups need."""
    model = view.models[0]
    world, tp = integer(model, "worldSize") or 0, parallel_size(model, "tp", 0)
    dp, cp, sp = (parallel_size(model, key, 1) for key in ("dp", "cp", "sp"))
    ranks = tp * dp * cp
    return Layout(tp, dp, cp, sp, ranks // world, world) if world > 0 and ranks > 0 and ranks % world == 0 else None


def fitted(layout: Layout) -> Layout:
    """The layout with as many nodes as its groups need; 0 ranks per node: all of them on one.

    Raises:
        Refused: the sizes do not go together.
    """
    ranks = layout.tp * layout.dp * layout.cp
    per_node = layout.ranks_per_node or ranks
    if ranks % per_node and per_node % ranks:
        raise Refused("plan.odd_ranks_per_node", ranks=ranks, each=per_node)
    if layout.sp not in {1, layout.tp}:
        raise Refused("plan.odd_sp", sp=layout.sp, tp=layout.tp)
    return replace(layout, nodes=max(1, ranks // per_node), ranks_per_node=min(per_node, ranks))


def from_options(model_config: Path, layout: Layout, block_size: int, shape_options: Mapping[str, Any]) -> Instance:
    """A model's config.json and what else a user says.

    Raises:
        Refused: the file does not say what is needed.
        OSError: it cannot be read.
    """
    model = read_object(model_config)
    return Instance(model, read_shape(model, str(model_config), **shape_options), layout, block_size)


def _view(path: Path, model_config: Path | None, pool_config: Path | None) -> View:
    root = read_object(path)
    env = os.environ
    situation = Situation(
        env=env, config_path=path, home=find_home(env, path), weight_config=model_config, pool_file=pool_config
    )
    return View(root, situation, follow(root, situation, Disk()))


def _weights(view: View, path: Path) -> tuple[dict[str, Any], str]:
    found = view.followed.weights.get(0)
    if found is None or not isinstance(found.value, dict):
        place = found.path if found is not None else f"{path}: modelWeightPath"
        raise Refused("plan.no_weights", place=place)
    return found.value, str(found.path)


def _draft_layers(view: View) -> int:
    """Tokens that mtp guesses; its layer is one however many they are."""
    guessed = (view.plugins[0].content or {}).get("num_speculative_tokens", 0)
    return guessed if isinstance(guessed, int) and "mtp" in view.plugins[0].words else 0


def _pool_value(view: View) -> dict[str, Any]:
    pool = view.followed.pool
    return pool.value if pool is not None and isinstance(pool.value, dict) else {}


def _pool_sizes(view: View) -> tuple[int | None, int]:
    """(segment, buffer) of each rank: Mooncake's keys, or their defaults; no segment where there is no such file."""
    named, usual = _pool_value(view), defaults(MooncakeOptions)
    segment, buffer = (parse_size(named.get(key, usual[key])) for key in ("global_segment_size", "local_buffer_size"))
    is_mooncake = bool(named) and text(view.kv_pool, "backend") == "mooncake"
    return segment if is_mooncake else None, buffer or 0


def _stores_once(view: View) -> bool:
    own = _pool_value(view).get("kv_pool")
    return not (isinstance(own, dict) and own.get("shards") == "per_rank")


def _protocol(view: View) -> str:
    named = _pool_value(view).get("protocol")
    return named if isinstance(named, str) else str(defaults(MooncakeOptions)["protocol"])
