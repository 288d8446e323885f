"""Addresses of a 32k-token prompt's blocks in 61 layers of 2 segments, against a tensor view per block and segment.

And what a host of this kind spends on such a hit without any of it: a hash step per token in Python, a key
per block, a view per block and segment.  Both baselines are written here for the purpose.
"""

import numpy as np

from benchmarks import measure, parts
from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.host.device_memory import CacheLayout

LAYERS, SEGMENTS, BLOCKS = 61, 2, 256
WORD = (1 << 64) - 1


def views(tensors, ids):
    return [[segment[index].data_ptr() for layer in tensors for segment in layer] for index in ids]


def plain_hit(tensors, tokens, ids):
    seed, names = 0, []
    for at, token in enumerate(tokens.tolist(), 1):
        seed ^= (token + 0x9E3779B97F4A7C15 + (seed << 6) + (seed >> 2)) & WORD
        if at % parts.BLOCK_SIZE == 0:
            names.append(f"{seed}_0_8_DeepSeek-R1-W8A8")
    return names, views(tensors, ids)


def our_hit(layout, keys, tokens, ids):
    names = keys.data(block_keys.hex_digests(block_keys.digest_chain(tokens, parts.BLOCK_SIZE)))
    return names, layout.buffers(ids).addresses.tolist()


def rows():
    tensors = parts.cache(LAYERS, SEGMENTS, 2 * BLOCKS)
    layout = CacheLayout(tensors)
    ids = np.random.default_rng(0).permutation(2 * BLOCKS)[:BLOCKS].astype(np.int64)
    tokens = np.random.default_rng(1).integers(0, 150_000, BLOCKS * parts.BLOCK_SIZE)
    keys = block_keys.BlockKeys("default", "DeepSeek-R1-W8A8", "f" * 32, "0of8", parts.BLOCK_SIZE)
    names = ids.tolist()
    assert views(tensors, names) == layout.buffers(ids).addresses.tolist()
    taken = measure.interleaved(
        {
            "arrays": lambda: layout.buffers(ids),
            "lists": lambda: layout.buffers(ids).addresses.tolist(),  # noqa: PLW0108 - the call before it counts too
            "views": lambda: views(tensors, names),
            "plain": lambda: plain_hit(tensors, tokens, names),
            "ours": lambda: our_hit(layout, keys, tokens, ids),
        },
        rounds=11,
    )
    return [
        measure.faster("addresses of 256 blocks x 122 segments, against views", taken["arrays"], taken["views"], 80),
        measure.seen("the same as the lists Mooncake's binding takes", taken["lists"] * 1e6, "us"),
        measure.below("32k-token hit: digests, keys, addresses as lists, no I/O", taken["ours"], 1.5e-3),
        measure.faster("the same against hash per token and view per segment", taken["ours"], taken["plain"], 20),
    ]


if __name__ == "__main__":
    measure.main("bench_addresses", rows)
