"""KvPoolPlugin: the host's plugin calls, in the order the host makes them.

Worker process.  ``model_inputs_update``, ``plugin_cache_update``, ``plugin_cache_clear``, the free events and
writes between batches run on the step thread; under asynchronous scheduling ``sample_preprocess`` and
``plugin_verify`` run on the forward thread, ``blocks_pulled`` on a transfer thread, ``device_closing`` on the
host's command thread.  What belongs to the step thread is used under ``_lock`` because of the transfer thread,
which never waits for the device while it holds it: the batch in flight may need the step thread to go on.

Each method translates and delegates; none decides.  Nothing unexpected gets out of an entry (``_enter``): it costs a
recompute.  Those of the forward thread only count.  The host builds this class twice, the first time for warm-up
without a pool: that one does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Adapter, BlockIds, PoolHit, Prompt
from mindie_kvpool_plugin.host import block_share, block_writes, step_view
from mindie_kvpool_plugin.host.eligibility import plugin_words, why_off
from mindie_kvpool_plugin.host.free_events import subscribe, unsubscribe
from mindie_kvpool_plugin.host.step_view import NewPrompt
from mindie_kvpool_plugin.host.worker import PoolWorker, build_worker
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.log import RateLimited, logger

_ELSEWHERE = (np.zeros(0, dtype=np.int64),) * 3  # tokens and blocks of another rank's prompt


class KvPoolPlugin:
    """Named by the host's rule: plugin ``kv_pool`` -> class ``KvPoolPlugin``.

    Args:
        generator_backend, kvcache_settings, infer_context, plugin_data_param: the host's objects.
        kwargs: the parsed ``plugin_params`` and the host's additions.

    Raises:
        ConfigError, PoolError, DeviceError, HostCompatError: the pool is on and cannot work; the worker does not start.
    """

    def __init__(
        self, generator_backend: Any, kvcache_settings: Any, infer_context: Any, plugin_data_param: Any, **kwargs: Any
    ) -> None:
        del plugin_data_param
        self.infer_context = infer_context
        self.counters = Counters()
        self._worker: PoolWorker | None = None
        self._log = RateLimited()
        self._lock = threading.RLock()
        # the warm-up instance sees the backend's name blanked and a throw-away cache of one block
        is_warm_up = kvcache_settings.num_npu_blocks == 1
        reason = why_off(
            plugin_words(kwargs.get("plugin_type")),
            generator_backend.kv_pool_backend,
            generator_backend.kv_pool_config_path,
            str(kwargs.get("model_role", "standard")),
        )
        if reason is not None:
            level = logger.debug if is_warm_up else logger.warning
            level("the pool is off: %s", reason)
            return
        if is_warm_up:
            return
        self._worker = build_worker(generator_backend, kvcache_settings, infer_context, kwargs)
        self.counters = self._worker.walks.counters
        subscribe(self)

    def managed_by(self, plugin_manager: Any) -> None:
        """The host has built its plugins; its plugin manager hears first of a batch that failed."""
        if self._worker is not None:
            self._worker.in_flight.follow(plugin_manager)

    # -- the host's plugin interface, in call order ----------------------------------------------------

    def model_inputs_update(
        self,
        model_inputs: Any,
        input_metadata: Any,
        sampling_metadata: Any,
        cache_ids: Any,
        input_len_mask: Any,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        """Before a batch runs: guard what it overwrites, load its pool hits, note its block tables.

        Raises:
            HostCompatError: ranks that run other batches could not be told what this one computes.
        """
        del sampling_metadata
        worker = self._worker
        if worker is not None:
            if worker.told is not None:
                worker.told.begin(input_metadata)
            if not step_view.writes_nothing(input_metadata):
                self._begin_batch(worker, model_inputs, input_metadata, cache_ids)
                if "hit_mask" in kwargs:  # only given under asynchronous scheduling
                    worker.in_flight.launch(input_metadata)
            if worker.told is not None:
                worker.told.finish(input_metadata, model_inputs)
        return model_inputs, input_len_mask

    def sample_preprocess(self, logits: Any, result: Any, sampling_metadata: Any, input_metadata: Any) -> Any:
        """The batch was launched; note which one it is."""
        del result, sampling_metadata
        if self._worker is not None:
            self._worker.prefill_clock.meet(input_metadata)
            self._worker.in_flight.meet(input_metadata)
        return logits

    def plugin_verify(self, sampling_output: Any, cache_ids: Any, result: Any) -> None:
        """The batch's tokens are on the host, so everything it wrote is in the cache."""
        del sampling_output, cache_ids, result
        if self._worker is not None:
            self._worker.prefill_clock.land()
            self._worker.in_flight.land(None)

    def plugin_verify_exp(self, sampling_output: Any, cache_ids: Any, result: Any) -> None:
        """The batch's tokens are still on the device; an event tells when it is done."""
        del sampling_output, cache_ids, result
        if self._worker is not None:
            self._worker.prefill_clock.lose_track()
            self._worker.in_flight.land(self._worker.record_event())

    def plugin_cache_update(
        self, cache_ids: Any, sampling_output: Any, la_cache_input: Any, is_prefill: bool = False
    ) -> None:
        """Nothing: sequences are read when they are freed."""

    def plugin_cache_clear(self, cache_ids: Any, finish_reason: Any) -> None:
        """Nothing: the free event comes earlier, while tokens and lengths can still be read."""

    # -- free events, before the host forgets the sequences (host.free_events) --------------------------

    def sequences_finished(self, sequence_ids: Iterable[int]) -> None:
        """The last token of these sequences was sampled, so the device is done with their full blocks."""
        self._sequences_freed(sequence_ids, is_computed=lambda: True)

    def sequences_dropped(self, sequence_ids: Iterable[int]) -> None:
        """These sequences were aborted or preempted, perhaps while a batch still computes their blocks."""
        worker = self._worker
        if worker is not None:
            self._sequences_freed(sequence_ids, is_computed=worker.device_idle)

    def _sequences_freed(self, sequence_ids: Iterable[int], is_computed: Callable[[], bool]) -> None:
        def spill(worker: PoolWorker) -> None:
            with self._lock:
                for sequence_id in np.asarray(sequence_ids).tolist():
                    found = worker.look(sequence_id)
                    worker.sequences.leave(sequence_id)
                    if worker.why is not None:
                        worker.why.notes.left(sequence_id)
                    if found is not None and is_computed():
                        worker.walks.spill.freed(*found)

        self._enter("spilling what a sequence left", spill)

    # -- the host writes blocks outside a batch (host.block_writes) ---------------------------------------

    def blocks_overwritten(self, find_blocks: Callable[[], BlockIds]) -> None:
        """Between two batches, on the step thread: the host is about to copy or swap something into these blocks."""

        def give_up(worker: PoolWorker) -> None:
            self._give_blocks_up(worker, find_blocks(), is_computed=worker.device_idle)

        self._enter("hearing of blocks the host writes", give_up)

    def blocks_pulled(self, find_blocks: Callable[[], BlockIds]) -> None:
        """At any time, on a transfer thread: another node's blocks are about to be copied into these."""

        def give_up(worker: PoolWorker) -> None:
            worker.pull_began = worker.walks.gate.mark()
            # asked before the lock is taken, see above
            is_idle = worker.device_idle()
            self._give_blocks_up(worker, find_blocks(), is_computed=lambda: is_idle)

        self._enter("hearing of blocks that are pulled", give_up)

    def blocks_arrived(self, metadata: Any, sources: Any) -> None:
        """On that thread: they are there, so their content is what these sequences' tokens say.

        Unless the device was repaired meanwhile: then nobody knows which of them were lost.
        """

        def note(worker: PoolWorker) -> None:
            with self._lock:
                if not worker.walks.gate.stayed_open(worker.pull_began):
                    self._log.warning("the device was closed while blocks were pulled; they are not pooled")
                    return
                for row, name in step_view.pulled_rows(metadata, worker.dp_rank):
                    adapter = worker.adapters.find(name) if name is not None else None
                    if name is None or adapter is not None:
                        self._expect(worker, metadata, row, adapter, sources)

        self._enter("hearing of blocks that were pulled", note)

    def _expect(self, worker: PoolWorker, metadata: Any, row: int, adapter: Adapter | None, sources: Any) -> None:
        sequence_id, table = int(metadata.all_sequence_ids[row]), metadata.batch_block_tables[row]
        block_ids = table[table >= 0].astype(np.int64)
        places = block_share.places(block_writes.counts_by_source(block_ids, sources))
        if places is None or not len(places):
            self._log.warning("the order in which a sequence's blocks were pulled is not known; it is not pooled")
            return
        worker.sequences.expect(sequence_id, adapter, places)
        worker.walks.directory.rewrite(sequence_id, block_ids)

    def _give_blocks_up(self, worker: PoolWorker, block_ids: BlockIds, is_computed: Callable[[], bool]) -> None:
        with self._lock:
            worker.walks.spill.hand_over(block_ids, is_computed=is_computed)
        worker.walks.spill.wait(block_ids)

    def device_closing(self) -> None:
        """On the host's command thread: the device will be repaired; afterwards nothing of ours touches it."""
        self._enter("closing the device", lambda worker: worker.close_device())

    def contexts_reset(self) -> None:
        """The host forgot all sequences (recovery): what the blocks contain is not known any more."""

        def reset(worker: PoolWorker) -> None:
            with self._lock:
                worker.reset()

        self._enter("forgetting all sequences", reset)

    def device_opened(self) -> None:
        """The device serves again."""
        self._enter("opening the device", lambda worker: worker.open_device())

    # -- LoRA adapters come and go, on the host's command thread --------------------------------------------

    def adapter_changing(self, name: str) -> None:
        """The host is about to load or unload an adapter of this name, or has unloaded it."""
        self._enter("forgetting an adapter", lambda worker: worker.adapters.forget(name))

    def adapter_loaded(self, name: str) -> None:
        """The host has loaded it."""
        self._enter("learning an adapter", lambda worker: worker.adapters.learn(name))

    # -- for tests and the simulator ---------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError when the plugin's own records contradict each other."""
        if self._worker is not None:
            with self._lock:
                self._worker.walks.spill.check_integrity()

    def drain(self, timeout_s: float) -> bool:
        """Wait until every queued spill is done; False when the time ran out."""
        return self._worker is None or self._worker.walks.spill.drain(timeout_s)

    def close(self) -> None:
        """Finish or give up queued spills and close the pool; the host itself never calls this."""
        worker, self._worker = self._worker, None
        if worker is not None:
            unsubscribe(self)
            worker.close()

    # -- every entry from the host ------------------------------------------------------------------------

    def _enter(self, doing: str, work: Callable[[PoolWorker], None]) -> bool:
        """Do something for the host, if there is a pool; whether it went well.

        Nothing gets out: a mistake of ours must not end the engine.  What spills read and what the directory knows
        may be wrong after one, so both end here.
        """
        worker = self._worker
        if worker is None:
            return True
        try:
            work(worker)
        except Exception:  # noqa: BLE001 - the one of all entries; the engine must live
            with self._lock:
                self.counters.hook_errors += 1
            worker.walks.spill.stop_reading()
            with self._lock:
                worker.walks.directory.forget()
            self._log.warning(f"something unexpected while {doing}; the host recomputes", exc_info=True)
            return False
        return True

    # -- the walks' first steps ---------------------------------------------------------------------------

    def _begin_batch(self, worker: PoolWorker, model_inputs: Any, metadata: Any, cache_ids: Any) -> None:
        worker.walks.prefill.begin()
        is_prepared = self._enter(
            "preparing a batch", lambda worker: self._prepare(worker, model_inputs, metadata, cache_ids)
        )
        if worker.times_decodes and not metadata.is_prefill:
            worker.prefill_clock.launch(metadata, 0)
        if not is_prepared and metadata.is_prefill:
            # whatever is raised here stops the batch, as it must: it would read blocks that did not arrive
            self._give_hits_up(worker, model_inputs, metadata, cache_ids)

    def _prepare(self, worker: PoolWorker, model_inputs: Any, metadata: Any, cache_ids: Any) -> None:
        rows = step_view.going_rows(metadata, worker.dp_rank)
        with self._lock, worker.walks.spill.computing(np.asarray(metadata.all_sequence_ids)[rows]):
            self._go_on(worker, metadata, cache_ids, rows)
            if metadata.is_prefill:
                self._prefill(worker, model_inputs, metadata, cache_ids)

    def _prefill(self, worker: PoolWorker, model_inputs: Any, metadata: Any, cache_ids: Any) -> None:
        new = step_view.new_prompts(metadata, cache_ids, worker.dp_rank)
        adapters = {p.row: worker.adapters.find(p.adapter) for p in new if p.adapter is not None}
        prompts = [self._begin_prompt(worker, p, metadata.batch_block_tables, adapters.get(p.row)) for p in new]
        rows, computed, promised = step_view.promises(metadata)
        own = {p.row: (p, prompt) for p, prompt in zip(new, prompts, strict=True)}
        hits = [
            self._hit(worker, *own[row], adapters.get(row))
            if row in own
            else PoolHit(row, *_ELSEWHERE, int(computed[row]), int(promised[row]), is_own=False)
            for row in rows.tolist()
        ]
        lengths = computed.copy()
        lengths[rows] = worker.walks.prefill.run(prompts, hits)
        for prompt in prompts:
            self._stand(worker, prompt, adapters.get(prompt.row))
        if worker.why is not None:
            worker.why.prefilled(metadata, zip(new, prompts, strict=True), worker.sequences, adapters, rows, lengths)
        step_view.lower_hits(metadata, model_inputs, lengths, worker.block_size, worker.dp_rank, worker.share)
        tokens = step_view.computed_tokens(metadata, worker.dp_rank, lengths, worker.block_size)
        worker.prefill_clock.launch(metadata, tokens)

    def _begin_prompt(self, worker: PoolWorker, new: NewPrompt, table: Any, adapter: Adapter | None) -> Prompt:
        can_be_named = new.adapter is None or adapter is not None
        self.counters.unpooled_adapter += not can_be_named
        self.counters.unpooled_beams += new.is_beam
        indexes, block_ids = worker.sequences.enter(
            new.sequence_id,
            new.handle,
            table,
            new.row,
            poolable=can_be_named,
            certain=len(new.tokens) if new.is_beam else None,
            adapter=adapter,
        )
        return Prompt(new.row, new.sequence_id, len(new.tokens), indexes, block_ids, new.computed)

    def _stand(self, worker: PoolWorker, prompt: Prompt, adapter: Adapter | None) -> None:
        """Note what the prompt found on the device, now that the batch's blocks belong to their sequences."""
        found = prompt.block_ids[prompt.indexes < prompt.computed]
        if len(found):
            ground = worker.walks.directory.ground(
                prompt.sequence_id, found, lambda writer: worker.sequences.adapter(writer) is adapter
            )
            worker.sequences.stand(prompt.sequence_id, ground)

    def _hit(self, worker: PoolWorker, new: NewPrompt, prompt: Prompt, adapter: Adapter | None) -> PoolHit:
        promised = (prompt.indexes >= new.computed) & (prompt.indexes < new.promised)
        can_be_named = new.adapter is None or adapter is not None
        return PoolHit(
            new.row,
            new.tokens if can_be_named else new.tokens[:0],
            prompt.indexes[promised],
            prompt.block_ids[promised],
            computed=new.computed,
            promised=new.promised,
            hashed=worker.sequences.hashed(new.sequence_id),
            adapter=adapter,
        )

    def _give_hits_up(self, worker: PoolWorker, model_inputs: Any, metadata: Any, cache_ids: Any) -> None:
        """Compute all of a batch, as the other ranks will: they wait to hear what this one has."""
        rows, lengths, _ = step_view.promises(metadata)
        agreed = worker.walks.prefill.give_up(len(rows))
        if agreed is not None:
            lengths[rows] = agreed

        def tell(worker: PoolWorker) -> None:
            if agreed is None:
                worker.walks.prefill.lost(step_view.promised_blocks(metadata, worker.dp_rank))
            if worker.why is not None:
                worker.why.stumbled(metadata, cache_ids, worker.dp_rank, lengths)

        self._enter("telling what a batch lost", tell)
        step_view.lower_hits(metadata, model_inputs, lengths, worker.block_size, worker.dp_rank, worker.share)

    def _go_on(self, worker: PoolWorker, metadata: Any, cache_ids: Any, rows: npt.NDArray[np.int64]) -> None:
        """Sequences that go on: guard the blocks they write next, note the ones they were given."""
        spill, directory = worker.walks.spill, worker.walks.directory
        if not len(rows):
            return
        sequence_ids = metadata.all_sequence_ids[rows]
        current, new = worker.sequences.advance(sequence_ids, cache_ids[rows], metadata.batch_block_tables[rows])
        self.counters.unpooled_unseen = worker.sequences.num_unseen
        spill.wait(current)
        if worker.is_async:
            writes = step_view.appending(metadata, rows, worker.share)
            directory.extend(sequence_ids[writes], current[writes])
        for sequence_id, block_ids in new:
            spill.hand_over(block_ids, sequence_id)
            spill.wait(block_ids)
