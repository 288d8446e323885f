"""The contract of a pool backend.

Called by a worker's step and spill threads and, for ``exists``, by the scheduler process; every
backend is safe for several threads.  Before: keys are distinct, keys and buffers have equal length,
buffers lie in registered regions and stay valid until the call returns.  After: one ``bool`` per
key, in order.  A call that fails half way says so per key, and when it ends nobody reads or writes its
buffers any more.  "Not there" and "full" are ordinary answers; a call of which the pool's service or
transport failed returns ``Answers`` that say why.  What a backend's library raises may pass: backends
catch nothing but what they can put right.  ``guards`` stands around every backend, counts calls that
failed either way, and lets no exception of a put, get or exists through.
Opening and registering raise ``errors.PoolError`` and ``errors.ConfigError``.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Buffers, Region

Role = Literal["worker", "scheduler"]
"""A worker owns part of the pool and moves bytes; a scheduler only asks what exists."""


class Elsewhere(NamedTuple):
    """What of a get did not come from this process's own part of the pool.

    Attributes:
        blocks: that arrived from there.
        seconds: what its transfers took, whatever they brought.
    """

    blocks: int = 0
    seconds: float = 0.0

    def plus(self, other: Elsewhere) -> Elsewhere:
        """Of two gets together."""
        return Elsewhere(self.blocks + other.blocks, self.seconds + other.seconds)

    def at_most(self, blocks: int) -> Elsewhere:
        """Of a get of which only so many blocks are good, wherever the others came from."""
        return Elsewhere(min(self.blocks, blocks), self.seconds)


NOTHING = Elsewhere()


class Answers(list[bool]):
    """One bool per key, and what was wrong with the call as a whole.

    Attributes:
        trouble: why the call failed, for the log; None when the pool did its work.
        codes: of each key that failed, what the library answered: few different ones, for counting.
        elsewhere: of a get, where the pool has an own part.
    """

    def __init__(
        self,
        answers: Iterable[bool],
        trouble: str | None = None,
        codes: Sequence[str] = (),
        elsewhere: Elsewhere = NOTHING,
    ) -> None:
        super().__init__(answers)
        self.trouble = trouble
        self.codes = codes
        self.elsewhere = elsewhere


def answers(count: int, told: Sequence[bool]) -> npt.NDArray[np.bool_]:
    """What a guarded pool told of so many keys, as the walks use it: an answer of other keys says no of all."""
    found = np.array(told, dtype=np.bool_)
    return found if found.shape == (count,) else np.zeros(count, dtype=np.bool_)


def from_elsewhere(told: Sequence[bool]) -> Elsewhere:
    """What of a get came from elsewhere, as far as the pool told."""
    return told.elsewhere if isinstance(told, Answers) else NOTHING


class PoolBackend(ABC):
    """A store of immutable objects, each named completely by its key."""

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds, monotonic: what its calls take, and what they are weighed against, is measured by it.

        Only a pool of the simulator, whose transfers take modelled time, has another one than the machine's.
        """
        return time.monotonic

    @property
    def put_proof_s(self) -> float:
        """Seconds for which a successful put or get may be taken as proof that the pool still holds the key."""
        return 0.0

    @property
    def answer_proof_s(self) -> float:
        """Seconds for which the scheduler may believe a "yes" of ``exists`` without asking again; 0: asking is free."""
        return 0.0

    @property
    def is_available(self) -> bool:
        """Whether calls are worth preparing; False: every call would answer False at once."""
        return True

    @property
    def has_own_part(self) -> bool:
        """Whether part of the pool is this process's own memory, from which a get is faster than from elsewhere."""
        return False

    def lie_elsewhere(self, keys: Sequence[str]) -> list[bool]:
        """Whether a get of each key would not come from this process's own part; asked before a get, if it has one.

        Args:
            keys: [n] names, some of them perhaps more than once.

        Returns:
            ``Answers``, one bool per key; none at all if it could not be found out.
        """
        return Answers([False] * len(keys))

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

    def leave(self) -> None:  # noqa: B027 - most pools keep nothing of a process that ends
        """The process ends now: others are sent to none of its memory any more.

        Called at most once, from a thread of its own, while other calls are in flight; what they read and write stays
        where it is.  May take as long as the pool's service lets it wait: the process ends meanwhile.
        """

    @abstractmethod
    def close(self) -> None:
        """Wait for calls in flight, then let go of everything.  Later calls answer False."""


class PoolWrapper(PoolBackend):
    """A pool around another one: whatever a subclass does not change is the inner pool's, figures included.

    Args:
        inner: the pool inside.

    Attributes:
        inner: the pool inside; a subclass may replace it while calls are running.
    """

    def __init__(self, inner: PoolBackend) -> None:
        self.inner = inner

    @property
    def clock(self) -> Callable[[], float]:
        """The inner pool's."""
        return self.inner.clock

    @property
    def put_proof_s(self) -> float:
        """The inner pool's."""
        return self.inner.put_proof_s

    @property
    def answer_proof_s(self) -> float:
        """The inner pool's."""
        return self.inner.answer_proof_s

    @property
    def is_available(self) -> bool:
        """The inner pool's."""
        return self.inner.is_available

    @property
    def has_own_part(self) -> bool:
        """The inner pool's."""
        return self.inner.has_own_part

    def lie_elsewhere(self, keys: Sequence[str]) -> list[bool]:
        """The inner pool's answer."""
        return self.inner.lie_elsewhere(keys)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """The inner pool's answer."""
        return self.inner.exists(keys)

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """The inner pool's answer."""
        return self.inner.put(keys, buffers, groups)

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """The inner pool's answer."""
        return self.inner.get(keys, buffers)

    def register(self, regions: Sequence[Region]) -> None:
        """With the inner pool."""
        self.inner.register(regions)

    def leave(self) -> None:
        """Take the inner pool's memory out."""
        self.inner.leave()

    def close(self) -> None:
        """Close the inner pool."""
        self.inner.close()
