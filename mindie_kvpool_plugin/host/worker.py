"""Turns the host's objects into one rank's worker: memory, keys, agreement, walks.

Runs once per worker, on the step thread, after warm-up.  What cannot work ends here with one clear
error: the host then does not start, which beats a service that silently does not pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.blocks import FreedSequence
from mindie_kvpool_plugin.core.block_directory import Mask
from mindie_kvpool_plugin.core.block_keys import BlockKeys, fingerprint
from mindie_kvpool_plugin.core.load_gate import NUM_FIGURES, LoadGate
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.host import compat, leaving, model_facts, modes, weights
from mindie_kvpool_plugin.host.adapters import Adapters
from mindie_kvpool_plugin.host.agreement import Agreement, Alone, Carrying, Lengths, is_daemons_child
from mindie_kvpool_plugin.host.block_share import BlockShare
from mindie_kvpool_plugin.host.device_memory import CacheLayout, DirectMemory, StagedMemory, record_event
from mindie_kvpool_plugin.host.in_flight import InFlight
from mindie_kvpool_plugin.host.model_facts import Shard
from mindie_kvpool_plugin.host.partners import worker_watch
from mindie_kvpool_plugin.host.sequence_table import SequenceTable
from mindie_kvpool_plugin.host.told_lengths import LATE_RANK_TIMEOUT_S, ToldLengths
from mindie_kvpool_plugin.host.why import Why
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.observability.observer import observe
from mindie_kvpool_plugin.observability.part import Part
from mindie_kvpool_plugin.observability.prefill_clock import PrefillClock
from mindie_kvpool_plugin.options.pool_file import PoolFile, no_meeting_place, read_pool_file
from mindie_kvpool_plugin.options.records import KvPoolOptions


@dataclass(eq=False)
class PoolWorker:
    """One rank, ready to serve.

    Attributes:
        walks: reload and spill.
        sequences: the running sequences' blocks.
        adapters: LoRA adapters by name.
        share: which of a sequence's blocks lie on this rank.
        in_flight: which batch is on the device.
        device_idle: waits, within a bound, until earlier batches have left the device.
        agreement: with the other ranks.
        told: what ranks that run other batches were told, where there are such; None elsewhere.
        layout: the cache.
        block_size: tokens per block.
        dp_rank: data-parallel rank.
        is_async: asynchronous scheduling.
        why: what ended the prefixes of the last prompts; None: nobody asks.
        prefill_clock: what computing a prompt token takes.
        times_decodes: whether it is asked what a decode step takes.
        observed: what others see of this rank.
        pull_began: when the pull under way did (``DeviceGate.mark``); the host has one thread for pulls.
    """

    walks: assemble.RankWalks
    sequences: SequenceTable
    adapters: Adapters
    share: BlockShare
    in_flight: InFlight
    device_idle: Callable[[], bool]
    agreement: Agreement | Alone
    told: ToldLengths | None
    layout: CacheLayout
    block_size: int
    dp_rank: int
    is_async: bool
    why: Why | None
    prefill_clock: PrefillClock
    times_decodes: bool = False
    observed: Part | None = None
    pull_began: int | None = None

    def look(self, sequence_id: int) -> tuple[FreedSequence, Mask] | None:
        """What a sequence would leave behind now, if that may be stored (``SequenceTable.look``)."""
        return _look(self.sequences, self.adapters, sequence_id)

    def record_event(self) -> Any | None:
        """An event behind everything launched so far on this thread's stream."""
        return record_event(self.layout.device)

    def close_device(self) -> None:
        """Nothing reads or writes the blocks when this returns, nor until ``open_device``.  Any thread."""
        logger.warning("the host repairs the device: spills stop and pool hits are recomputed until it goes on")
        self.walks.gate.close()
        self.walks.spill.stop_reading()

    def reset(self) -> None:
        """Forget all sequences, all contents, and the batches that will never end."""
        self.walks.spill.stop_reading()
        self.in_flight.reset()
        self.prefill_clock.lose_track()
        self.sequences.clear()
        self.walks.directory.forget()
        if self.why is not None:
            self.why.notes.left(None)

    def open_device(self) -> None:
        """Spills and reloads may go on."""
        if not self.walks.gate.is_open():
            logger.warning("the host goes on: the pool is used again")
        self.walks.gate.open()

    def close(self) -> None:
        """Let go of pool, thread and group."""
        leaving.closed(self)
        if self.why is not None:
            self.why.close()
        if self.observed is not None:
            self.observed.forget()
        self.walks.close()


