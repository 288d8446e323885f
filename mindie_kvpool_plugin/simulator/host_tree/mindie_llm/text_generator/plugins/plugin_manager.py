"""Runs a step: inputs, plugins, forward, sampling, plugins, context.

The inference thread calls ``generate_token`` or ``generate_token_async``.  The latter hands the
forward to the thread ``async_forward`` and answers with the tokens of the batch before.
"""

from __future__ import annotations

import importlib
import queue
import threading
from contextlib import suppress
from enum import IntEnum

import numpy as np

from mindie_llm.text_generator.plugins.plugin_utils import PluginDataParam
from mindie_llm.text_generator.utils.model_input import Flight, GenerationOutput
from mindie_llm.utils.log.error_code import ErrorCodeException, convert_exception_to_error_code

LAUNCH_TIMEOUT_S = 60
OUTPUT_TIMEOUT_S = 120


class MemPoolType(IntEnum):
    DISABLED = 0
    SYNC_WRITE = 1
    ASYNC_WRITE = 2


class PluginManager:
    def __init__(
        self,
        generator_backend,
        kvcache_settings,
        infer_context,
        output_filter,
        is_mix_model,
        plugin_list,
        model_role,
        watcher,
        **kwargs,
    ):
        self.generator_backend = generator_backend
        self.model_wrapper = generator_backend.model_wrapper
        self.kvcache_settings = kvcache_settings
        self.infer_context = infer_context
        self.output_filter = output_filter
        self.is_mix_model = is_mix_model
        self.plugin_list = plugin_list
        self.watcher = watcher
        self.rank = generator_backend.rank
        self.plugin_data_param = PluginDataParam()
        self.async_inference = infer_context.context_params.async_infer
        self.kwargs = {**kwargs, "model_role": model_role}
        self.mempool_type = MemPoolType.DISABLED
        self.last_sequence_ids = None
        self.previous_batch_is_prefill = False
        self.is_inference_pause = False
        self.error_code_collected_in_async = None  # known before it is reported
        if self.async_inference:
            self.input_queue = queue.Queue()
            self.output_queue = queue.Queue()
            self.output_queue.put(Flight())
            self.forward_thread = threading.Thread(target=self.forward_loop, daemon=True, name="async_forward")
            self.forward_thread.start()

    def initialize(self):
        for name in self.plugin_list:
            class_name = "".join(word.capitalize() for word in name.split("_")) + "Plugin"
            module = importlib.import_module(f"mindie_llm.text_generator.plugins.{name}.{name}_plugin")
            plugin = getattr(module, class_name)(
                self.generator_backend,
                self.kvcache_settings,
                self.infer_context,
                self.plugin_data_param,
                **self.kwargs,
            )
            setattr(self, name, plugin)
        if "prefix_cache" in self.plugin_list:
            self.mempool_type = self.prefix_cache.mempool_type

    def generate_token(self, input_metadata, warmup=False):
        cache_ids, model_inputs, sampling_metadata, trace_ids = self.preprocess(input_metadata, warmup=warmup)
        model_inputs = self.model_inputs_update_manager(model_inputs, input_metadata, sampling_metadata, cache_ids)
        if not warmup and self.mempool_type == MemPoolType.ASYNC_WRITE:
            self.prefix_cache.async_put_prefix_kvcache_to_mempool(input_metadata, cache_ids)
        result = self.generator_backend.forward(model_inputs, **self._model_kwargs(warmup))
        logits = self.sample_preprocess_manager(_logits(result), result, sampling_metadata, input_metadata)
        sampling_output = self.generator_backend.sample(logits, sampling_metadata)
        if self.mempool_type == MemPoolType.SYNC_WRITE:
            self.put_prefix_kvcache_to_mempool(input_metadata, cache_ids)
        elif not warmup and self.mempool_type == MemPoolType.ASYNC_WRITE:
            self.wait_put_finish(input_metadata)
        output = self.postprocess(cache_ids, input_metadata, result, sampling_metadata, sampling_output)
        output.trace_ids = trace_ids
        return output

    def generate_token_async(self, input_metadata, warmup=False):
        hit_mask = np.isin(input_metadata.all_sequence_ids, self._last_sequences())
        cache_ids, model_inputs, sampling_metadata, trace_ids = self.preprocess(
            input_metadata, warmup=warmup, hit_mask=hit_mask
        )
        model_inputs = self.model_inputs_update_manager(
            model_inputs, input_metadata, sampling_metadata, cache_ids, hit_mask=hit_mask
        )
        kwargs = self._model_kwargs(warmup)
        model_inputs, kwargs = self.generator_backend.prepare_model_inputs(model_inputs, **kwargs)
        before = self.output_queue.get(timeout=OUTPUT_TIMEOUT_S)
        if before.failure is not None:
            raise before.failure
        if before.sampling_output is not None:
            self._fill_in_model_result(input_metadata, model_inputs, kwargs, before, hit_mask)
        if not warmup and self.mempool_type == MemPoolType.ASYNC_WRITE:
            self.prefix_cache.async_put_prefix_kvcache_to_mempool(input_metadata, cache_ids)
        flight = Flight(cache_ids, input_metadata, model_inputs, kwargs, sampling_metadata)
        self.input_queue.put(flight)
        try:
            output = self._finish_the_one_before(before, flight)
        finally:
            flight.postprocess_done.set()
        output.trace_ids = trace_ids
        self.last_sequence_ids = input_metadata.all_sequence_ids
        if before.error_code is not None:  # the host may notice one batch earlier, if the fault is quick
            self.error_code_collected_in_async = None
            raise ErrorCodeException(before.error_code)
        return output

    def _finish_the_one_before(self, before, flight):
        input_metadata = flight.input_metadata
        if not input_metadata.is_prefill and not self.previous_batch_is_prefill:
            flight.launched.wait(timeout=LAUNCH_TIMEOUT_S)
        self.previous_batch_is_prefill = input_metadata.is_prefill
        if before.is_mock or before.cache_ids is None or before.input_metadata.is_dummy_batch:
            return GenerationOutput.make_empty()
        result = before.result[:2] if isinstance(before.result, tuple) else before.result
        return self.postprocess(
            before.cache_ids, before.input_metadata, result, before.sampling_metadata, before.sampling_output
        )

    def wait_for_forward(self):
        """Until no batch is left that the device could still be given."""
        if self.async_inference:
            self.input_queue.join()

    def resume(self):
        """The device was repaired: nothing of the batches before it counts, the next one follows an empty one."""
        self.last_sequence_ids = None
        self.is_inference_pause = False
        self.wait_for_forward()
        if self.async_inference:
            with suppress(queue.Empty):
                self.output_queue.get_nowait()
            self.output_queue.put(Flight())

    def forward_loop(self):
        while (flight := self.input_queue.get()) is not None:
            try:
                self._forward(flight)
            except BaseException as error:  # noqa: BLE001 - raised by the inference thread when it asks for the tokens
                flight.error_code = convert_exception_to_error_code(str(error))
                if flight.error_code is not None:
                    self.error_code_collected_in_async = flight.error_code
                flight.is_mock = self.is_inference_pause or flight.error_code is not None
                flight.failure = None if flight.is_mock else error
                flight.launched.set()
            self.output_queue.put(flight)
            self.input_queue.task_done()

    def _forward(self, flight):
        metadata = flight.input_metadata
        flight.result = self.generator_backend.forward_from_model_inputs(flight.model_inputs, **flight.model_kwargs)
        flight.launched.set()
        logits = self.sample_preprocess_manager(
            _logits(flight.result), flight.result, flight.sampling_metadata, metadata
        )
        flight.sampling_output = self.generator_backend.sample(logits, flight.sampling_metadata)
        flight.postprocess_done.wait()
        self.plugin_verify_manager(flight.sampling_output, flight.cache_ids, flight.result)
        if self.mempool_type == MemPoolType.SYNC_WRITE and not metadata.is_dummy_batch:
            self.put_prefix_kvcache_to_mempool(metadata, flight.cache_ids)
        elif self.mempool_type == MemPoolType.ASYNC_WRITE:
            self.wait_put_finish(metadata)

    def preprocess(self, input_metadata, warmup=False, hit_mask=None):
        cache_ids, data = self.infer_context.get_batch_context_handles(input_metadata), self.plugin_data_param
        if self.is_mix_model:
            model_inputs, sampling_metadata, data.q_len, trace_ids = self.infer_context.splitfuse_concatenate(
                input_metadata, cache_ids, warmup=warmup, hit_mask=hit_mask
            )
            data.mask = "splitfuse" if input_metadata.is_prefill else None
            return cache_ids, model_inputs, sampling_metadata, trace_ids
        model_inputs, sampling_metadata, trace_ids = self.infer_context.compose_model_inputs(
            input_metadata, cache_ids, warmup=warmup, hit_mask=hit_mask
        )
        return cache_ids, model_inputs, sampling_metadata, trace_ids

    def postprocess(self, cache_ids, input_metadata, result, sampling_metadata, sampling_output):
        if not self.async_inference:
            self.plugin_verify_manager(sampling_output, cache_ids, result)
        finish_reason, finished = self.output_filter.filter_finished_sequences(
            cache_ids, input_metadata, sampling_output
        )
        if sampling_metadata.best_of_array is not None or sampling_metadata.beam_width_array is not None:
            cache_ids = self.infer_context.fork_context(sampling_output)
        self.plugin_cache_update_manager(
            cache_ids, sampling_output, (result, sampling_metadata), input_metadata.is_prefill
        )
        finished_handles, finished_ids = self.infer_context.update_context(
            cache_ids, finished, input_metadata, sampling_output
        )
        gone = np.array([], dtype=np.int64)
        if not input_metadata.is_dummy_batch:
            gone = self.infer_context.clear_finished_context(finished_ids, finished_handles)
            self.plugin_cache_clear_manager(cache_ids, finish_reason)
        self.infer_context.clear_aborted_context()
        if input_metadata.batch_last_prompt is not None:  # no token comes out of a chunk that is not the last
            sampling_output.token_ids[~sampling_output.of_rows(input_metadata.batch_last_prompt)] = -1
        output = GenerationOutput(
            sampling_output.sequence_ids,
            sampling_output.token_ids,
            finish_reason,
            sampling_output.parent_sequence_ids,
            sampling_output.group_indices,
            num_new_tokens=sampling_output.num_new_tokens,
        )
        if self.async_inference and gone.size:
            output.remove(gone)
        return output

    def model_inputs_update_manager(self, model_inputs, input_metadata, sampling_metadata, cache_ids, **kwargs):
        data = self.plugin_data_param
        if not self.is_mix_model:
            data.q_len = data.mask = None
        input_len_mask = (None, None)
        for plugin in self._plugins():
            model_inputs, input_len_mask = plugin.model_inputs_update(
                model_inputs, input_metadata, sampling_metadata, cache_ids, input_len_mask, **kwargs
            )
        q_len, mask = input_len_mask
        data.q_len = data.q_len if q_len is None else q_len
        data.mask = data.mask if mask is None else mask
        return model_inputs

    def sample_preprocess_manager(self, logits, result, sampling_metadata, input_metadata):
        for plugin in self._plugins():
            logits = plugin.sample_preprocess(logits, result, sampling_metadata, input_metadata)
        return logits

    def plugin_verify_manager(self, sampling_output, cache_ids, result):
        for plugin in self._plugins():
            plugin.plugin_verify(sampling_output, cache_ids, result)
        if sampling_output.token_ids.ndim != 2:
            sampling_output.token_ids = np.expand_dims(sampling_output.token_ids, 1)

    def plugin_cache_update_manager(self, cache_ids, sampling_output, la_cache_input, is_prefill):
        for plugin in self._plugins():
            plugin.plugin_cache_update(cache_ids, sampling_output, la_cache_input, is_prefill=is_prefill)

    def plugin_cache_clear_manager(self, cache_ids, finish_reason):
        for plugin in self._plugins():
            plugin.plugin_cache_clear(cache_ids, finish_reason)

    def put_prefix_kvcache_to_mempool(self, input_metadata, cache_ids):
        if "prefix_cache" in self.plugin_list:
            self.prefix_cache.put_prefix_kvcache_to_mempool(input_metadata, cache_ids)

    def wait_put_finish(self, input_metadata):
        if "prefix_cache" in self.plugin_list and input_metadata.is_prefill:
            self.prefix_cache.save_event.wait(timeout=self.prefix_cache.save_timeout)

    def _plugins(self):
        return [getattr(self, name) for name in self.plugin_list]

    def _model_kwargs(self, warmup):
        data = self.plugin_data_param
        kwargs = {"q_lens": data.q_len, "attn_mask": data.mask}
        if "mtp" in self.plugin_list:
            kwargs = {"q_lens": data.q_len, "spec_mask": data.mask}
            kwargs.update(sub_model_inputs=data.mtp_model_inputs, hidden_states=data.hidden_states)
        if warmup:
            kwargs["warmup_is_end"] = False
        return kwargs

    def _last_sequences(self):
        return [] if self.last_sequence_ids is None else self.last_sequence_ids

    def _fill_in_model_result(self, input_metadata, model_inputs, model_kwargs, before, hit_mask):
        """Put the tokens that were still on the way into the inputs that were made without them."""
        if input_metadata.batch_is_prefill is not None:
            hit_mask = hit_mask & ~input_metadata.batch_is_prefill
        elif input_metadata.is_prefill:
            return
        if not hit_mask.any():
            return
        row_by_sequence = {int(name): row for row, name in enumerate(self.last_sequence_ids)}
        rows = [row_by_sequence[int(name)] for name in input_metadata.all_sequence_ids[hit_mask]]
        fill = next((p.fill_in_model_result for p in self._plugins() if hasattr(p, "fill_in_model_result")), None)
        if fill is not None:
            fill(model_inputs, model_kwargs, before, hit_mask, rows)
            return
        is_waiting = np.repeat(hit_mask, self._tokens_per_sequence(input_metadata)) if self.is_mix_model else hit_mask
        model_inputs.input_ids[is_waiting] = before.sampling_output.token_ids[rows].reshape(-1)
        model_inputs.position_ids[is_waiting] += 1
        model_inputs.context_length[hit_mask] += 1
        model_inputs.max_seq_len = int(model_inputs.context_length.max())

    def _tokens_per_sequence(self, input_metadata):
        """From ``computed_blocks``, though ``prefix_cache`` has taken ``remote_computed_blocks`` away."""
        counts = input_metadata.split_end_position - input_metadata.split_start_position
        if input_metadata.computed_blocks is None:
            return counts
        begins = input_metadata.batch_is_prefill & (input_metadata.split_start_position == 0)
        left = np.where(begins, counts - self.infer_context.block_size * input_metadata.computed_blocks, counts)
        return np.where(input_metadata.batch_is_prefill & (left == 0), self.infer_context.block_size, left)


def _logits(result):
    return result[0] if isinstance(result, tuple) else result
