"""The host scheduler's paged block manager: which device block holds which tokens.

Scheduler side, one thread.  It owns the block ids and knows tokens, never bytes.  Full blocks are
named by the host's 64-bit chained hash and shared between sequences; a block nobody references any
more keeps its content and its name until its id is needed for something else.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

import numpy as np

NO_HASH = 0
UNKNOWN_TOKEN = -1
"""Stands for a token that asynchronous scheduling has not seen yet."""

_WORD = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def chain_hash(previous: int, tokens: Sequence[int], extra: int = NO_HASH) -> int:
    """The host's name of a full block: its tokens after a prefix named ``previous``, for a LoRA adapter ``extra``.

    Not the plugin's own ``host_hash_chain`` on purpose: in reality the scheduler hashes in C++ and the worker in
    its own way, and a simulator that asked the plugin could not see the two disagree.
    """
    value = NO_HASH
    for item in (previous, *tokens, extra) if previous != NO_HASH else (*tokens, extra):
        value ^= ((item & _WORD) + _STEP + (value << 6) + (value >> 2)) & _WORD
        value = value or 1
    return value


class OutOfBlocksError(RuntimeError):
    """No free block, and no cached one to evict."""


@dataclass(slots=True)
class BlockTable:
    """The blocks of one sequence, in order.

    Attributes:
        block_ids: device block of every ``block_size`` tokens.
        hashes: the block's name, or ``NO_HASH`` while it is not full or not known.
        tail: tokens of the last block while it is not full.
        filled: tokens in all blocks.
        extra: mixed into every name; differs per LoRA adapter.
    """

    block_ids: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    filled: int = 0
    extra: int = NO_HASH


class Clock:
    """Time stamps that decide which cached block leaves first.

    ``exact`` counts; ``coarse`` is the host's float32 of seconds since 1970, whose neighbours are
    128 s apart: within two minutes all blocks are equally old and the deepest leave first.
    """

    def __init__(self, kind: str = "exact") -> None:
        if kind not in {"exact", "coarse"}:
            raise ValueError(f'clock is "{kind}", expected "exact" or "coarse"')
        self._kind = kind
        self._count = 0

    def now(self) -> float:
        """The current time stamp."""
        if self._kind == "coarse":
            return float(np.float32(int(time.time())))
        self._count += 1
        return float(self._count)


class BlockManager:
    """All device blocks of one scheduler.

    Attributes:
        num_blocks: blocks it may hand out.
        block_size: tokens of a block.
        evictions: times a cached block's id was given to other content.
        merges: times a block filled by decode turned out to exist already.
        on_evict: called with the name of content whose id is given to other content; None: nobody asks.
    """

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.evictions = 0
        self.merges = 0
        self.on_evict: Callable[[int], None] | None = None
        self._caching = caching
        self.clear()

    def clear(self) -> None:
        """Forget everything, as a restarted host does."""
        self._free: deque[int] = deque(range(self.num_blocks))
        self._references = [0] * self.num_blocks
        self._computed = [False] * self.num_blocks
        self._block_by_hash: dict[int, int] = {}
        self._promoted: list[int] = []
        self._planned: set[int] = set()  # named for a chunk that has not run yet
        # freed but cached: block id -> ticket of its entry in the heap (last access, -depth, ticket, block id, hash)
        self._ticket_by_cached: dict[int, int] = {}
        self._oldest: list[tuple[float, int, int, int, int]] = []
        self._tickets = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out, the cached ones included."""
        return len(self._free) + len(self._ticket_by_cached)

    @property
    def num_used(self) -> int:
        """Blocks somebody holds."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks nobody references that still keep their content."""
        return len(self._ticket_by_cached)

    def num_missing(self, table: BlockTable, new_tokens: int) -> int:
        """Blocks that appending ``new_tokens`` to ``table`` takes."""
        return -(-(table.filled + new_tokens) // self.block_size) - len(table.block_ids)

    def allocate(self, tokens: Sequence[int], extra: int = NO_HASH) -> BlockTable:
        """Blocks for a prompt; full blocks that are known are shared."""
        table = BlockTable(extra=extra)
        size = self.block_size
        num_full = len(tokens) // size
        previous = NO_HASH
        for index in range(num_full):
            previous = chain_hash(previous, tokens[index * size : (index + 1) * size], extra)
            name = previous if self._caching else NO_HASH
            table.block_ids.append(self.place(name))
            table.hashes.append(name)
        if len(tokens) > num_full * size:
            table.block_ids.append(self._take())
            table.hashes.append(NO_HASH)
            table.tail = list(tokens[num_full * size :])
        table.filled = len(tokens)
        return table

    def append(self, table: BlockTable, tokens: Sequence[int]) -> None:
        """Give decoded tokens their place; a block that gets full is named and may be merged with an equal one."""
        for token in tokens:
            self.reserve(table, 1)
            table.tail.append(token)
            table.filled += 1
            if len(table.tail) == self.block_size:
                self._fill(table)
                table.tail = []

    def reserve(self, table: BlockTable, num_tokens: int) -> None:
        """Blocks for so many tokens behind those in place."""
        for _ in range(self.num_missing(table, num_tokens)):
            table.block_ids.append(self._take())
            table.hashes.append(NO_HASH)

    def free(self, table: BlockTable, accessed: float) -> None:
        """Give back all blocks of a sequence; named ones stay cached, last used at ``accessed``."""
        for index, block_id in enumerate(table.block_ids):
            self.release(block_id, table.hashes[index], accessed, index)
        table.block_ids, table.hashes, table.tail, table.filled = [], [], [], 0

    def move(self, table: BlockTable, target: BlockManager, accessed: float) -> list[tuple[int, int]]:
        """Give back all blocks of a sequence here and take as many of ``target``, whose they are from then on.

        Blocks with a name stay cached here, and are looked up there.

        Returns:
            (id here, id there) of every block.
        """
        before = list(table.block_ids)
        for index, block_id in enumerate(before):
            self.release(block_id, table.hashes[index], accessed, index)
        table.block_ids = [target.place(name) for name in table.hashes]
        return list(zip(before, table.block_ids, strict=True))

    def num_computed(self, table: BlockTable) -> int:
        """Leading blocks of ``table`` whose KV is on the device."""
        count = 0
        for block_id, name in zip(table.block_ids, table.hashes, strict=True):
            if name == NO_HASH or not self._computed[block_id]:
                break
            count += 1
        return count

    def mark_computed(self, block_ids: Container[int] | None = None) -> None:
        """Take newly named blocks for computed.  The host does so when a batch is scheduled, before it runs.

        Args:
            block_ids: only these, the others will be computed later; None: all.
        """
        done = [block_id for block_id in self._promoted if block_ids is None or block_id in block_ids]
        for block_id in done:
            self._computed[block_id] = True
        self._planned = set(self._promoted).difference(done)
        self._promoted = [block_id for block_id in self._promoted if block_id in self._planned]

    def check_integrity(self) -> None:
        """Every id is exactly one of free, cached and referenced, and every name points to a block that has it.

        Raises:
            RuntimeError: it is not so.
        """
        free, cached = set(self._free), set(self._ticket_by_cached)
        used = {block_id for block_id, count in enumerate(self._references) if count > 0}
        if len(free) != len(self._free) or free & cached or free & used or cached & used:
            raise RuntimeError("a block id is in two places")
        if len(free) + len(cached) + len(used) != self.num_blocks:
            raise RuntimeError("a block id was lost")
        named = set(self._block_by_hash.values())
        if len(named) != len(self._block_by_hash) or named & free or not cached <= named:
            raise RuntimeError("the cached names do not match the blocks")

    def place(self, name: int) -> int:
        """A block for content with this name: the one that has it, or a new one."""
        known = self._block_by_hash.get(name) if name != NO_HASH else None
        if known is not None:
            self._share(known)
            return known
        block_id = self._take()
        if name != NO_HASH:
            self._promote(name, block_id)
        return block_id

    def release(self, block_id: int, name: int, accessed: float, index: int) -> None:
        """Give back one block of a sequence, its ``index``-th."""
        self._references[block_id] -= 1
        if self._references[block_id] < 0:
            raise RuntimeError(f"block {block_id} was freed twice")
        if self._references[block_id] == 0:
            self._retire(block_id, name, accessed, index)

    def _take(self) -> int:
        block_id = self._free.popleft() if self._free else self._evict()
        self._references[block_id] = 1
        self._computed[block_id] = False
        return block_id

    def _evict(self) -> int:
        while self._oldest:
            _, _, ticket, block_id, name = heapq.heappop(self._oldest)
            if self._ticket_by_cached.get(block_id) == ticket:
                del self._ticket_by_cached[block_id]
                del self._block_by_hash[name]
                self.evictions += 1
                if self.on_evict is not None:
                    self.on_evict(name)
                return block_id
        raise OutOfBlocksError("no device block is free and none can be evicted")

    def _share(self, block_id: int) -> None:
        self._references[block_id] += 1
        if self._references[block_id] == 1:
            del self._ticket_by_cached[block_id]
            self._computed[block_id] = True

    def _promote(self, name: int, block_id: int) -> None:
        self._block_by_hash[name] = block_id
        self._promoted.append(block_id)

    def _fill(self, table: BlockTable) -> None:
        # the host looks at the last token only: earlier placeholders go into the name as they are
        if not self._caching or table.tail[-1] == UNKNOWN_TOKEN:
            return
        index = table.filled // self.block_size - 1
        previous = table.hashes[index - 1] if index else NO_HASH
        if index and previous == NO_HASH:
            return
        name = chain_hash(previous, table.tail, table.extra)
        table.hashes[index] = name
        known = self._block_by_hash.get(name)
        own = table.block_ids[index]
        if known is None:
            self._promote(name, own)
            return
        if known in self._planned:
            table.hashes[index] = NO_HASH
            return
        self.merges += 1
        self._references[own] = 0
        self._free.append(own)
        table.block_ids[index] = known
        self._share(known)

    def _retire(self, block_id: int, name: int, accessed: float, index: int) -> None:
        self._computed[block_id] = False
        if name != NO_HASH and block_id in self._promoted:  # no batch filled it: there is nothing to keep
            self._promoted.remove(block_id)
            del self._block_by_hash[name]
            name = NO_HASH
        if name == NO_HASH:
            self._free.append(block_id)
            return
        self._tickets += 1
        self._ticket_by_cached[block_id] = self._tickets
        heapq.heappush(self._oldest, (accessed, -index, self._tickets, block_id, name))