def build_worker(
    generator_backend: Any, kvcache_settings: Any, infer_context: Any, plugin_config: Mapping[str, Any]
) -> PoolWorker:
    """Open the pool and put the walks together.

    Raises:
        ConfigError: the pool file cannot work.
        PoolError: the pool cannot be reached or refused the memory.
        DeviceError: the memory for staging cannot be had, or copies from and to the device do not work.
        HostCompatError: the deployment cannot be pooled, or the ranks did not meet.
    """
    mapping = generator_backend.model_wrapper.mapping
    active = modes.active_modes(generator_backend, infer_context, plugin_config)
    modes.refuse_unsupported(active)
    pool_file = replace(
        read_pool_file(generator_backend.kv_pool_config_path), device_id=int(generator_backend.npu_device_id)
    )
    options = pool_file.options or KvPoolOptions()
    block_size = int(plugin_config.get("max_block_size", generator_backend.block_size))
    layout = CacheLayout(generator_backend.cache_pool.npu_cache, int(kvcache_settings.num_npu_blocks))
    shard = _shard(generator_backend, kvcache_settings, infer_context, options)
    counters = Counters()
    pool = assemble.open_worker_pool(generator_backend.kv_pool_backend, pool_file, counters)
    try:
        direct = assemble.reaches_device(generator_backend.kv_pool_backend, pool_file)
        memory = _memory(layout, generator_backend, direct, options)
        if options.verify_payload and isinstance(memory, DirectMemory) and layout.device.type != "cpu":
            raise ConfigError(
                f"{pool_file.path}: kv_pool.verify_payload is true, but blocks travel straight between device memory "
                'and pool, where the processor cannot read them; remove the option or set "staging": "on"'
            )
        agreement = _agreement(mapping, active, pool_file)
        prefill_clock = PrefillClock(counters, pool.clock)
        load_gate = assemble.build_load_gate(
            options, block_size, prefill_clock, counters, pool.clock, is_chunked="splitfuse" in active
        )
        exchange = _carrying(agreement, load_gate)
        told = _told_lengths(exchange, mapping, active, block_size)
        share = _block_share(infer_context.spcp_parallel_info)
        adapters = Adapters(generator_backend.model_wrapper)
        sequences = SequenceTable(infer_context, block_size, settles_late=modes.settles_late(active), share=share)
        in_flight = InFlight()

        def device_idle() -> bool:
            return in_flight.wait(options.in_flight_timeout_s)

        def agree(lengths: Lengths) -> Lengths:
            return exchange.give_up(len(lengths)) if in_flight.is_broken() else exchange.minimum(lengths)

        keys = _keys(generator_backend, layout, shard, options, block_size)
        notes = assemble.build_notes(options, keys, shard.replica)
        walks = assemble.build_walks(
            pool,
            options,
            memory,
            memory.regions,
            keys,
            shard.replica,
            running=partial(_look, sequences, adapters),
            device_idle=device_idle,
            agree=told.minimum if told is not None else agree,
            async_write=bool(generator_backend.kv_pool_async_write),
            counters=counters,
            why=notes,
            load_gate=load_gate,
        )
        why = None
        if notes is not None:
            judge = assemble.build_judge(notes, keys, shard.replica, pool, adapters.known)
            why = Why(notes, judge, options.why_requests, lambda: agreement.broken)
    except BaseException:
        pool.close()
        raise
    observed = _observed(_identity(generator_backend, pool_file, block_size), counters, options)
    blocks = {"device_blocks": layout.num_blocks, "fingerprint": keys.service.fingerprint, "shard": shard.name}
    observed.tells["blocks"] = lambda _: blocks
    if why is not None:
        observed.tells["why"] = why.told
    worker = PoolWorker(
        walks=walks,
        sequences=sequences,
        adapters=adapters,
        share=share,
        in_flight=in_flight,
        device_idle=device_idle,
        agreement=agreement,
        told=told,
        layout=layout,
        block_size=block_size,
        dp_rank=int(mapping.attn_dp.rank),
        is_async=bool(infer_context.context_params.async_infer),
        why=why,
        prefill_clock=prefill_clock,
        times_decodes=options.load == "auto" and not options.reload_budget_ms,
        observed=observed,
    )
    leaving.opened(worker)
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


def _observed(identity: Identity, counters: Counters, options: KvPoolOptions) -> Part:
    """On other nodes than rank 0's the scheduler may be another machine's, so that only rank 0 looks for it."""
    watch = worker_watch(counters).look if identity.rank == 0 else None
    return observe(identity, counters, assemble.settings_of(options), watch)


def _identity(backend: Any, pool_file: PoolFile, block_size: int) -> Identity:
    return Identity(
        "worker",
        rank=int(backend.rank),
        dp_rank=int(backend.model_wrapper.mapping.attn_dp.rank),
        device=int(backend.npu_device_id),
        model=str(backend.model_name),
        backend=str(backend.kv_pool_backend),
        namespace=(pool_file.options or KvPoolOptions()).namespace,
        pool_file=str(pool_file.path),
        block_size=block_size,
    )


