"""memory_decoding: a step computes the last token and a guess of what follows it, all of it where it stays."""

import dataclasses

import numpy as np

from mindie_llm.text_generator.plugins.plugin import Plugin


class MemoryDecodingPlugin(Plugin):
    def __init__(self, generator_backend, kvcache_settings, infer_context, plugin_data_param, **kwargs):
        super().__init__()
        self.pad_token_id = 0
        self.model_runner = generator_backend.model_wrapper.model_runner
        self.infer_context = infer_context
        self.decoding_length, self.max_gen_len = kwargs["decoding_length"], kwargs["max_gen_len"]
        self.input_metadata = None
        self.drafts, self.q_lens = [], []

    def model_inputs_update(self, model_inputs, input_metadata, sampling_metadata, cache_ids, input_len_mask, **kwargs):
        if input_metadata.is_prefill:
            return model_inputs, input_len_mask
        names, context = input_metadata.all_sequence_ids.tolist(), self.infer_context
        left = self.max_gen_len - context.get_output_len_count(cache_ids)
        lengths = np.minimum(self.decoding_length, left) - 1  # the last token is one of them
        self.drafts = [
            self.model_runner.guess(name, length)[0]
            for name, length in zip(names, np.maximum(lengths, 0).tolist(), strict=True)
        ]
        last = [[token] for token in model_inputs.input_ids.tolist()]
        inputs, self.q_lens, mask = self.with_guesses(
            model_inputs, last, [[draft] for draft in self.drafts], context.block_table_to_slots
        )
        return _as_made_anew(inputs), (self.q_lens, mask)

    def sample_preprocess(self, logits, result, sampling_metadata, input_metadata):
        self.input_metadata = input_metadata
        if not sampling_metadata.is_prefill:
            sampling_metadata.all_sequence_ids = np.repeat(sampling_metadata.all_sequence_ids, self.q_lens)
        return logits

    def plugin_verify(self, sampling_output, cache_ids, result):
        sampling_output.repeating_indices = np.arange(len(cache_ids))
        if self.input_metadata.is_prefill:
            return
        left = self.input_metadata.batch_max_output_lens - self.infer_context.get_output_len_count(cache_ids)
        taken, begin = [], 0
        for row, draft in enumerate(self.drafts):
            rows = np.arange(begin, begin + 1 + len(draft))
            begin += len(rows)
            right = np.cumprod(np.array(draft) == sampling_output.token_ids[rows[: len(draft)]])
            taken.append(rows[: 1 + int(right.sum())][: max(1, int(left[row]))])
        self.reshape_speculative_outputs(sampling_output, taken)

    def plugin_cache_update(self, cache_ids, sampling_output, la_cache_input, is_prefill=False):
        pass

    def plugin_cache_clear(self, cache_ids, finish_reason):
        pass


def _as_made_anew(inputs):
    """The host leaves adapters and groups out of the inputs it makes here, and gets slots that are no whole numbers."""
    return dataclasses.replace(
        inputs,
        slots=inputs.slots.astype(np.float64),
        context_length=inputs.context_length.astype(np.int64),
        adapter_ids=None,
        dp_rank_ids=None,
        seq_lens=None,
    )
