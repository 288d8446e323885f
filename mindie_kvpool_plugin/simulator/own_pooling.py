"""The host's own pooling, for comparison: what a native pool client would hold.

The stand-in host's client (``host_tree``) holds nothing unless a run gives its pool file memory here.  Names are the
host's, ``<hash>_<rank>_<ranks>_<model>``; a block is stored by the prefill that computed it, before the step's answer
goes out, and loaded before a prefill that the scheduler promised it to.  Blocks filled by a decode are not stored.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mindie_kvpool_plugin.blocks import BlockIds, Buffers, Tokens
from mindie_kvpool_plugin.core.block_keys import host_hash_chain
from mindie_kvpool_plugin.host.device_memory import CacheLayout
from mindie_kvpool_plugin.pools.base import PoolBackend

OpenPool = Callable[[str], PoolBackend]
_opened: dict[str, OpenPool] = {}


@contextlib.contextmanager
def own_pool(pool_file: str, open_pool: OpenPool) -> Iterator[None]:
    """For the length of a ``with`` block the stand-in host's own clients of this pool file have memory.

    Args:
        pool_file: ``kvPoolConfig.configPath``.
        open_pool: "worker" or "scheduler" -> a client.
    """
    _opened[pool_file] = open_pool
    try:
        yield
    finally:
        del _opened[pool_file]


def open_client(pool_file: str, role: str) -> PoolBackend | None:
    """A client of the pool that was opened under this name; None: there is none, and nothing is held."""
    open_pool = _opened.get(pool_file)
    return open_pool(role) if open_pool is not None else None


class OwnBlocks:
    """One rank's blocks, by the host's names.

    Args:
        npu_cache: the cache tensors, a tuple per layer.
        suffix: of this rank's names.
        block_size: tokens per block.
    """

    def __init__(self, npu_cache: Any, suffix: str, block_size: int) -> None:
        self._layout = CacheLayout(npu_cache, int(npu_cache[0][0].shape[0]))
        self._suffix, self._block_size = suffix, block_size

    def names(self, tokens: Tokens, first: int, end: int) -> list[str]:
        """Of a prompt's blocks from ``first`` to ``end``."""
        chain = host_hash_chain(tokens[: end * self._block_size], self._block_size)
        return [f"{name}_{self._suffix}" for name in chain[first:end]]

    def buffers(self, block_ids: Sequence[int]) -> Buffers:
        """Their bytes."""
        ids: BlockIds = np.asarray(block_ids, dtype=np.int64)
        return self._layout.buffers(ids)
