"""Draws tokens: the likeliest, or in the prefill of a sequence group as many as it has sequences."""

import numpy as np

from mindie_llm.text_generator.utils.model_input import SamplingOutput


def sample(logits, metadata):
    if metadata.best_of_array is None:
        return _output(logits.argmax(dim=-1).numpy(), metadata.all_sequence_ids, np.ones(len(logits), dtype=np.int64))
    ranked = logits.argsort(dim=-1, descending=True).numpy()
    tokens, names = [], []
    rows = zip(metadata.all_sequence_ids, metadata.best_of_array, metadata.reserved_sequence_ids, strict=True)
    for row, (sequence_id, best_of, reserved) in enumerate(rows):
        tokens.extend(ranked[row, :best_of])
        names.extend([sequence_id, *reserved[: best_of - 1]])
    repeating = np.repeat(np.arange(len(logits)), metadata.best_of_array)
    output = _output(np.array(tokens), np.array(names, dtype=np.int64), metadata.best_of_array)
    output.parent_sequence_ids = metadata.all_sequence_ids[repeating]
    output.repeating_indices = repeating
    return output


def _output(tokens, sequence_ids, group_sizes):
    ends = np.cumsum(group_sizes).tolist()
    return SamplingOutput(
        sequence_ids=sequence_ids,
        token_ids=tokens.astype(np.int64),
        num_new_tokens=np.ones(len(tokens), dtype=np.int64),
        parent_sequence_ids=sequence_ids,
        group_indices=list(zip([0, *ends[:-1]], ends, strict=True)),
    )
