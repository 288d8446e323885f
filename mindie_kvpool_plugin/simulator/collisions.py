"""Forged prompts: other tokens of the same vocabulary with the same 64-bit block hash in the host.

The host combines a block's hash with its next token as ``seed ^= token + C + (seed << 6) + (seed >> 2)``.
Changing a token in its lowest bits changes the seed in its lowest bits, and the next token can put that
right: the change it needs is about 64 times as large, so both stay in the vocabulary.  From there on the
two prompts have the same hash in that block and in every later one.  Whoever may choose prompts can do
this in microseconds; it is why blocks are never loaded by that hash.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mindie_kvpool_plugin.blocks import Tokens
from mindie_kvpool_plugin.core.block_keys import host_hash_chain

_MASK = (1 << 64) - 1
_GOLDEN_RATIO = 0x9E3779B97F4A7C15  # of the host's hash_combine
_NO_HASH = 0


def forge(tokens: Tokens, block_size: int, vocab_size: int) -> Tokens | None:
    """Other tokens with the same host hashes from the first block on, or None where none is near.

    Args:
        tokens: int64 [block_size or more].
        block_size: tokens per block, at least 2.
        vocab_size: forged tokens are below it.
    """
    values = tokens.tolist()
    for at in range(block_size - 1):
        seed = _seed(values[:at])
        for change in range(1, 64):
            second = _repair(seed, values[at], values[at] ^ change, values[at + 1])
            if 0 <= values[at] ^ change < vocab_size and 0 <= second < vocab_size:
                forged: Tokens = tokens.copy()
                forged[at : at + 2] = values[at] ^ change, second
                if host_hash_chain(forged, block_size) == host_hash_chain(tokens, block_size):
                    return forged
    return None


def forged_pairs(
    count: int, num_tokens: int, block_size: int, vocab_size: int, seed: int = 0
) -> Iterator[tuple[Tokens, Tokens]]:
    """``count`` pairs of prompts, different from their first block on, whose host hashes are all equal."""
    random = np.random.default_rng(seed)
    while count:
        tokens = random.integers(0, vocab_size, num_tokens, dtype=np.int64)
        forged = forge(tokens, block_size, vocab_size)
        if forged is not None:
            count -= 1
            yield tokens, forged


def _seed(values: list[int]) -> int:
    seed = _NO_HASH
    for value in values:
        seed = _combine(seed, value)
    return seed


def _repair(seed: int, one: int, other: int, follower: int) -> int:
    """The token after ``other`` that leads where ``follower`` leads after ``one``, as a signed number."""
    first, second = _combine(seed, one), _combine(seed, other)
    wanted = _combine(first, follower)
    value = ((wanted ^ second) - _GOLDEN_RATIO - (second << 6) - (second >> 2)) & _MASK
    return value - (1 << 64) if value >> 63 else value


def _combine(seed: int, value: int) -> int:
    return (seed ^ ((value + _GOLDEN_RATIO + (seed << 6) + (seed >> 2)) & _MASK)) or 1
