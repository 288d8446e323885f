"""A pool whose transfers take modelled time.

``costed`` puts a ``CostedPool`` between the plugin and its backend, as ``simulator.faults`` does: by a backend name
that exists only inside the ``with`` block.  The real copy happens at once and is not counted.  A get holds the step
that asked for it.  A put of the step thread does so, too; one of the spill thread takes its place on the rank's link
(``cost_link``), and ``exists`` does not know its blocks until it is through.  Loading and storing do not slow each
other: a link works both ways.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.core import spill
from mindie_kvpool_plugin.core.fence import Fence
from mindie_kvpool_plugin.core.put_pace import PutPace
from mindie_kvpool_plugin.core.spill_queue import SpillQueue
from mindie_kvpool_plugin.options.pool_file import PoolFile, read_pool_file
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.pools import registry
from mindie_kvpool_plugin.pools.base import NOTHING, Answers, Elsewhere, PoolBackend, PoolWrapper, Role
from mindie_kvpool_plugin.pools.mooncake.limits import FORGOTTEN_S
from mindie_kvpool_plugin.simulator.cost import CALL_S, LOOKUP_S
from mindie_kvpool_plugin.simulator.cost_clock import SimulatedTime
from mindie_kvpool_plugin.simulator.cost_link import CostedFence, CostedPace, CostedQueue, Link, Put, is_step_thread
from mindie_kvpool_plugin.simulator.faults import is_alias, rank_of

COSTED = "costed"
"""The backend's name inside ``costed``."""

Trouble = Literal["killed", "frozen", "full"]
TROUBLES: dict[Trouble, str] = {
    "killed": "the master is dead: every call fails after DEAD_CALL_S",
    "frozen": "one of two peers hangs: who meets it first asks whether it lives; nothing is stored for a while",
    "full": "nothing more is stored",
}
DEAD_CALL_S = 4.3
"""Mooncake's own time until it gives a dead master up (ARCHITECTURE.md, Worst cases)."""
ASK_S = 0.8
"""For all peers together, when one is first met silent; it is asked again beside the step (the same)."""


