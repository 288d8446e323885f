"""One rank's way to the pool in simulated time: puts one behind the other, and who waits for them.

What the spill thread puts takes its place behind the puts before it, as long as it takes on the link.  Until a block
is through, it may not be overwritten (``CostedFence``), it takes room in the spill queue (``CostedQueue``), and the
pool does not list it.  What has not begun may be withdrawn, and those behind it move up.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import BlockIds
from mindie_kvpool_plugin.core.fence import Fence
from mindie_kvpool_plugin.core.put_pace import PutPace
from mindie_kvpool_plugin.core.spill_queue import SpillQueue
from mindie_kvpool_plugin.simulator.cost import CALL_S
from mindie_kvpool_plugin.simulator.cost_clock import RankTime

Seconds = npt.NDArray[np.float64]

STEP_THREAD = "inference"
"""How its name begins (``simulator.engine``)."""


def is_step_thread() -> bool:
    """Whether a step waits for what this thread does."""
    return threading.current_thread().name.startswith(STEP_THREAD)


@dataclass(eq=False, slots=True)
class Put:
    """One call's blocks on their way, one after the other.

    Attributes:
        keys: their names; "": withdrawn.
        each_s: seconds of one.
        ends_s: float64 [keys], when each is through; set by ``place``.
        through_s: when all are.
        ids: int64 [keys], the blocks; -1: withdrawn.  Empty: not known, or no block is read for it.
    """

    keys: list[str]
    each_s: float
    ends_s: Seconds = field(default_factory=lambda: np.zeros(0))
    through_s: float = 0.0
    ids: BlockIds = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def place(self, begins_s: float) -> float:
        """It begins then; answers when it is through."""
        took_s = self.each_s * np.cumsum([bool(key) for key in self.keys])
        self.ends_s = begins_s + CALL_S + took_s
        self.through_s = float(self.ends_s[-1]) if len(self.keys) else begins_s + CALL_S
        return self.through_s

    def withdraw(self, block_ids: BlockIds, now_s: float) -> list[str]:
        """Give up what has not begun of these blocks; their names."""
        waiting = np.isin(self.ids, block_ids) & (self.ids >= 0)
        waiting &= self.ends_s[: len(self.ids)] - self.each_s > now_s
        rows = np.flatnonzero(waiting).tolist()
        gone = [self.keys[row] for row in rows]
        for row in rows:
            self.keys[row], self.ids[row] = "", -1
        return gone


@dataclass(eq=False)
class Link:
    """A rank's.

    Attributes:
        time: the rank's.
        block_tokens: simulated tokens of a block.
        has_asked: the peers were asked whether they live.
        own_blocks: that its rank has stored, the first ones in its own part of the pool.
    """

    time: RankTime
    block_tokens: int
    has_asked: bool = False
    own_blocks: int = 0
    _puts: deque[Put] = field(default_factory=deque)
    _new: list[Put] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)
    _seen_block_s: float = 0.0

    @property
    def seen_block_s(self) -> float:
        """What a block took that is through; 0: none is."""
        with self._lock:
            self._settle()
            return self._seen_block_s

    def ahead(self, block_ids: BlockIds) -> int:
        """Blocks not through yet, up to the last of these."""
        count = ahead = 0
        with self._lock:
            self._settle()
            now = self.time.now()
            for put in self._puts:
                waiting = (put.ids >= 0) & (put.ends_s[: len(put.ids)] > now)
                needed = np.flatnonzero(waiting & np.isin(put.ids, block_ids))
                if len(needed):
                    ahead = count + int(waiting[: needed[-1] + 1].sum())
                count += int(waiting.sum())
        return ahead

    @property
    def waiting_blocks(self) -> int:
        """Blocks whose put is not through."""
        with self._lock:
            self._settle()
            return sum(len(put.ids) and int((put.ids >= 0).sum()) for put in self._puts)

    def put(self, keys: Sequence[str], each_s: float) -> Put:
        """A put takes its place behind those before it."""
        put = Put(list(keys), each_s)
        with self._lock:
            self._settle()
            put.place(max(self.time.now(), self._puts[-1].through_s if self._puts else 0.0))
            self._puts.append(put)
            self._new.append(put)
        return put

    def reads(self, block_ids: BlockIds) -> None:
        """The puts since the last such call are of these blocks, in their order: their bytes, and their names."""
        with self._lock:
            new, self._new = self._new, []
            for put in new:
                if len(put.keys) == len(block_ids):
                    put.ids = np.array(block_ids, dtype=np.int64)

    def through_s(self, block_ids: BlockIds) -> float:
        """When nothing reads any of these blocks; 0: nothing does."""
        with self._lock:
            self._settle()
            ends_s = [put.ends_s[: len(put.ids)][np.isin(put.ids, block_ids)] for put in self._puts]
        return max((float(found.max(initial=0.0)) for found in ends_s), default=0.0)

    def withdraw(self, block_ids: BlockIds) -> list[str]:
        """Give up what has not begun of these blocks; the names of all that goes.  Those behind it move up."""
        gone: list[str] = []
        with self._lock:
            self._settle()
            now = self.time.now()
            begins_s = {id(put): put.through_s - CALL_S - put.each_s * sum(map(bool, put.keys)) for put in self._puts}
            at_s = 0.0
            for put in self._puts:
                gone += put.withdraw(block_ids, now)
                has_begun = begins_s[id(put)] <= now
                at_s = put.place(begins_s[id(put)] if has_begun else max(at_s, now))
        return gone

    def _settle(self) -> None:
        now = self.time.now()
        while self._puts and self._puts[0].through_s <= now:
            self._see(self._puts.popleft())
        if self._puts and len(self._puts[0].ends_s) and self._puts[0].ends_s[0] <= now:
            self._see(self._puts[0])

    def _see(self, put: Put) -> None:
        self._seen_block_s = put.each_s or self._seen_block_s


class CostedFence(Fence):
    """A fence that is closed until a spill is through in simulated time, too.

    Args:
        num_blocks: of the rank.
        link: the rank's.
    """

    def __init__(self, num_blocks: int, link: Link) -> None:
        super().__init__(num_blocks)
        self._link = link

    def open(self, block_ids: BlockIds) -> None:
        """The real spill reads them no more; the modelled one does until its put is through."""
        if not is_step_thread():
            self._link.reads(block_ids)
        super().open(block_ids)

    def is_open(self, block_ids: BlockIds) -> bool:
        """Whether no spill reads any of the blocks."""
        return super().is_open(block_ids) and self._left_s(block_ids) <= 0

    def ahead(self, block_ids: BlockIds) -> int:
        """Of the modelled reads; the real ones are done before the next step."""
        return self._link.ahead(block_ids)

    def wait(self, block_ids: BlockIds, timeout_s: float | None) -> bool:
        """Wait until no spill reads any of the blocks; False when the time ran out."""
        with self.changed:
            self.changed.wait_for(lambda: super(CostedFence, self).is_open(block_ids))
        left_s = self._left_s(block_ids)
        if left_s <= 0:
            return True
        waited_s = left_s if timeout_s is None else min(left_s, timeout_s)
        self._link.time.spend(waited_s)
        return waited_s == left_s

    def _left_s(self, block_ids: BlockIds) -> float:
        return self._link.through_s(block_ids) - self._link.time.now()


class CostedPace(PutPace):
    """What a plugin would have learned by now: of blocks that are through in simulated time.

    Args:
        link: the rank's.
    """

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def block_s(self) -> float:
        """Seconds that one more block takes of those this rank stores; 0: not known."""
        costs, size = self._link.time.costs, self._link.block_tokens
        return self._link.seen_block_s * costs.get_s(1, size) / costs.put_s(1, size)

    def fits(self, seconds: float) -> float:
        """How many blocks one put moves in that time; without end while that is not known."""
        each_s = self._link.seen_block_s
        return (seconds - CALL_S) / each_s if each_s else math.inf

    def until_s(self, num_blocks: int) -> float:
        """Seconds until so many blocks that wait are through; 0: none does, or it is not known."""
        return self._link.seen_block_s * num_blocks


class CostedQueue(SpillQueue):
    """A spill queue in which blocks wait until they are through in simulated time.

    Args:
        link: the rank's.
        withdrawn: told the names of what never gets to the pool.
        queue: what ``SpillQueue`` is given.
    """

    def __init__(self, link: Link, withdrawn: Callable[[Sequence[str]], None], *queue: Any) -> None:
        self._link, self._told = link, withdrawn
        super().__init__(*queue)

    def room(self, tokens_bytes: int, block_bytes: int) -> int:
        """Blocks that may still be queued; of those on the link the profile's bytes count."""
        costs, waiting = self._link.time.costs, self._link.waiting_blocks
        real_bytes = self._link.block_tokens * costs.scale * costs.profile.kv_bytes
        left = min(self._capacity_blocks, self._capacity_bytes // real_bytes) - waiting
        return min(super().room(tokens_bytes, block_bytes), max(0, left))

    def withdraw(self, block_ids: BlockIds) -> int:
        """Give up spills of these blocks that have not begun; how many they were."""
        blocks = super().withdraw(block_ids)
        gone = self._link.withdraw(block_ids)
        self._told(gone)
        return blocks + len(gone)
