"""Turns the host's objects into one rank's worker: memory, keys, agreement, walks.

Runs once per worker, on the step thread, after warm-up.  What cannot work ends here with one clear
error: the host then does not start, which beats a service that silently does not pool.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.core.block_keys import BlockKeys, fingerprint
from mindie_kvpool_plugin.errors import ConfigError, HostCompatError
from mindie_kvpool_plugin.host import model_facts
from mindie_kvpool_plugin.host.agreement import Agreement, Alone
from mindie_kvpool_plugin.host.device_memory import CacheLayout, DirectMemory, StagedMemory, record_event
from mindie_kvpool_plugin.host.eligibility import plugin_words
from mindie_kvpool_plugin.host.in_flight import InFlight
from mindie_kvpool_plugin.host.model_facts import Shard
from mindie_kvpool_plugin.host.sequence_table import SequenceTable
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.observability.metrics import Counters
from mindie_kvpool_plugin.options.pool_file import read_pool_file
from mindie_kvpool_plugin.options.records import KvPoolOptions

_open_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


@dataclass(eq=False)
class Worker:
    """One rank, ready to serve.

    Attributes:
        walks: reload and spill.
        sequences: the running sequences' blocks.
        in_flight: which batch is on the device.
        device_idle: waits, within a bound, until earlier batches have left the device.
        agreement: with the other ranks.
        layout: the cache.
        block_size: tokens per block.
        dp_rank: data-parallel rank.
        is_async: asynchronous scheduling.
    """

    walks: assemble.WorkerWalks
    sequences: SequenceTable
    in_flight: InFlight
    device_idle: Callable[[], bool]
    agreement: Agreement | Alone
    layout: CacheLayout
    block_size: int
    dp_rank: int
    is_async: bool

    def record_event(self) -> Any | None:
        """An event behind everything launched so far on this thread's stream."""
        return record_event(self.layout.device)

    def reset(self) -> None:
        """Forget all sequences and all contents."""
        for sequence_id in self.sequences.sequences():
            self.sequences.leave(sequence_id)
        self.walks.directory.forget()

    def close(self) -> None:
        """Let go of pool, thread and group."""
        _open_workers.discard(self)
        self.walks.close()


def build_worker(
    generator_backend: Any, kvcache_settings: Any, infer_context: Any, plugin_config: Mapping[str, Any]
) -> Worker:
    """Open the pool and put the walks together.

    Raises:
        ConfigError: the pool file cannot work.
        PoolError: the pool cannot be reached or refused the memory.
        HostCompatError: the deployment cannot be pooled, or the ranks did not meet.
    """
    mapping = generator_backend.model_wrapper.mapping
    _refuse_what_cannot_be_pooled(generator_backend, infer_context, plugin_words(plugin_config.get("plugin_type")))
    _refuse_separate_schedulers(generator_backend, str(plugin_config.get("model_role", "standard")))
    pool_file = read_pool_file(generator_backend.kv_pool_config_path)
    options = pool_file.options or KvPoolOptions()
    block_size = int(plugin_config.get("max_block_size", generator_backend.block_size))
    layout = CacheLayout(generator_backend.cache_pool.npu_cache)
    shard = _shard(generator_backend, kvcache_settings, options)
    counters = Counters()
    pool = assemble.open_worker_pool(generator_backend.kv_pool_backend, pool_file, counters)
    try:
        memory = _memory(layout, generator_backend, pool_file.backend_keys.get("protocol", "ascend"), options)
        if options.verify_payload and isinstance(memory, DirectMemory) and layout.device.type != "cpu":
            raise ConfigError(
                f"{pool_file.path}: kv_pool.verify_payload is true, but blocks travel straight between device memory "
                'and pool, where the processor cannot read them; remove the option or set "staging": "on"'
            )
        agreement = _agreement(mapping, bool(getattr(generator_backend, "distributed_enable", False)), options)
        sequences = SequenceTable(infer_context, block_size)
        in_flight = InFlight()

        def device_idle() -> bool:
            return in_flight.wait(options.in_flight_timeout_s)

        walks = assemble.build_worker(
            pool,
            options,
            memory,
            memory.regions,
            _keys(generator_backend, layout, shard, options, block_size),
            shard.replica,
            running=sequences.look,
            device_idle=device_idle,
            agree=agreement.minimum,
            async_write=bool(generator_backend.kv_pool_async_write),
            counters=counters,
        )
    except BaseException:
        pool.close()
        raise
    worker = Worker(
        walks=walks,
        sequences=sequences,
        in_flight=in_flight,
        device_idle=device_idle,
        agreement=agreement,
        layout=layout,
        block_size=block_size,
        dp_rank=int(mapping.attn_dp.rank),
        is_async=bool(infer_context.context_params.async_infer),
    )
    _open_workers.add(worker)
    logger.info(
        "rank %d pools %d blocks of %d bytes in %d segments through %s as shard %s, %s",
        generator_backend.rank,
        layout.num_blocks,
        memory.block_bytes,
        len(layout.segments),
        generator_backend.kv_pool_backend,
        shard.name,
        "written by the spill thread" if generator_backend.kv_pool_async_write else "written before the step returns",
    )
    return worker


