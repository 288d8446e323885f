"""Draws tokens: the likeliest, in the prefill of a sequence group as many as it has sequences, or beams."""

import numpy as np

from mindie_llm.text_generator.samplers.beam_search import search
from mindie_llm.text_generator.utils.model_input import SamplingOutput


def sample(logits, metadata):
    if metadata.best_of_array is None and metadata.beam_width_array is None:
        return _output(logits.argmax(dim=-1).numpy(), metadata.all_sequence_ids, np.ones(len(logits), dtype=np.int64))
    picks, sizes, begin = [], [], 0  # a pick: (row, token, sequence id)
    for sequence_ids, reserved in zip(metadata.batch_sequence_ids, metadata.reserved_sequence_ids, strict=True):
        rows = range(begin, begin + len(sequence_ids))
        found = _draw(logits, metadata, rows, [*sequence_ids.tolist(), *reserved.tolist()])
        picks += found
        sizes.append(len(found))
        begin = rows.stop
    repeating, tokens, names = (np.array(values, dtype=np.int64) for values in zip(*picks, strict=True))
    output = _output(tokens, names, np.array(sizes))
    output.parent_sequence_ids = metadata.all_sequence_ids[repeating]
    output.repeating_indices = repeating
    output.logprobs = logits[repeating, tokens].double().numpy()
    return output


def _draw(logits, metadata, rows, names):
    """Of one request: its rows, and the ids of its sequences, the running ones first."""
    width = 0 if metadata.beam_width_array is None else int(metadata.beam_width_array[rows[0]])
    if width:
        scores = metadata.cumulative_logprobs[rows.start : rows.stop]
        found = search(logits[rows.start : rows.stop].double().numpy(), scores, width, metadata.eos_token_ids, names)
        return [(rows.start + row, token, name) for row, token, name in found]
    count = 1 if metadata.best_of_array is None else int(metadata.best_of_array[rows[0]])
    ranked = logits[rows.start : rows.stop].argsort(dim=-1, descending=True)[:, :count].tolist()
    return [
        (row, token, name)
        for row, own in zip(rows, ranked, strict=True)
        for token, name in zip(own, names[row - rows.start :], strict=False)
    ]


def _output(tokens, sequence_ids, group_sizes):
    ends = np.cumsum(group_sizes).tolist()
    return SamplingOutput(
        sequence_ids=sequence_ids,
        token_ids=tokens.astype(np.int64),
        num_new_tokens=np.ones(len(tokens), dtype=np.int64),
        parent_sequence_ids=sequence_ids,
        group_indices=list(zip([0, *ends[:-1]], ends, strict=True)),
    )
