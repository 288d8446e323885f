"""What a worker remembers of every running sequence: its tokens, its length, its handle."""

from __future__ import annotations

import numpy as np
import torch

from mindie_llm.text_generator.utils.input_metadata import InputMetadata
from mindie_llm.text_generator.utils.model_input import ModelInput, SamplingMetadata
from mindie_llm.text_generator.utils.settings import SpCpParallelInfo

BOS_TOKEN = 1
NO_RANK = -1
CAPACITY = 2048  # handles; 0 belongs to dummy batches


class BatchContext:
    def __init__(self, cache_config, async_infer, num_hidden=1):
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
        self.beam_width = np.zeros(CAPACITY, dtype=np.int64)
        self.cumulative_logprobs = np.zeros(CAPACITY)
        self.pending_cleanup_flags = np.zeros(CAPACITY, dtype=np.bool_)
        self.mtp_last_token_num = np.zeros(CAPACITY, dtype=np.int32)
        self.mtp_hidden_states = torch.zeros((CAPACITY, num_hidden, 1), dtype=torch.int64)
        blocks = -(-width // cache_config.max_block_size) + 1
        self.mtp_seq_block_rank_id = np.full((CAPACITY, blocks), NO_RANK, dtype=np.int32)
        self.adapter_ids = {}

    def handle(self, sequence_id, may_start):
        known = self.sequence_context_slot_map.get(sequence_id)
        if known is None:
            if not may_start:
                raise RuntimeError(f"sequence {sequence_id} decodes but was never prefilled")
            known = self.sequence_context_slot_map[sequence_id] = self.free_handles.pop()
        return known

    def fork(self, children, parents):
        for values in (
            self.all_input_ids,
            self.seq_lens,
            self.output_len_count,
            self.last_position_ids,
            self.beam_width,
            self.cumulative_logprobs,
        ):
            values[children] = values[parents]
        for child, parent in zip(children, parents, strict=True):
            if parent in self.adapter_ids:
                self.adapter_ids[child] = self.adapter_ids[parent]

    def take_first_tokens(self, handles, metadata):
        """Another node has computed the prompts but for their last tokens, which it sampled."""
        self.last_input_ids[handles] = metadata.input_ids[np.cumsum(metadata.batch_seq_len) - 1]
        self.output_len_count[handles] += len(handles)  # for each as many as there are: the host does so

    def pop(self, sequence_ids):
        known = self.sequence_context_slot_map
        return [known.pop(int(sequence_id)) for sequence_id in sequence_ids if int(sequence_id) in known]

    def clear(self, handles):
        for handle in np.asarray(handles).tolist():
            self.free_handles.append(handle)
            self.adapter_ids.pop(handle, None)
        self.all_input_ids[handles] = self.pad_token_id
        for values in (
            self.seq_lens,
            self.output_len_count,
            self.last_input_ids,
            self.last_position_ids,
            self.beam_width,
            self.cumulative_logprobs,
        ):
            values[handles] = 0
        self.mtp_last_token_num[handles] = 0
        self.mtp_hidden_states[handles] = 0
        self.mtp_seq_block_rank_id[handles] = NO_RANK


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
        self._batch_context = self._fresh_context()
        self.aborted_context_handles = []

    def get_batch_context_handles(self, metadata: InputMetadata) -> np.ndarray:
        if metadata.is_dummy_batch:
            return np.zeros(len(metadata.all_sequence_ids), np.int32)
        context = self._batch_context
        handles = [context.handle(int(name), metadata.is_prefill) for name in metadata.all_sequence_ids]
        return np.array(handles, dtype=np.int32)

    def compose_model_inputs(
        self, metadata: InputMetadata, context_handles, warmup=False, hit_mask=None, is_pd_separate=False
    ):
        if self.spcp_parallel_info.scp_size > 1:
            metadata.batch_block_tables = metadata.batch_block_tables[:, self.spcp_parallel_info.scp_rank, :]
        compose = self._prefill_inputs if metadata.is_prefill else self._decode_inputs
        inputs = compose(metadata, context_handles, warmup, hit_mask)
        if is_pd_separate:
            self._batch_context.take_first_tokens(context_handles, metadata)
        has_groups = metadata.is_prefill and metadata.batch_best_of is not None and (metadata.batch_best_of > 1).any()
        best_of = metadata.batch_best_of if has_groups else None
        if metadata.is_prefill and metadata.batch_use_beam_search is not None:
            self._batch_context.beam_width[context_handles] = metadata.batch_n * metadata.batch_use_beam_search
        widths = self._batch_context.beam_width[context_handles]
        sampling = SamplingMetadata(
            metadata.all_sequence_ids,
            metadata.is_prefill,
            best_of,
            metadata.reserved_sequence_ids,
            metadata.batch_sequence_ids,
            widths if widths.any() else None,
            self._batch_context.cumulative_logprobs[context_handles],
            self.cache_config.eos_token_id,
        )
        return inputs, sampling, metadata.trace_ids

    def splitfuse_concatenate(self, metadata, context_handles, warmup=False, hit_mask=None):
        """The same where prompts come in chunks; answers also how many tokens each row computes."""
        if not metadata.is_prefill:
            inputs, sampling, trace_ids = self.compose_model_inputs(metadata, context_handles, warmup, hit_mask)
            return inputs, sampling, None, trace_ids
        inputs = self._mixed_inputs(metadata, context_handles, warmup, hit_mask)
        sampling = self._mixed_sampling(metadata, context_handles)
        return inputs, sampling, metadata.batch_seq_len.tolist(), metadata.trace_ids

    def _mixed_sampling(self, metadata, context_handles):
        """A prompt branches off with its last chunk."""
        sampling = SamplingMetadata(metadata.all_sequence_ids, is_prefill=True)
        if metadata.batch_best_of is None:
            return sampling
        rows = np.repeat(np.arange(metadata.batch_size), [len(ids) for ids in metadata.batch_sequence_ids])
        is_through = metadata.batch_is_prefill & metadata.batch_last_prompt
        widths, handles = self._batch_context.beam_width, context_handles[is_through]
        widths[handles] = (metadata.batch_n * metadata.batch_use_beam_search)[rows[is_through]]
        best_of = np.where(is_through, metadata.batch_best_of[rows], 1)
        if (best_of > 1).any() or widths[context_handles].any():
            sampling.best_of_array, sampling.beam_width_array = best_of, widths[context_handles]
            sampling.reserved_sequence_ids = metadata.reserved_sequence_ids
            sampling.batch_sequence_ids = metadata.batch_sequence_ids
            sampling.cumulative_logprobs = self._batch_context.cumulative_logprobs[context_handles]
            sampling.eos_token_ids = self.cache_config.eos_token_id
        return sampling

    def fork_context(self, sampling_output):
        """Handles of all sequences of the sampler's answer (-1: a beam that ended).

        New ones, and beams that go on from another's history, begin as copies of their parents.
        """
        context = self._batch_context
        names, parents = sampling_output.sequence_ids.tolist(), sampling_output.parent_sequence_ids.tolist()
        handles = [-1 if name == -1 else context.handle(name, may_start=True) for name in names]
        pairs = [(own, context.handle(parent, False)) for own, parent in zip(handles, parents, strict=True)]
        children = [(own, parent) for own, parent in pairs if own not in {-1, parent}]
        if children:
            context.fork([own for own, _ in children], [parent for _, parent in children])
        return np.array(handles, dtype=np.int32)

    def block_table_to_slots(self, block_table):
        return np.asarray(block_table)[..., None] * self.block_size + np.arange(self.block_size, dtype=np.int32)

    def update_context(self, context_handles, filtered_indices, input_metadata, sampling_output):
        """Take the new tokens; answers (finished handles, finished sequence ids)."""
        context = self._batch_context
        has_token = context_handles > 0
        if input_metadata.batch_is_prefill is not None:
            is_through = ~input_metadata.batch_is_prefill | input_metadata.batch_last_prompt
            has_token = has_token & sampling_output.of_rows(is_through)
        rows = np.nonzero(has_token)[0]
        handles, counts = context_handles[rows], sampling_output.num_new_tokens[rows]
        context.last_input_ids[handles] = sampling_output.token_ids[rows, counts - 1]
        for place in range(int(counts.max(initial=0))):
            at = context.seq_lens[handles] + place
            fits = (place < counts) & (at < context.all_input_ids.shape[1])
            context.all_input_ids[handles[fits], at[fits]] = sampling_output.token_ids[rows[fits], place]
        for values in (context.seq_lens, context.output_len_count, context.last_position_ids):
            values[handles] += counts
        if sampling_output.logprobs is not None:
            context.cumulative_logprobs[handles] += sampling_output.logprobs[rows]
        if filtered_indices is None:
            return np.array([], dtype=np.int32), np.array([], dtype=np.int64)
        filtered_indices = filtered_indices[context_handles[filtered_indices] != -1]
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
        self._batch_context = self._fresh_context()
        self.aborted_context_handles.clear()

    def _fresh_context(self):
        params = self.context_params
        return BatchContext(self.cache_config, params.async_infer, params.max_generated_tokens)

    def get_mtp_last_token_num(self, context_handles):
        return self._batch_context.mtp_last_token_num[context_handles]

    def set_mtp_last_token_num(self, context_handles, mtp_last_token_num):
        self._batch_context.mtp_last_token_num[context_handles] = mtp_last_token_num

    def get_mtp_hidden_states(self, context_handles):
        return self._batch_context.mtp_hidden_states[context_handles]

    def set_mtp_hidden_states_prefix(self, context_handles, alias_len, hidden_states_prefix):
        self._batch_context.mtp_hidden_states[context_handles, :alias_len] = hidden_states_prefix

    def get_mtp_seq_block_rank_id(self, context_handles):
        return self._batch_context.mtp_seq_block_rank_id[context_handles]

    def set_mtp_seq_block_rank_id(self, context_handles, count, prefill_block_rank_id):
        self._batch_context.mtp_seq_block_rank_id[context_handles, :count] = prefill_block_rank_id

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
        padding = self._pad(metadata)
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
                self._prompt_slots(slots[span], metadata, row)
            own = length - padding[row]
            context.all_input_ids[handles[row], :own] = metadata.input_ids[begin : begin + own]
            if metadata.adapter_ids and metadata.adapter_ids[row]:
                context.adapter_ids[int(handles[row])] = metadata.adapter_ids[row]
            begin += length
        context.seq_lens[handles] = lengths - padding
        context.last_position_ids[handles] = lengths - padding - 1
        return ModelInput(
            input_ids=metadata.input_ids,
            position_ids=positions,
            block_tables=metadata.batch_block_tables,
            slots=slots,
            context_length=lengths,
            max_seq_len=metadata.max_seq_len,
            prefill_head_indices=np.cumsum(lengths, dtype=np.int64) - padding - 1,
            is_prefill=True,
            adapter_ids=metadata.adapter_ids,
            dp_rank_ids=metadata.batch_dp_rank_ids,
            seq_lens=metadata.seq_lens,
            sp_tokens=metadata.sp_tokens,
            pad_token_count=padding,
        )

    def _pad(self, metadata):
        """Context parallel ranks compute two chunks each, all of one length; the scheduler has sent padded tokens."""
        if self.spcp_parallel_info.cp_size == 1:
            return np.zeros(len(metadata.batch_seq_len), dtype=np.int32)
        padding = (-metadata.batch_seq_len) % (2 * self.spcp_parallel_info.cp_size)
        metadata.batch_seq_len = metadata.batch_seq_len + padding
        metadata.sp_tokens[np.arange(len(padding)), metadata.sp_rank_id] += padding
        metadata.total_seq_num = int(metadata.batch_seq_len.sum())
        metadata.max_seq_len = int(metadata.batch_seq_len.max())
        metadata.input_ids = np.where(metadata.input_ids == -1, BOS_TOKEN, metadata.input_ids)
        return padding.astype(np.int32)

    def _prompt_slots(self, slots, metadata, row):
        """Fill in where a prompt's tokens go; those of other ranks keep -1."""
        table, info = metadata.batch_block_tables[row], self.spcp_parallel_info
        if info.scp_size == 1:
            slots[:] = self.block_table_to_slots(table).reshape(-1)[: len(slots)]
            return
        left, begin = int(metadata.sp_tokens[row, info.scp_rank]), info.scp_rank * self.block_size
        for block_id in table[table >= 0].tolist():
            count = min(left, self.block_size)
            if info.scp_rank == info.scp_size - 1 and left <= self.block_size:
                begin = len(slots) - count  # the last rank has the last block
            slots[begin : begin + count] = block_id * self.block_size + np.arange(count)
            left, begin = left - count, begin + info.scp_size * self.block_size
            if left <= 0:
                return

    def _note_new_blocks(self, metadata, handles):
        """Whose the blocks are that decoding sequences were given for guesses."""
        ranks, new = self._batch_context.mtp_seq_block_rank_id, metadata.is_append_block
        ranks[handles[new], ranks[handles[new]].argmin(axis=1)] = metadata.block_rank_id[new]

    def _decode_inputs(self, metadata, handles, warmup, hit_mask):
        context = self._batch_context
        if metadata.is_append_block is not None:
            self._note_new_blocks(metadata, handles)
        lengths = context.seq_lens[handles]
        return ModelInput(
            input_ids=context.last_input_ids[handles],
            position_ids=context.last_position_ids[handles],
            block_tables=metadata.batch_block_tables,
            slots=self._next_slots(metadata.batch_block_tables, handles, hit_mask)
            if self.spcp_parallel_info.scp_size == 1
            else self._next_own_slots(metadata),
            context_length=lengths,
            max_seq_len=int(lengths.max()),
            prefill_head_indices=None,
            is_prefill=False,
            adapter_ids=[context.adapter_ids.get(handle) for handle in handles.tolist()],
            dp_rank_ids=metadata.batch_dp_rank_ids,
            seq_lens=metadata.seq_lens,
        )

    def _mixed_inputs(self, metadata, handles, warmup, hit_mask):
        """Decodes, with what is known of them here, and chunks of prompts."""
        context = self._batch_context
        starts, stops = metadata.split_start_position, metadata.split_end_position
        ends = np.cumsum(metadata.batch_seq_len)
        input_ids = np.array(metadata.input_ids, dtype=np.int64)
        slots = np.full(metadata.total_seq_num, -1, dtype=np.int32)
        positions = np.zeros(metadata.total_seq_num, dtype=np.int32)
        decodes = np.flatnonzero(~metadata.batch_is_prefill)
        chunks = np.flatnonzero(metadata.batch_is_prefill)
        at, own = ends[decodes] - 1, handles[decodes]
        input_ids[at] = context.last_input_ids[own]
        positions[at] = context.last_position_ids[own]
        slots[at] = self._next_slots(
            metadata.batch_block_tables[decodes], own, None if hit_mask is None else hit_mask[decodes]
        )
        for row in chunks.tolist():
            start, stop = int(starts[row]), int(stops[row])
            span = slice(ends[row] - (stop - start), ends[row])
            positions[span] = np.arange(start, stop)
            context.all_input_ids[handles[row], start:stop] = input_ids[span]
            if not warmup:
                slots[span] = self.block_table_to_slots(metadata.batch_block_tables[row]).reshape(-1)[start:stop]
        context.seq_lens[handles[chunks]] = stops[chunks]
        context.last_position_ids[handles[chunks]] = stops[chunks] - 1
        lengths = context.seq_lens[handles]
        return ModelInput(
            input_ids=input_ids,
            position_ids=positions,
            block_tables=metadata.batch_block_tables,
            slots=slots,
            context_length=lengths,
            max_seq_len=int(lengths.max()),
            prefill_head_indices=ends - 1,
            is_prefill=True,
            dp_rank_ids=metadata.batch_dp_rank_ids,
        )

    def _next_slots(self, tables, handles, hit_mask):
        """Where the next token of decoding sequences goes."""
        at = self._batch_context.seq_lens[handles] - 1
        if self.context_params.async_infer and hit_mask is not None:
            at[hit_mask] += self.context_params.max_generated_tokens  # its last token is still on the way
        blocks = tables[np.arange(len(handles)), at // self.block_size]
        return (blocks * self.block_size + at % self.block_size).astype(np.int32)

    def _next_own_slots(self, metadata):
        """The same for the sequences whose next token lies on this rank; -1 for the others."""
        rank = self.spcp_parallel_info.scp_rank
        at = np.maximum(metadata.sp_tokens[:, rank] - 1, 0)
        blocks = metadata.batch_block_tables[np.arange(len(at)), at // self.block_size]
        slots = blocks * self.block_size + at % self.block_size
        return np.where(metadata.sp_rank_id == rank, slots, -1).astype(np.int32)