def _refuse_what_cannot_be_pooled(backend: Any, infer_context: Any, words: list[str]) -> None:
    parallel = infer_context.spcp_parallel_info
    if parallel.scp_size > 1:
        raise HostCompatError(
            f"kv_pool does not support context or sequence parallelism (cp {parallel.cp_size}, sp {parallel.sp_size}); "
            "set cp and sp to 1 or remove kv_pool from plugin_type"
        )
    if "splitfuse" in words:
        raise HostCompatError("kv_pool does not work with splitfuse; remove one of them from plugin_type")
    if getattr(backend.model_wrapper, "is_multimodal", False):
        raise HostCompatError(
            "kv_pool does not support multimodal models: a block's tokens do not name its images; "
            "remove kv_pool from plugin_type"
        )


def _refuse_separate_schedulers(backend: Any, role: str) -> None:
    """A prefill node with a scheduler per data-parallel rank tells every rank the others' lengths.

    Those lengths have the pool hits subtracted, and a rank that lowers a hit has no way to tell ranks
    that run another batch; they would pad for tokens that are not there.
    """
    num_dp = int(backend.model_wrapper.mapping.attn_dp.group_size)
    if num_dp > 1 and getattr(backend, "distributed_enable", False) and role.lower() != "standard":
        raise HostCompatError(
            f"kv_pool does not support a {role} node with dp {num_dp} and a scheduler per data-parallel rank "
            "(distributed_enable): a lost block could not be recomputed alike on all ranks; set dp to 1, run without "
            "distributed_enable, or remove kv_pool from plugin_type"
        )


def _shard(backend: Any, kvcache_settings: Any, options: KvPoolOptions) -> Shard:
    group = backend.model_wrapper.mapping.attn_tp
    return model_facts.find_shard(
        model_facts.read_model_config(_weight_directory(backend)),
        tp_rank=int(group.rank),
        tp_size=int(group.group_size),
        heads_per_rank=int(kvcache_settings.num_heads),
        share=options.shards == "auto",
    )


def _keys(backend: Any, layout: CacheLayout, shard: Shard, options: KvPoolOptions, block_size: int) -> BlockKeys:
    facts = model_facts.fingerprint_facts(
        backend.model_name,
        _weight_directory(backend),
        block_size,
        layout.describe(),
        device_format=str(getattr(backend.cache_pool, "acl_format", 2)),
        shard_count=shard.count,
    )
    if options.verify_payload:
        facts["payload"] = "xxh3_128"  # blocks with a checksum are other objects
    return BlockKeys(options.namespace, backend.model_name, fingerprint(facts), shard.name, block_size)


def _memory(layout: CacheLayout, backend: Any, protocol: str, options: KvPoolOptions) -> DirectMemory | StagedMemory:
    device_id = int(backend.npu_device_id)
    # ascend reaches HBM itself and everything reaches host memory; tcp and rdma cannot reach HBM
    stage = options.staging == "on" or (
        options.staging == "auto" and layout.device.type != "cpu" and str(protocol).lower() != "ascend"
    )
    return StagedMemory(layout, device_id, options.staging_bytes) if stage else DirectMemory(layout, device_id)


def _agreement(mapping: Any, is_distributed: bool, options: KvPoolOptions) -> Agreement | Alone:
    rank, size, name = _who_runs_a_batch_together(mapping, is_distributed)
    if size == 1:
        return Alone()
    return Agreement(rank, size, options.agreement, name, options.agreement_timeout_s)


def _who_runs_a_batch_together(mapping: Any, is_distributed: bool) -> tuple[int, int, str]:
    """This rank's place among the ranks that get the same batch, and a name for them.

    One scheduler sends one batch to all data-parallel ranks, and each derives the others' lengths from
    it; with a scheduler per data-parallel rank only the tensor-parallel ranks share a batch.
    """
    tp, dp = mapping.attn_tp, mapping.attn_dp
    if is_distributed:
        return int(tp.rank), int(tp.group_size), f"dp {dp.rank}, {tp.group_size} ranks"
    size = int(tp.group_size) * int(dp.group_size)
    return int(dp.rank) * int(tp.group_size) + int(tp.rank), size, f"all {size} ranks"


def _weight_directory(backend: Any) -> str | None:
    return getattr(backend.model_wrapper, "model_id", None)


@atexit.register
def _close_all() -> None:
    """Tell the pool good-bye, so that nobody is sent to memory that is gone."""
    for worker in list(_open_workers):
        worker.close()
