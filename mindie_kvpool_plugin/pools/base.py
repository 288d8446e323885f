"""The contract of a pool backend.

Called by a worker's step and spill threads and, for ``exists``, by the scheduler process; every
backend is safe for several threads.  Before: keys are distinct, keys and buffers have equal length,
buffers lie in registered regions and stay valid until the call returns.  After: one ``bool`` per
key, in order.  A call that fails half way says so per key; backends do not raise for a pool's
failure, and when a call returns nobody reads or writes its buffers any more.
Only opening and registering raise (``errors.PoolError``, ``errors.ConfigError``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from mindie_kvpool_plugin.blocks import Buffers, Region

Role = Literal["worker", "scheduler"]
"""A worker owns part of the pool and moves bytes; a scheduler only asks what exists."""


class PoolBackend(ABC):
    """A store of immutable objects, each named completely by its key.

    Attributes:
        put_proof_s: seconds for which a successful put or get may be taken as proof that the pool
            still holds the key, so that the block is not offered again.
        answer_proof_s: seconds for which the scheduler may believe a "yes" of ``exists`` instead of
            asking again; 0 where asking costs nothing.
    """

    put_proof_s: ClassVar[float] = 0.0
    answer_proof_s: ClassVar[float] = 0.0

    @abstractmethod
    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Whether a get of each key could succeed now.  May take a lease on those that do."""

    @abstractmethod
    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """Store each block's bytes under its key; a key that exists keeps its bytes and counts as stored.

        Args:
            keys: [n] names.
            buffers: n blocks, read until the call returns.
            groups: [n] group names or None; members of a group are best kept and evicted together.
        """

    @abstractmethod
    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Fill each block's bytes; True only if every byte arrived.  A False block's bytes are undefined."""

    @abstractmethod
    def register(self, regions: Sequence[Region]) -> None:
        """Make device memory known to the transport, once, before the first put or get.

        Raises:
            PoolError: a region was refused.
        """

    @abstractmethod
    def close(self) -> None:
        """Wait for calls in flight, then let go of everything.  Later calls answer False."""
