"""One rank's worker: what serves the host's calls once its deployment is read, its pool open and its ranks met.

Built once per worker, on the step thread, after warm-up.  What cannot work ends here with one clear
error: the host then does not start, which beats a service that silently does not pool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.blocks import FreedSequence
from mindie_kvpool_plugin.core.block_directory import Mask
from mindie_kvpool_plugin.core.block_keys import BlockKeys
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.host import leaving, modes
from mindie_kvpool_plugin.host.adapters import Adapters
from mindie_kvpool_plugin.host.agreement import Agreement, Alone
from mindie_kvpool_plugin.host.block_share import BlockShare
from mindie_kvpool_plugin.host.deployment import Deployment, read_deployment
from mindie_kvpool_plugin.host.device_memory import CacheLayout, DirectMemory, StagedMemory, record_event
from mindie_kvpool_plugin.host.in_flight import InFlight
from mindie_kvpool_plugin.host.meeting import meet
from mindie_kvpool_plugin.host.partners import worker_watch
from mindie_kvpool_plugin.host.sequence_table import SequenceTable
from mindie_kvpool_plugin.host.told_lengths import ToldLengths
from mindie_kvpool_plugin.host.why import Why
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.observability.observer import observe
from mindie_kvpool_plugin.observability.part import Part
from mindie_kvpool_plugin.observability.prefill_clock import PrefillClock
from mindie_kvpool_plugin.pools.base import PoolBackend


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
        self.agreement.close()
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
    deployment = read_deployment(generator_backend, kvcache_settings, infer_context, plugin_config)
    counters = Counters()
    pool = assemble.open_worker_pool(deployment.backend, deployment.pool_file, counters)
    try:
        worker = _around(pool, counters, deployment, infer_context, generator_backend.model_wrapper)
    except BaseException:
        pool.close()
        raise
    leaving.opened(worker)
    logger.info(
        "rank %d pools %d blocks of %d bytes in %d segments through %s as shard %s, %s",
        deployment.rank,
        deployment.layout.num_blocks,
        deployment.layout.sizes.sum(),
        len(deployment.layout.segments),
        deployment.backend,
        deployment.shard.name,
        "written by the spill thread" if deployment.async_write else "written before the step returns",
    )
    return worker


def _around(
    pool: PoolBackend, counters: Counters, deployment: Deployment, infer_context: Any, model_wrapper: Any
) -> PoolWorker:
    """One rank's worker around its opened pool."""
    options, block_size, replica = deployment.options, deployment.block_size, deployment.shard.replica
    memory = _memory(deployment)
    prefill_clock = PrefillClock(counters, pool.clock)
    load_gate = assemble.build_load_gate(
        options, block_size, prefill_clock, counters, pool.clock, is_chunked="splitfuse" in deployment.active
    )
    meeting = meet(deployment, load_gate)
    adapters = Adapters(model_wrapper)
    adapters.learn_loaded()
    settles_late = modes.settles_late(deployment.active)
    sequences = SequenceTable(infer_context, block_size, settles_late=settles_late, share=deployment.share)
    in_flight = InFlight()
    device_idle = partial(in_flight.wait, options.in_flight_timeout_s)
    keys = deployment.keys()
    notes = assemble.build_notes(options, keys, replica)
    walks = assemble.build_walks(
        pool,
        options,
        memory,
        memory.regions,
        keys,
        replica,
        running=partial(_look, sequences, adapters),
        device_idle=device_idle,
        agree=partial(meeting.agree, has_device_failed=in_flight.is_broken),
        can_agree=meeting.can_agree,
        async_write=deployment.async_write,
        counters=counters,
        why=notes,
        load_gate=load_gate,
        decode_s=prefill_clock.decode_s,
    )
    why = None
    if notes is not None:
        judge = assemble.build_judge(notes, keys, replica, pool, adapters.known)
        why = Why(notes, judge, options.why_requests, lambda: meeting.agreement.broken)
    return PoolWorker(
        walks=walks,
        sequences=sequences,
        adapters=adapters,
        share=deployment.share,
        in_flight=in_flight,
        device_idle=device_idle,
        agreement=meeting.agreement,
        told=meeting.told,
        layout=deployment.layout,
        block_size=block_size,
        dp_rank=deployment.dp_rank,
        is_async=deployment.is_async,
        why=why,
        prefill_clock=prefill_clock,
        times_decodes=not options.reload_budget_ms and (options.load == "auto" or not deployment.async_write),
        observed=_observed(deployment, counters, keys, why),
    )


def _memory(deployment: Deployment) -> DirectMemory | StagedMemory:
    """The device's blocks, as the pool reaches them."""
    layout, options = deployment.layout, deployment.options
    on_device = layout.device.type != "cpu"  # host memory is reached by everything
    is_reached = not on_device or assemble.reaches_device(deployment.backend, deployment.pool_file)
    if options.staging == "on" or (options.staging == "auto" and not is_reached):
        return StagedMemory(layout, deployment.device_id, options.staging_bytes)
    if options.verify_payload and on_device:
        raise ConfigError(
            f"{deployment.pool_file.path}: kv_pool.verify_payload is true, but blocks travel straight between device "
            'memory and pool, where the processor cannot read them; remove the option or set "staging": "on"'
        )
    return DirectMemory(layout, deployment.device_id)


def _observed(deployment: Deployment, counters: Counters, keys: BlockKeys, why: Why | None) -> Part:
    """On other nodes than rank 0's the scheduler may be another machine's, so that only rank 0 looks for it."""
    watch = worker_watch(counters).look if deployment.rank == 0 else None
    part = observe(deployment.identity(), counters, assemble.settings_of(deployment.options), watch)
    blocks = {
        "device_blocks": deployment.layout.num_blocks,
        "fingerprint": keys.service.fingerprint,
        "shard": deployment.shard.name,
    }
    part.tells["blocks"] = lambda _: blocks
    if why is not None:
        part.tells["why"] = why.told
    return part


def _look(sequences: SequenceTable, adapters: Adapters, sequence_id: int) -> tuple[FreedSequence, Mask] | None:
    found = sequences.look(sequence_id)
    if found is None or found[0].adapter is None or adapters.is_current(found[0].adapter):
        return found
    return None  # its adapter was loaded anew meanwhile: what it computed is a mixture
