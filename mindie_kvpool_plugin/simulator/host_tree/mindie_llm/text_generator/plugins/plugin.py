"""What every plugin offers to the manager."""

from abc import ABC, abstractmethod

import numpy as np


class Plugin(ABC):
    def __init__(self) -> None:
        super().__init__()
        self.pad_token_id = -1

    def reshape_speculative_outputs(self, sampling_output, rows):
        """Of every sequence keep the tokens at these rows of the sampler's answer, padded to one length."""
        first, longest = [taken[0] for taken in rows], max(len(taken) for taken in rows)
        tokens = np.full((len(rows), longest), self.pad_token_id, dtype=np.int64)
        for index, taken in enumerate(rows):
            tokens[index, : len(taken)] = sampling_output.token_ids[taken]
        sampling_output.sequence_ids = sampling_output.sequence_ids[first]
        sampling_output.parent_sequence_ids = sampling_output.parent_sequence_ids[first]
        sampling_output.group_indices = [(index, index + 1) for index in range(len(rows))]
        sampling_output.token_ids = tokens
        sampling_output.num_new_tokens = np.array([len(taken) for taken in rows])

    @abstractmethod
    def model_inputs_update(self, model_inputs, input_metadata, sampling_metadata, cache_ids, input_len_mask, **kwargs):
        """Before the forward: may change the inputs; answers (model_inputs, input_len_mask)."""

    @abstractmethod
    def sample_preprocess(self, logits, result, sampling_metadata, input_metadata):
        """Between forward and sampling: answers the logits to sample from."""

    @abstractmethod
    def plugin_verify(self, sampling_output, cache_ids, result):
        """After sampling: may change the sampled tokens in place."""

    @abstractmethod
    def plugin_cache_update(self, cache_ids, sampling_output, la_cache_input, is_prefill=False):
        """Before the context takes the new tokens."""

    @abstractmethod
    def plugin_cache_clear(self, cache_ids, finish_reason):
        """After finished sequences left the context."""
