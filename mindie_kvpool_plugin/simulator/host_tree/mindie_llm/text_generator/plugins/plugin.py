"""What every plugin offers to the manager."""

import dataclasses
from abc import ABC, abstractmethod

import numpy as np
import torch


class Plugin(ABC):
    def __init__(self) -> None:
        super().__init__()
        self.pad_token_id = -1

    def with_guesses(self, model_inputs, known, guesses, to_slots):
        """Inputs of rows that see different things, and a mask that says what.

        Args:
            model_inputs: of a decode; context_length says how many tokens each sequence has.
            known: per sequence, the tokens that are computed (again), the last ones of its text.
            guesses: per sequence, guesses next to each other, each of which goes on from the last token.
            to_slots: block tables -> slots.

        Returns:
            The inputs, rows per sequence, and the mask float16 [rows, context], 0 where a row sees a token.
        """
        lengths = model_inputs.context_length.astype(np.int64)
        counts = np.array([len(t) + sum(map(len, g)) for t, g in zip(known, guesses, strict=True)], dtype=np.int64)
        begins = lengths - [len(tokens) for tokens in known]
        ends, ids, positions, slots = begins + counts, [], [], []
        mask = np.full((int(counts.sum()), int(ends.max())), np.finfo(np.float16).min, dtype=np.float16)
        row = 0
        for sequence, (tokens, own) in enumerate(zip(known, guesses, strict=True)):
            begin, length, at = int(begins[sequence]), int(lengths[sequence]), int(lengths[sequence])
            mask[row : row + len(tokens), :length] = np.triu(np.full((len(tokens), length), mask.min()), begin + 1)
            ids += tokens
            positions += range(begin, length)
            row += len(tokens)
            for guess in own:
                mask[row : row + len(guess), :length] = 0
                mask[row : row + len(guess), at : at + len(guess)] = np.triu(np.full((len(guess),) * 2, mask.min()), 1)
                ids += guess
                positions += range(length, length + len(guess))
                row, at = row + len(guess), at + len(guess)
            slots.append(to_slots(model_inputs.block_tables[sequence]).reshape(-1)[begin : int(ends[sequence])])
        inputs = dataclasses.replace(
            model_inputs,
            input_ids=np.array(ids, dtype=np.int64),
            position_ids=np.array(positions, dtype=np.int64),
            slots=np.concatenate(slots).astype(np.int32),
            context_length=ends.astype(np.int32),
            max_seq_len=int(ends.max()),
        )
        return inputs, counts.tolist(), torch.from_numpy(mask)

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