def _look(sequences: SequenceTable, adapters: Adapters, sequence_id: int) -> tuple[FreedSequence, Mask] | None:
    found = sequences.look(sequence_id)
    if found is None or found[0].adapter is None or adapters.is_current(found[0].adapter):
        return found
    return None  # its adapter was loaded anew meanwhile: what it computed is a mixture


def _block_share(parallel: Any) -> BlockShare:
    return BlockShare(int(parallel.scp_rank), int(parallel.scp_size))


def _shard(backend: Any, kvcache_settings: Any, infer_context: Any, options: KvPoolOptions) -> Shard:
    group = backend.model_wrapper.mapping.attn_tp
    return model_facts.find_shard(
        model_facts.read_model_config(weights.directory_of(backend.model_wrapper)),
        tp_rank=int(group.rank),
        tp_size=int(group.group_size),
        heads_per_rank=int(kvcache_settings.num_heads),
        share=options.shards == "auto",
        is_dealt_out=bool(infer_context.spcp_parallel_info.sp_size > 1),
    )


def _keys(backend: Any, layout: CacheLayout, shard: Shard, options: KvPoolOptions, block_size: int) -> BlockKeys:
    facts = model_facts.fingerprint_facts(
        backend.model_name,
        weights.name_of(weights.directory_of(backend.model_wrapper)),
        str(getattr(backend.backend_type, "value", backend.backend_type)),
        compat.host_version(),
        block_size,
        layout.describe(),
        device_format=str(getattr(backend.cache_pool, "acl_format", 2)),
        shard_count=shard.count,
    )
    if options.verify_payload:
        facts["payload"] = "xxh3_128"  # blocks with a checksum are other objects
    return BlockKeys(options.namespace, backend.model_name, fingerprint(facts), shard.name, block_size)


def _memory(layout: CacheLayout, backend: Any, direct: bool, options: KvPoolOptions) -> DirectMemory | StagedMemory:
    device_id = int(backend.npu_device_id)
    on_device = layout.device.type != "cpu"  # host memory is reached by everything
    stage = options.staging == "on" or (options.staging == "auto" and on_device and not direct)
    return StagedMemory(layout, device_id, options.staging_bytes) if stage else DirectMemory(layout, device_id)


def _agreement(mapping: Any, active: Collection[str], pool_file: PoolFile) -> Agreement | Alone:
    options = pool_file.options or KvPoolOptions()
    rank, size, name = _who_agrees(mapping, active)
    if size == 1:
        return Alone()
    if not _are_told(active):
        return Agreement(rank, size, options.agreement, name, options.agreement_timeout_s)
    if options.agreement == "auto" and is_daemons_child():
        raise ConfigError(f"{pool_file.path}: {no_meeting_place(options.agreement).told}")
    timeout_s = max(LATE_RANK_TIMEOUT_S, options.agreement_timeout_s)
    return Agreement(rank, size, options.agreement, name, timeout_s, if_broken="this step and the service end")


def _carrying(agreement: Agreement | Alone, load_gate: LoadGate | None) -> Carrying:
    """The agreement, by which load gates hear of each other; where one rank has none, the others' figures count."""
    if load_gate is None:
        return Carrying(agreement, NUM_FIGURES)
    return Carrying(agreement, NUM_FIGURES, load_gate.tells, load_gate.hears)


def _told_lengths(exchange: Carrying, mapping: Any, active: Collection[str], block_size: int) -> ToldLengths | None:
    if not _are_told(active) or _who_agrees(mapping, active)[1] == 1:
        return None
    return ToldLengths(exchange, int(mapping.attn_dp.rank), int(mapping.attn_dp.group_size), block_size)


def _are_told(active: Collection[str]) -> bool:
    """Whether ranks that run batches of their own are told what the others compute."""
    return {"dp_servers", "pd_prefill"} <= set(active)


def _who_agrees(mapping: Any, active: Collection[str]) -> tuple[int, int, str]:
    """This rank's place among the ranks that need each other's lengths, and a name for them.

    One scheduler sends one batch to all data-parallel ranks, and each derives the others' lengths from it; on a
    prefill node with a scheduler per data-parallel rank they are told.  Elsewhere with such schedulers only the
    tensor-parallel ranks share a batch.  Decode nodes have no pool hits.
    """
    tp, dp = mapping.attn_tp, mapping.attn_dp
    if "pd_decode" in active:
        return 0, 1, "alone"
    if "dp_servers" in active and not _are_told(active):
        return int(tp.rank), int(tp.group_size), f"dp {dp.rank}, {tp.group_size} ranks"
    cp = mapping.attn_cp
    per_dp = int(tp.group_size) * int(cp.group_size)
    rank = int(dp.rank) * per_dp + int(cp.rank) * int(tp.group_size) + int(tp.rank)
    size = per_dp * int(dp.group_size)
    return rank, size, f"all {size} ranks"