class CostedPool(PoolWrapper):
    """A backend behind links.

    Args:
        inner: the real one.
        costed: what all clients of the pool share.
        link: its rank's; None for the scheduler's client.
    """

    def __init__(self, inner: PoolBackend, costed: Costed, link: Link | None) -> None:
        super().__init__(inner)
        self._costed = costed
        self._link = link

    @property
    def clock(self) -> Callable[[], float]:
        """Simulated time: the rank's, or everybody's latest for the scheduler."""
        return self._link.time.now if self._link is not None else lambda: self._costed.time.now_s

    @property
    def has_own_part(self) -> bool:
        """Whether it is modelled, and told."""
        own_part = self._link.time.costs.own_part if self._link is not None else None
        return own_part is not None and own_part.is_told

    def lie_elsewhere(self, keys: Sequence[str]) -> list[bool]:
        """Of each key; the question is part of the get's call."""
        return Answers(self._costed.lie_elsewhere(keys))

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """What is there now; the lookup's time passes for everybody."""
        time, costed = self._costed.time, self._costed
        if costed.has("killed"):
            self._hold(self._costed.lookup_budget_s)
            return Answers([False] * len(keys), trouble=TROUBLES["killed"])
        self._hold(LOOKUP_S)
        return [
            there and costed.is_listed(key, time.now_s)
            for key, there in zip(keys, self.inner.exists(keys), strict=True)
        ]

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Load, and let the time pass that it takes."""
        link, costed = self._link, self._costed
        if link is None or costed.has("killed"):
            self._hold(DEAD_CALL_S)
            return Answers([False] * len(keys), trouble=TROUBLES["killed"])
        comes = [costed.is_there(key, link.time.now()) for key in keys]
        if not all(comes) and costed.is_hanging():
            self._ask(link)
        rows = np.flatnonzero(comes)
        arrived = np.zeros(len(keys), dtype=np.bool_)
        with link.time.not_counted():
            if len(rows):
                arrived[rows] = self.inner.get([keys[row] for row in rows.tolist()], buffers.take(rows))
        costs, elsewhere = link.time.costs, int(np.sum(arrived & costed.lie_elsewhere(keys)))
        elsewhere_s = bool(elsewhere) * CALL_S + costs.elsewhere_is_slower * costs.get_s(elsewhere, link.block_tokens)
        link.time.spend(elsewhere_s + CALL_S + costs.get_s(int(arrived.sum()) - elsewhere, link.block_tokens))
        told = Elsewhere(elsewhere, elsewhere_s) if self.has_own_part else NOTHING
        return Answers(arrived.tolist(), elsewhere=told)

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """Store; the time passes on the link, and for the caller if that is the step."""
        link, costed = self._link, self._costed
        if link is None or costed.has("killed"):
            self._hold(DEAD_CALL_S)
            return Answers([False] * len(keys), trouble=TROUBLES["killed"])
        if costed.is_hanging():
            self._ask(link)
        if costed.has("full") or costed.is_hanging():
            return Answers([False] * len(keys), codes=["no_space"] * len(keys))
        costs = link.time.costs
        each_s = 0.0 if is_alias(keys[0]) else costs.put_s(1, link.block_tokens)
        if costs.own_part is not None and each_s:
            if link.own_blocks >= costs.own_part.blocks:
                costed.elsewhere.update(keys)
            link.own_blocks += len(keys)
        with link.time.not_counted():
            stored = self.inner.put(keys, buffers, groups)
        put = link.put([key for key, is_stored in zip(keys, stored, strict=True) if is_stored], each_s)
        costed.stored(put)
        if is_step_thread():
            link.time.spend(put.through_s - link.time.now())
        return stored

    def _ask(self, link: Link) -> None:
        """Whoever meets the peer first waits for an answer, be it a put of the spill thread."""
        if not link.has_asked:
            link.has_asked = True
            self._hold(ASK_S)

    def _hold(self, seconds: float) -> None:
        """Let the time pass for whoever waits for this call: a step, or the scheduler and so everybody."""
        if self._link is None:
            self._costed.time.reach(self._costed.time.now_s + seconds)
        elif is_step_thread():
            self._link.time.spend(seconds)


@dataclass
class Costed:
    """What all clients of one pool share.

    Attributes:
        elsewhere: keys that lie in no rank's own part.
        time: of all ranks.
        block_tokens: simulated tokens of a block.
        backend: the real backend.
        lookup_budget_s: the scheduler's.
        troubles: kind -> simulated seconds at which it begins.
    """

    time: SimulatedTime
    block_tokens: int
    backend: str
    lookup_budget_s: float
    troubles: Mapping[Trouble, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.elsewhere: set[str] = set()
        self._links: dict[int, Link] = {}
        self._on_the_way: dict[str, Put] = {}
        self._withdrawn: set[str] = set()
        self._safe: set[str] = set()  # stored once the peer that hangs was forgotten

    def link(self, rank: int) -> Link:
        """A rank's."""
        return self._links.setdefault(rank, Link(self.time.of(rank), self.block_tokens))

    def own_link(self) -> Link:
        """Of the rank whose thread asks."""
        return self.link(rank_of(threading.current_thread().name))

    def lie_elsewhere(self, keys: Sequence[str]) -> list[bool]:
        """Whether each of them lies in no rank's own part."""
        return [key in self.elsewhere for key in keys]

    def has(self, trouble: Trouble) -> bool:
        """Whether it has begun."""
        return self.time.now_s >= self.troubles.get(trouble, math.inf)

    def is_hanging(self) -> bool:
        """Whether a peer hangs that the master still takes for alive."""
        return self.has("frozen") and self.time.now_s < self.troubles["frozen"] + FORGOTTEN_S

    def is_there(self, key: str, now_s: float) -> bool:
        """Whether a get of a stored key delivers it."""
        return self.is_listed(key, now_s) and not self.is_lost(key)

    def is_lost(self, key: str) -> bool:
        """Whether a key lies with a peer that hangs or hung."""
        return self.has("frozen") and key not in self._safe and zlib.crc32(key.encode()) % 2 == 1

    def stored(self, put: Put) -> None:
        """These will be there, unless they are withdrawn."""
        if self.has("frozen"):
            self._safe.update(put.keys)
        self._withdrawn.difference_update(put.keys)
        self._on_the_way.update(dict.fromkeys(put.keys, put))

    def withdrawn(self, keys: Sequence[str]) -> None:
        """These never came."""
        self._withdrawn.update(keys)

    def is_listed(self, key: str, now_s: float) -> bool:
        """Whether a stored key is there already, and still."""
        if key in self._withdrawn or (self.is_lost(key) and not self.is_hanging()):
            return False
        put = self._on_the_way.get(key)
        if put is not None and put.through_s > now_s:
            return False
        self._on_the_way.pop(key, None)
        return True


_costed: dict[str, Costed] = {}


@contextlib.contextmanager
def costed(
    time: SimulatedTime,
    backend: str,
    pool_file: str,
    block_tokens: int,
    troubles: Mapping[Trouble, float] | None = None,
) -> Iterator[Costed]:
    """For the length of a ``with`` block ``backend`` COSTED with this pool file is ``backend`` behind modelled links.

    Args:
        time: moved by its transfers.
        backend: the real backend.
        pool_file: the pool file.
        block_tokens: simulated tokens of a block.
        troubles: what happens to the pool, and when.
    """
    options = read_pool_file(pool_file).options or KvPoolOptions()
    record = Costed(time, block_tokens, backend, options.lookup_budget_s, troubles or {})
    path = os.path.realpath(pool_file)
    _costed[path] = record
    registry.BACKENDS[COSTED] = replace(registry.BACKENDS[backend], module=__name__)
    # built on the inference thread, whose name tells the rank
    vars(spill).update(
        Fence=lambda count: CostedFence(count, record.own_link()),
        PutPace=lambda: CostedPace(record.own_link()),
        SpillQueue=lambda *queue: CostedQueue(record.own_link(), record.withdrawn, *queue),
    )
    try:
        yield record
    finally:
        vars(spill).update(Fence=Fence, PutPace=PutPace, SpillQueue=SpillQueue)
        del _costed[path]
        registry.BACKENDS.pop(COSTED, None)


def open_pool(options: object, pool_file: PoolFile, role: Role) -> CostedPool:
    """Open the real backend, behind its rank's link; for ``pools.registry``."""
    del options  # the real backend reads its own
    record = _costed[os.path.realpath(Path(pool_file.path))]
    inner = registry.open_pool(record.backend, pool_file, role)
    return CostedPool(inner, record, None if role == "scheduler" else record.own_link())
