"""What a worker remembers of every running sequence: its tokens, its length, its handle."""

from __future__ import annotations

import numpy as np

from mindie_llm.text_generator.utils.input_metadata import InputMetadata
from mindie_llm.text_generator.utils.model_input import ModelInput, SamplingMetadata
from mindie_llm.text_generator.utils.settings import SpCpParallelInfo

CAPACITY = 2048  # handles; 0 belongs to dummy batches


class BatchContext:
    def __init__(self, cache_config, async_infer):
        # asynchronous scheduling computes one token past the end
        width = cache_config.max_seq_len + (1 if async_infer else 0)
        self.pad_token_id = cache_config.pad_token_id
        self.sequence_context_slot_map = {}
        self.free_handles = list(range(1, CAPACITY))
        self.all_input_ids = np.full((CAPACITY, width), self.pad_token_id, dtype=np.int32)
        self.seq_lens = np.zeros(CAPACITY, dtype=np.int32)
        self.output_len_count = np.zeros(CAPACITY, dtype=np.int32)
        self.last_input_ids = np.zeros(CAPACITY, dtype=np.int64)
        self.last_position_ids = np.zeros(CAPACITY, dtype=np.int32)
        self.pending_cleanup_flags = np.zeros(CAPACITY, dtype=np.bool_)
        self.adapter_ids = {}

    def handle(self, sequence_id, may_start):
        known = self.sequence_context_slot_map.get(sequence_id)
        if known is None:
            if not may_start:
                raise RuntimeError(f"sequence {sequence_id} decodes but was never prefilled")
            known = self.sequence_context_slot_map[sequence_id] = self.free_handles.pop()
        return known

    def fork(self, children, parents):
        for values in (self.all_input_ids, self.seq_lens, self.output_len_count, self.last_position_ids):
            values[children] = values[parents]
        for child, parent in zip(children, parents, strict=True):
            if parent in self.adapter_ids:
                self.adapter_ids[child] = self.adapter_ids[parent]

    def pop(self, sequence_ids):
        known = self.sequence_context_slot_map
        return [known.pop(int(sequence_id)) for sequence_id in sequence_ids if int(sequence_id) in known]

    def clear(self, handles):
        for handle in np.asarray(handles).tolist():
            self.free_handles.append(handle)
            self.adapter_ids.pop(handle, None)
        self.all_input_ids[handles] = self.pad_token_id
        for values in (self.seq_lens, self.output_len_count, self.last_input_ids, self.last_position_ids):
            values[handles] = 0


