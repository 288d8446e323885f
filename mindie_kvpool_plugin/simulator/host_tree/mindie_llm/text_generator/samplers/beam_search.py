"""One step of a search in beams: the best continuations of all of them go on, under the ids there are."""

import numpy as np

ENDED = -1


def search(logits, scores, width, eos_token_ids, names):
    """What becomes of the beams of one request.

    Args:
        logits: [running beams, vocabulary].
        scores: [running beams], sums so far.
        width: beams that go on.
        eos_token_ids: tokens that end one.
        names: the beams' sequence ids, then those nobody has yet.

    Returns:
        (row, token, sequence id) of every ended beam (``ENDED``) and of those that go on, the best first.  A beam's
        best continuation keeps its id; the others take over the ids of beams that do not go on.
    """
    found = []
    for row, own in enumerate(logits):
        tokens = np.argpartition(-own, 2 * width)[: 2 * width]
        found += [(-(scores[row] + own[token]), int(token), row) for token in tokens.tolist()]
    found.sort()
    ended = [(row, token, ENDED) for _, token, row in found if token in eos_token_ids]
    best = [(row, token) for _, token, row in found if token not in eos_token_ids][:width]
    kept = {row for row, _ in best}
    spare = [name for row, name in enumerate(names) if row not in kept]
    going = []
    for row, token in best:
        going.append((row, token, names[row] if row in kept else spare.pop(0)))
        kept.discard(row)
    return ended + going
