"""Which sequences of a batch are finished, and why."""

import numpy as np

from mindie_llm.text_generator.utils.settings import ResponseConfig


class OutputFilter:
    def __init__(self, cache_config, tg_infer_context, async_inference=False):
        self.cache_config = cache_config
        self.tg_infer_context = tg_infer_context
        self.async_inference = async_inference

    def filter_finished_sequences(self, cache_ids, metadata, sampling_output):
        context, config = self.tg_infer_context, self.cache_config
        limits, ignore_eos = metadata.batch_max_output_lens, metadata.batch_ignore_eos
        if ignore_eos is not None:  # sent with prompts only, per request
            ignore_eos = np.repeat(ignore_eos, [len(ids) for ids in metadata.batch_sequence_ids])
        if sampling_output.repeating_indices is not None:
            cache_ids, limits = sampling_output.of_rows(cache_ids), sampling_output.of_rows(limits)
            ignore_eos = None if ignore_eos is None else sampling_output.of_rows(ignore_eos)
        reason = np.zeros_like(cache_ids)
        if self.async_inference:
            reason[context.get_once_end_flag(cache_ids)] = ResponseConfig.EOS
        last = sampling_output.token_ids[np.arange(len(cache_ids)), sampling_output.num_new_tokens - 1]
        ended = np.isin(last, np.atleast_1d(config.eos_token_id))
        if ignore_eos is not None:
            ended &= ignore_eos != True  # noqa: E712 - an array of True, False and None
        reason[ended] = ResponseConfig.EOS
        produced = context.get_output_len_count(cache_ids) + sampling_output.num_new_tokens
        too_long = context.get_seq_lens(cache_ids) + sampling_output.num_new_tokens >= config.max_seq_len
        reason[too_long] = ResponseConfig.REACH_MAX_SEQ_LEN
        reason[produced >= limits] = ResponseConfig.REACH_MAX_OUTPUT_LEN
        reason[produced >= config.max_gen_len] = ResponseConfig.REACH_MAX_OUTPUT_LEN
        if metadata.batch_last_prompt is not None:
            is_through = sampling_output.of_rows(metadata.batch_last_prompt)
            reason[~is_through] = ResponseConfig.CONTINUE  # a prompt that is not through cannot end
        finished = np.nonzero(reason)[0]
        return reason, (finished if len(finished) else None)
