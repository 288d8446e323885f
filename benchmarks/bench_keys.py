"""The host's hash chain and our digest chain over a prompt of 32k tokens."""

import hashlib

import numpy as np

from benchmarks import measure
from mindie_kvpool_plugin.blocks import HashedTokens
from mindie_kvpool_plugin.core import block_keys

TOKENS, BLOCK_SIZE = 32_768, 128


def rows():
    tokens = np.random.default_rng(0).integers(0, 150_000, TOKENS)
    text = tokens.tobytes()
    notes = HashedTokens()
    keys = block_keys.BlockKeys("default", "DeepSeek-R1-W8A8", "f" * 32, "0of8", BLOCK_SIZE)
    digests = block_keys.digests_of(tokens, BLOCK_SIZE, notes)
    taken = measure.interleaved(
        {
            "hash": lambda: block_keys.host_hash_chain(tokens, BLOCK_SIZE),
            "twin": lambda: block_keys.host_hash_chain_twin(tokens, BLOCK_SIZE),
        },
        rounds=15,
        inner=5,
    ) | measure.interleaved(
        {
            "digest": lambda: block_keys.digest_chain(tokens, BLOCK_SIZE),
            "sha256": lambda: hashlib.sha256(text).digest(),
            "again": lambda: block_keys.digests_of(tokens, BLOCK_SIZE, notes),
            "names": lambda: keys.data(block_keys.hex_digests(digests)),
        },
        rounds=15,
    )
    return [
        measure.faster("host hash, 32k tokens, against its Python twin", taken["hash"], taken["twin"], 100),
        measure.at_most(
            "digest chain, 256 blocks, against one SHA-256 of the same bytes", taken["digest"], taken["sha256"], 3
        ),
        measure.faster(
            "digests of a sequence that was loaded, against hashing again", taken["again"], taken["digest"], 5
        ),
        measure.seen("data keys of 256 blocks", taken["names"] * 1e6, "us"),
    ]


if __name__ == "__main__":
    measure.main("bench_keys", rows)
