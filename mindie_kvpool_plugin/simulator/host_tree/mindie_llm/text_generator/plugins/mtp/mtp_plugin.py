"""mtp: a decode computes the last token and the drafts behind it, and answers one token more than drafts were right.

Asynchronous, the inputs of a sequence whose tokens are on the way are made as if none had come, and filled in later.
"""

import dataclasses

import numpy as np
import torch

from mindie_llm.text_generator.plugins.plugin import Plugin


class MtpPlugin(Plugin):
    def __init__(self, generator_backend, kvcache_settings, infer_context, plugin_data_param, **kwargs):
        super().__init__()
        self.pad_token_id = 0
        self.infer_context = infer_context
        self.plugin_data_param = plugin_data_param
        self.num_speculative_tokens = kwargs["num_speculative_tokens"]
        self.max_seq_len = kwargs["max_seq_len"]
        self.width = 1 + self.num_speculative_tokens
        self.input_metadata = None
        self.handles = None

    def model_inputs_update(self, model_inputs, input_metadata, sampling_metadata, cache_ids, input_len_mask, **kwargs):
        data = self.plugin_data_param
        data.mtp_model_inputs = data.hidden_states = None
        self.handles = cache_ids
        if input_metadata.is_prefill:
            if input_metadata.prefill_block_rank_id is not None:
                for handle, ranks in zip(cache_ids, input_metadata.prefill_block_rank_id, strict=True):
                    self.infer_context.set_mtp_seq_block_rank_id(handle, len(ranks), ranks)
            return model_inputs, (None, None)
        hit_mask = kwargs.get("hit_mask")
        is_waiting = np.zeros(len(cache_ids), dtype=np.bool_) if hit_mask is None else hit_mask
        data.mtp_model_inputs = self._draft_inputs(model_inputs, cache_ids, is_waiting)
        hidden = self.infer_context.get_mtp_hidden_states(cache_ids)[:, : self.width]
        data.hidden_states = hidden.reshape(-1, hidden.shape[-1])
        return self._main_inputs(model_inputs), ([self.width] * len(cache_ids), None)

    def fill_in_model_result(self, model_inputs, model_kwargs, before, hit_mask, rows):
        """The tokens came: put them into the inputs of the sequences ``hit_mask`` that stood at ``rows`` before."""
        output, drafts = before.sampling_output, model_kwargs["sub_model_inputs"]
        counts, per_token = output.num_new_tokens[rows], np.repeat(hit_mask, self.width)
        tokens = np.zeros((len(rows), self.width), dtype=np.int64)
        tokens[:, : output.token_ids.shape[1]] = output.token_ids[rows]
        drafts.input_ids[per_token] = tokens.reshape(-1)
        drafts.prefill_head_indices[hit_mask] -= self.width - counts
        # a prefill has one hidden state per sequence
        per_sequence = 1 if before.input_metadata.is_prefill else self.width
        hidden = before.result[1].reshape(-1, per_sequence, 1)[rows]
        model_kwargs["hidden_states"].view(-1, self.width, 1)[torch.from_numpy(hit_mask), :per_sequence] = hidden
        model_inputs.position_ids[per_token] += np.repeat(counts, self.width).astype(np.int32)
        model_inputs.context_length[hit_mask] += counts.astype(np.int32)
        model_inputs.max_seq_len = int(model_inputs.context_length.max())
        model_inputs.slots[per_token] = self._slots(
            model_inputs.block_tables[hit_mask],
            model_inputs.context_length[hit_mask] - self.width,
            self.width,
            self.handles[hit_mask],
        )
        model_inputs.input_ids[np.flatnonzero(hit_mask) * self.width] = tokens[np.arange(len(rows)), counts - 1]

    def sample_preprocess(self, logits, result, sampling_metadata, input_metadata):
        self.input_metadata = input_metadata
        if not sampling_metadata.is_prefill:
            repeated = np.repeat(sampling_metadata.all_sequence_ids, self.width)
            sampling_metadata.all_sequence_ids = repeated
        return result[0]

    def plugin_verify(self, sampling_output, cache_ids, result):
        sampling_output.repeating_indices = np.arange(len(cache_ids))
        if self.input_metadata.is_prefill:
            return
        context = self.infer_context
        drafts = result[2].numpy().reshape(len(cache_ids), -1)
        found = sampling_output.token_ids.reshape(len(cache_ids), self.width)
        accepted = np.cumprod(drafts == found[:, :-1], axis=1).sum(axis=1)
        left = np.minimum(
            self.input_metadata.batch_max_output_lens - context.get_output_len_count(cache_ids),
            self.max_seq_len - context.get_seq_lens(cache_ids),
        )
        counts = np.minimum(1 + accepted, np.maximum(left, 1)).tolist()
        rows = [np.arange(row * self.width, row * self.width + count) for row, count in enumerate(counts)]
        self.reshape_speculative_outputs(sampling_output, rows)

    def plugin_cache_update(self, cache_ids, sampling_output, la_cache_input, is_prefill=False):
        width = 1 if is_prefill else self.width
        hidden = la_cache_input[0][1].reshape(len(cache_ids), width, -1)
        self.infer_context.set_mtp_last_token_num(cache_ids, sampling_output.num_new_tokens)
        self.infer_context.set_mtp_hidden_states_prefix(cache_ids, width, hidden)

    def plugin_cache_clear(self, cache_ids, finish_reason):
        pass

    def _main_inputs(self, model_inputs):
        rows, ahead = len(model_inputs.context_length), self.num_speculative_tokens
        input_ids = np.zeros((rows, self.width), dtype=np.int64)
        input_ids[:, 0] = model_inputs.input_ids
        begins = model_inputs.context_length - 1
        return dataclasses.replace(
            model_inputs,
            input_ids=input_ids.reshape(-1),
            position_ids=self._following(model_inputs.position_ids),
            slots=self._slots(model_inputs.block_tables, begins, self.width),
            context_length=model_inputs.context_length + ahead,
            max_seq_len=model_inputs.max_seq_len + ahead,
        )

    def _draft_inputs(self, model_inputs, cache_ids, is_waiting):
        context, rows = self.infer_context, len(cache_ids)
        counts = np.maximum(context.get_mtp_last_token_num(cache_ids), 1)
        # of a sequence whose tokens are on the way nobody knows how many: the first of them comes next
        back = np.where(is_waiting, 0, counts)
        begins = model_inputs.position_ids - back + 1
        input_ids = np.zeros((rows, self.width), dtype=np.int64)
        for row in np.flatnonzero(~is_waiting).tolist():
            length, count = int(context.get_seq_lens(cache_ids[row])), int(counts[row])
            input_ids[row, :count] = context.get_all_input_ids(cache_ids[row])[length - count : length]
        lengths = model_inputs.context_length - back + self.num_speculative_tokens
        heads = np.arange(rows) * self.width + np.where(is_waiting, self.width, counts) - 1
        return dataclasses.replace(
            model_inputs,
            input_ids=input_ids.reshape(-1),
            position_ids=self._following(begins),
            block_tables=model_inputs.block_tables.copy(),
            slots=self._slots(model_inputs.block_tables, begins - 1, 2 * self.num_speculative_tokens),
            context_length=lengths,
            max_seq_len=int(lengths.max()),
            prefill_head_indices=heads.astype(np.int32),
        )

    def _following(self, begins):
        return (begins[:, None] + np.arange(self.width)).reshape(-1).astype(np.int32)

    def _slots(self, tables, begins, count, handles=None):
        if self.infer_context.spcp_parallel_info.scp_size > 1:
            return self._own_slots(tables, begins, count, self.handles if handles is None else handles)
        slots = self.infer_context.block_table_to_slots(tables).reshape(len(tables), -1)
        return slots[np.arange(len(tables))[:, None], begins[:, None] + np.arange(count)].reshape(-1).astype(np.int32)

    def _own_slots(self, tables, begins, count, handles):
        """Where positions lie whose blocks are dealt out; -1: on another rank."""
        context = self.infer_context
        size, own, found = context.block_size, context.spcp_parallel_info.scp_rank, []
        for row, begin in enumerate(begins.tolist()):
            ranks, positions = context.get_mtp_seq_block_rank_id(handles[row]), np.arange(begin, begin + count)
            blocks = positions // size
            is_own = ranks == own
            block_ids = np.zeros(len(ranks), dtype=np.int64)
            block_ids[is_own] = tables[row][: np.count_nonzero(is_own)]
            slots = block_ids[blocks] * size + positions % size
            found.append(np.where(is_own[blocks], slots, -1))
        return np.concatenate(found).astype(np.int32)
