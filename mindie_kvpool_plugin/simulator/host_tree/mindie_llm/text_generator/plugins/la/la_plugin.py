"""la: a step computes the last token, several guesses of what follows, and a window in which guesses ripen.

The KV of the first guess lies where it stays.  If another one is right, the tokens it gave are computed again in the
next step.  What ripens is not played: the window's rows are computed and looked at by nobody.
"""

import numpy as np

from mindie_llm.text_generator.plugins.plugin import Plugin

WINDOW_TOKEN = 1  # begins texts, so no answer holds it


class LaPlugin(Plugin):
    def __init__(self, generator_backend, kvcache_settings, infer_context, plugin_data_param, **kwargs):
        super().__init__()
        self.pad_token_id = 0
        self.model_runner = generator_backend.model_wrapper.model_runner
        self.infer_context = infer_context
        self.length, self.num_guesses, self.window = kwargs["level"] - 1, kwargs["guess_set_size"], kwargs["window"]
        self.last_tokens = {}  # sequence -> what it was given last
        self.elsewhere = set()  # sequences whose last tokens have their KV where a guess had it
        self.input_metadata = None
        self.guesses, self.known, self.q_lens = [], [], []

    def model_inputs_update(self, model_inputs, input_metadata, sampling_metadata, cache_ids, input_len_mask, **kwargs):
        if input_metadata.is_prefill:
            return model_inputs, (None, input_len_mask[1])
        names = input_metadata.all_sequence_ids.tolist()
        self.known = [
            self._to_compute(name, int(token)) for name, token in zip(names, model_inputs.input_ids, strict=True)
        ]
        self.guesses = [self.model_runner.guess(name, self.length, self.num_guesses) for name in names]
        window = [[WINDOW_TOKEN]] * (self.length * self.window)
        rows = [own + window for own in self.guesses]
        inputs, self.q_lens, mask = self.with_guesses(
            model_inputs, self.known, rows, self.infer_context.block_table_to_slots
        )
        return inputs, (self.q_lens, mask)

    def sample_preprocess(self, logits, result, sampling_metadata, input_metadata):
        self.input_metadata = input_metadata
        if sampling_metadata.is_prefill:
            return logits
        counts = [1 + sum(map(len, own)) for own in self.guesses]
        begins = np.cumsum([0, *self.q_lens[:-1]]) + [len(tokens) - 1 for tokens in self.known]
        sampling_metadata.all_sequence_ids = np.repeat(sampling_metadata.all_sequence_ids, counts)
        return logits[np.concatenate([np.arange(b, b + count) for b, count in zip(begins, counts, strict=True)])]

    def plugin_verify(self, sampling_output, cache_ids, result):
        sampling_output.repeating_indices = np.arange(len(cache_ids))
        if self.input_metadata.is_prefill:
            return
        left = self.input_metadata.batch_max_output_lens - self.infer_context.get_output_len_count(cache_ids)
        taken, begin = [], 0
        for row, (name, own) in enumerate(
            zip(self.input_metadata.all_sequence_ids.tolist(), self.guesses, strict=True)
        ):
            rows = np.arange(begin, begin + 1 + sum(map(len, own)))
            begin += len(rows)
            branch, accepted = self._best(own, sampling_output.token_ids[rows])
            if accepted and branch:
                self.elsewhere.add(name)
            path = [0, *range(1 + branch * self.length, 1 + branch * self.length + accepted)]
            taken.append(rows[path][: max(1, int(left[row]))])
        self.reshape_speculative_outputs(sampling_output, taken)

    def plugin_cache_update(self, cache_ids, sampling_output, la_cache_input, is_prefill=False):
        names = sampling_output.sequence_ids.tolist()
        if is_prefill:
            self.elsewhere.difference_update(names)
        for row, name in enumerate(names):
            self.last_tokens[name] = sampling_output.token_ids[row, : sampling_output.num_new_tokens[row]].tolist()

    def plugin_cache_clear(self, cache_ids, finish_reason):
        for name in self.input_metadata.all_sequence_ids[np.flatnonzero(finish_reason)].tolist():
            self.last_tokens.pop(name, None)
            self.elsewhere.discard(name)

    def _to_compute(self, name, last):
        """The last token, and before it those whose KV lies elsewhere."""
        if name not in self.elsewhere:
            return [last]
        self.elsewhere.discard(name)
        return self.last_tokens[name]

    def _best(self, guesses, found):
        """The first of the best guesses, and how many of its tokens are right."""
        best = (0, 0)
        for branch, guess in enumerate(guesses):
            answers = [found[0], *found[1 + branch * self.length : branch * self.length + self.length]]
            accepted = 0
            while accepted < len(guess) and guess[accepted] == answers[accepted]:
                accepted += 1
            best = (branch, accepted) if accepted > best[1] else best
        return best