class TGInferContextStore:
    __slots__ = [
        "_batch_context",
        "aborted_context_handles",
        "block_size",
        "cache_config",
        "context_params",
        "device",
        "kvcache_settings",
        "spcp_parallel_info",
    ]

    def __init__(self, kvcache_settings, batch_context_config, spcp_parallel_info, device, context_params):
        self.block_size = batch_context_config.max_block_size
        self.kvcache_settings = kvcache_settings
        self.spcp_parallel_info = SpCpParallelInfo(*(spcp_parallel_info or ()))
        self.context_params = context_params
        self.device = device
        self.cache_config = batch_context_config
        self._batch_context = BatchContext(batch_context_config, context_params.async_infer)
        self.aborted_context_handles = []

    def get_batch_context_handles(self, metadata: InputMetadata) -> np.ndarray:
        if metadata.is_dummy_batch:
            return np.zeros(len(metadata.all_sequence_ids), np.int32)
        context = self._batch_context
        handles = [context.handle(int(name), metadata.is_prefill) for name in metadata.all_sequence_ids]
        return np.array(handles, dtype=np.int32)

    def compose_model_inputs(self, metadata: InputMetadata, context_handles, warmup=False, hit_mask=None):
        compose = self._prefill_inputs if metadata.is_prefill else self._decode_inputs
        inputs = compose(metadata, context_handles, warmup, hit_mask)
        has_groups = metadata.is_prefill and metadata.batch_best_of is not None and (metadata.batch_best_of > 1).any()
        best_of = metadata.batch_best_of if has_groups else None
        reserved = metadata.reserved_sequence_ids
        sampling = SamplingMetadata(metadata.all_sequence_ids, metadata.is_prefill, best_of, reserved)
        return inputs, sampling, metadata.trace_ids

    def fork_context(self, sampling_output):
        """Handles of all sequences of the sampler's answer; new ones begin as copies of their parents."""
        context = self._batch_context
        names, parents = sampling_output.sequence_ids.tolist(), sampling_output.parent_sequence_ids.tolist()
        handles = [context.handle(name, may_start=True) for name in names]
        pairs = [(own, context.handle(parent, False)) for own, parent in zip(handles, parents, strict=True)]
        children = [(own, parent) for own, parent in pairs if own != parent]
        if children:
            context.fork([own for own, _ in children], [parent for _, parent in children])
        return np.array(handles, dtype=np.int32)

    def block_table_to_slots(self, block_table):
        return np.asarray(block_table)[..., None] * self.block_size + np.arange(self.block_size, dtype=np.int32)

    def update_context(self, context_handles, filtered_indices, input_metadata, sampling_output):
        """Take the new tokens; answers (finished handles, finished sequence ids)."""
        context = self._batch_context
        rows = np.nonzero(context_handles > 0)[0]
        handles, tokens = context_handles[rows], sampling_output.token_ids[rows, 0]
        context.last_input_ids[handles] = tokens
        fits = context.seq_lens[handles] < context.all_input_ids.shape[1]
        context.all_input_ids[handles[fits], context.seq_lens[handles[fits]]] = tokens[fits]
        for values in (context.seq_lens, context.output_len_count, context.last_position_ids):
            values[handles] += 1
        if filtered_indices is None:
            return np.array([], dtype=np.int32), np.array([], dtype=np.int64)
        return context_handles[filtered_indices], sampling_output.sequence_ids[filtered_indices]

    def clear_finished_context(self, sequence_ids, context_handles):
        """Forget finished sequences; with asynchronous scheduling those that finished one step before."""
        context = self._batch_context
        real = context_handles != 0
        names, handles = sequence_ids[real], context_handles[real]
        if self.context_params.async_infer:
            flags = context.pending_cleanup_flags
            flagged = set(np.nonzero(flags)[0].tolist())
            # an aborted sequence may be flagged but is no longer known
            due = [(name, handle) for name, handle in context.sequence_context_slot_map.items() if handle in flagged]
            first_time = context_handles[~flags[context_handles]]
            flags[:] = False
            flags[first_time] = True
            names = np.array([name for name, _ in due], dtype=np.int64)
            handles = np.array([handle for _, handle in due], dtype=np.int32)
        context.pop(names)
        if len(handles):
            context.clear(handles)
        return names

    def clear_context_by_seq_ids(self, sequence_ids):
        """Forget sequences that were aborted or preempted."""
        handles = [handle for handle in self._batch_context.pop(sequence_ids) if handle != 0]
        if self.context_params.async_infer:
            self.aborted_context_handles.extend(handles)
        elif handles:
            self._batch_context.clear(np.array(handles, dtype=np.int32))

    def clear_aborted_context(self):
        if self.aborted_context_handles:
            handles = np.array(self.aborted_context_handles, dtype=np.int32)
            self.aborted_context_handles.clear()
            self._batch_context.clear(handles)
            self._batch_context.pending_cleanup_flags[handles] = False

    def reset_all_context(self):
        self._batch_context = BatchContext(self.cache_config, self.context_params.async_infer)
        self.aborted_context_handles.clear()

    def get_seq_lens(self, context_handles):
        return self._batch_context.seq_lens[context_handles]

    def get_all_input_ids(self, context_handles):
        return self._batch_context.all_input_ids[context_handles]

    def get_output_len_count(self, context_handles):
        return self._batch_context.output_len_count[context_handles]

    def get_once_end_flag(self, context_handles):
        return self._batch_context.pending_cleanup_flags[context_handles]

    def _prefill_inputs(self, metadata, handles, warmup, hit_mask):
        context = self._batch_context
        lengths = metadata.batch_seq_len.astype(np.int32)
        slots = np.full(metadata.total_seq_num, -1, dtype=np.int32)
        positions = np.empty(metadata.total_seq_num, dtype=np.int32)
        begin = 0
        for row, length in enumerate(lengths.tolist()):
            span = slice(begin, begin + length)
            positions[span] = np.arange(length)
            if warmup:
                slots[begin] = 0 if row == 0 else -1
            else:
                slots[span] = self.block_table_to_slots(metadata.batch_block_tables[row]).reshape(-1)[:length]
            context.all_input_ids[handles[row], :length] = metadata.input_ids[span]
            if metadata.adapter_ids and metadata.adapter_ids[row]:
                context.adapter_ids[int(handles[row])] = metadata.adapter_ids[row]
            begin += length
        context.seq_lens[handles] = lengths
        context.last_position_ids[handles] = lengths - 1
        return ModelInput(
            input_ids=metadata.input_ids,
            position_ids=positions,
            block_tables=metadata.batch_block_tables,
            slots=slots,
            context_length=lengths,
            max_seq_len=metadata.max_seq_len,
            prefill_head_indices=np.cumsum(lengths, dtype=np.int64) - 1,
            is_prefill=True,
            adapter_ids=metadata.adapter_ids,
            dp_rank_ids=metadata.batch_dp_rank_ids,
            seq_lens=metadata.seq_lens,
        )

    def _decode_inputs(self, metadata, handles, warmup, hit_mask):
        context = self._batch_context
        at = context.seq_lens[handles] - 1
        if self.context_params.async_infer and hit_mask is not None:
            at[hit_mask] += self.context_params.max_generated_tokens  # its last token is still on the way
        rows = np.arange(len(handles))
        blocks = metadata.batch_block_tables[rows, at // self.block_size]
        lengths = context.seq_lens[handles]
        return ModelInput(
            input_ids=context.last_input_ids[handles],
            position_ids=context.last_position_ids[handles],
            block_tables=metadata.batch_block_tables,
            slots=(blocks * self.block_size + at % self.block_size).astype(np.int32),
            context_length=lengths,
            max_seq_len=int(lengths.max()),
            prefill_head_indices=None,
            is_prefill=False,
            adapter_ids=[context.adapter_ids.get(handle) for handle in handles.tolist()],
            dp_rank_ids=metadata.batch_dp_rank_ids,
            seq_lens=metadata.seq_lens,
        )
