"""What every plugin offers to the manager."""

from abc import ABC, abstractmethod


class Plugin(ABC):
    def __init__(self) -> None:
        super().__init__()
        self.pad_token_id = -1

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
