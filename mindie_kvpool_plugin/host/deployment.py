"""One rank's deployment: what the host's objects and the pool file say, read once, before anything is opened."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mindie_kvpool_plugin.core.block_keys import BlockKeys, fingerprint
from mindie_kvpool_plugin.host import compat, model_facts, modes, weights
from mindie_kvpool_plugin.host.block_share import BlockShare
from mindie_kvpool_plugin.host.device_memory import CacheLayout
from mindie_kvpool_plugin.host.model_facts import Shard
from mindie_kvpool_plugin.host.weights import Seen
from mindie_kvpool_plugin.observability.identity import Identity
from mindie_kvpool_plugin.options.pool_file import PoolFile, read_pool_file
from mindie_kvpool_plugin.options.records import KvPoolOptions


@dataclass(frozen=True, slots=True)
class Deployment:
    """A rank, its place among the others, and the model whose blocks it pools.

    Attributes:
        rank: of all ranks of the server.
        mapping: the host's groups of ranks.
        active: the modes it runs in, by the keys of ``support.MODES``.
        device_id: its device.
        backend: the pool's name in ``pools.registry``.
        pool_file: for this device.
        async_write: blocks are written by the spill thread, not before a step returns.
        model_name: as the host calls it.
        weights: the folder it was read from.
        weights_seen: its files before they were read, if somebody looked.
        backend_type: of the host: what computes it.
        device_format: how the cache lies on the device (``acl_format``).
        block_size: tokens per block.
        layout: the cache.
        shard: which part of a block this rank holds.
        share: which of a sequence's blocks lie on this rank.
        computing: options that make the same weights compute other numbers.
    """

    rank: int
    mapping: Any
    active: Collection[str]
    device_id: int
    backend: str
    pool_file: PoolFile
    async_write: bool
    model_name: str
    weights: str
    weights_seen: Seen | None
    backend_type: str
    device_format: str
    block_size: int
    layout: CacheLayout
    shard: Shard
    share: BlockShare
    computing: Mapping[str, Any]

    @property
    def options(self) -> KvPoolOptions:
        """Of the pool file's section, or all defaults."""
        return self.pool_file.chosen

    @property
    def dp_rank(self) -> int:
        """Its data-parallel rank."""
        return int(self.mapping.attn_dp.rank)

    @property
    def is_async(self) -> bool:
        """Asynchronous scheduling."""
        return "async_scheduling" in self.active

    def keys(self) -> BlockKeys:
        """Its blocks' keys; reads samples of all weights, which takes seconds.

        Raises:
            HostCompatError: the weights cannot be read, or are not those that were loaded.
        """
        name = weights.name_of(self.weights)
        weights.refuse_changed(self.weights, self.weights_seen)
        facts = model_facts.fingerprint_facts(
            self.model_name,
            name,
            self.backend_type,
            compat.host_version(),
            self.block_size,
            self.layout.describe(),
            device_format=self.device_format,
            shard_count=self.shard.count,
            computing=self.computing,
        )
        if self.options.verify_payload:
            facts["payload"] = "xxh3_128"  # blocks with a checksum are other objects
        return BlockKeys(self.options.namespace, self.model_name, fingerprint(facts), self.shard.name, self.block_size)

    def identity(self) -> Identity:
        """Who it is, for those who look at its counts."""
        return Identity(
            "worker",
            rank=self.rank,
            dp_rank=self.dp_rank,
            device=self.device_id,
            model=self.model_name,
            backend=self.backend,
            namespace=self.options.namespace,
            pool_file=str(self.pool_file.path),
            block_size=self.block_size,
        )


def read_deployment(
    generator_backend: Any, kvcache_settings: Any, infer_context: Any, plugin_config: Mapping[str, Any]
) -> Deployment:
    """What the host hands a plugin at its construction.

    Raises:
        ConfigError: the pool file cannot work.
        HostCompatError: the deployment cannot be pooled.
    """
    active = modes.active_modes(generator_backend, infer_context, plugin_config)
    modes.refuse_unsupported(active)
    pool_file = read_pool_file(generator_backend.kv_pool_config_path)
    wrapper, parallel = generator_backend.model_wrapper, infer_context.spcp_parallel_info
    device_id = int(generator_backend.npu_device_id)
    directory = weights.directory_of(wrapper)
    model_config = model_facts.read_model_config(directory)
    return Deployment(
        rank=int(generator_backend.rank),
        mapping=wrapper.mapping,
        active=active,
        device_id=device_id,
        backend=str(generator_backend.kv_pool_backend),
        pool_file=replace(pool_file, device_id=device_id),
        async_write=bool(generator_backend.kv_pool_async_write),
        model_name=str(generator_backend.model_name),
        weights=directory,
        weights_seen=weights.seen_before(wrapper),
        backend_type=str(getattr(generator_backend.backend_type, "value", generator_backend.backend_type)),
        device_format=str(getattr(generator_backend.cache_pool, "acl_format", 2)),
        block_size=int(plugin_config.get("max_block_size", generator_backend.block_size)),
        layout=CacheLayout(generator_backend.cache_pool.npu_cache, int(kvcache_settings.num_npu_blocks)),
        shard=model_facts.find_shard(
            model_config,
            tp_rank=int(wrapper.mapping.attn_tp.rank),
            tp_size=int(wrapper.mapping.attn_tp.group_size),
            heads_per_rank=int(kvcache_settings.num_heads),
            share=pool_file.chosen.shards == "auto",
            is_dealt_out=int(parallel.sp_size) > 1,
        ),
        share=BlockShare(int(parallel.scp_rank), int(parallel.scp_size)),
        computing=model_facts.computing_options(wrapper, model_config),
    )
