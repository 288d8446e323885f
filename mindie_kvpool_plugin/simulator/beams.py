"""Which beams must come out of a search: all of it again, without blocks, workers and sampler.

A beam's score is the sum of its tokens' scores.  The best go on; one that the model ends is an answer, and the search
goes on without it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mindie_kvpool_plugin.simulator.oracle import EOS_TOKEN, SequenceTruth, offers


def reference_beams(
    prompt: Sequence[int], length: int, vocab_size: int, num_beams: int, eos_every: int = 0
) -> tuple[list[list[int]], list[list[int]]]:
    """The beams an uncorrupted model has after ``length`` tokens, and those that ended before; both sorted."""
    truth = SequenceTruth(len(prompt) + length)
    truth.restart(np.asarray(prompt, dtype=np.int64), 0)
    beams, ended = [(0, list[int](), truth)], list[list[int]]()
    for step in range(length):
        found = [
            (-(score + more), token, beam)
            for beam, (score, _, truth) in enumerate(beams)
            for token, more in offers(_key(truth), vocab_size, num_beams, eos_every if step else 0)
        ]
        ended += [[*beams[beam][1], token] for _, token, beam in found if token == EOS_TOKEN]
        best = sorted(offer for offer in found if offer[1] != EOS_TOKEN)[:num_beams]
        beams = [_longer(beams[beam], token, -cost) for cost, token, beam in best]
    answers = [answer for _, answer, _ in beams] if length else [[]] * num_beams
    return sorted(answers), sorted(ended)


def _key(truth: SequenceTruth) -> int:
    return int(truth.keys[truth.length - 1])


def _longer(beam: tuple[int, list[int], SequenceTruth], token: int, score: int) -> tuple[int, list[int], SequenceTruth]:
    truth = beam[2].fork()
    truth.extend(np.array([token], dtype=np.int64))
    return score, [*beam[1], token], truth
