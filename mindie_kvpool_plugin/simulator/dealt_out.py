"""Context and sequence parallelism: the blocks of one sequence are dealt out to ranks.

Scheduler side.  As the host does it (block_table.cpp, AllocateBlocksForTokenIdsSmallRankFirst and AppendNewTokens;
self_attn_block_manager.cpp, GetAllrankComputedBlockNum and GetAllRankRemoteComputedBlockIds): a prompt's blocks go to
the ranks in turn, the last one to the last rank as soon as every rank has one; answers go on from there.  Each rank has
a block manager of its own; hits are counted per rank.  Blocks that answers fill get no name here: the host names them
after the rank's own block before, which no prompt's chain ever matches.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.simulator.block_manager import NO_HASH, BlockManager, BlockTable, chain_hash
from mindie_kvpool_plugin.simulator.pool_question import num_leading
from mindie_kvpool_plugin.simulator.requests import Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler

ROOMLESS = 1 << 40
"""More blocks than there are: a rank whose turn it is has none."""


@dataclass(slots=True)
class DealtTable(BlockTable):
    """The blocks of one sequence, in order of its tokens.

    Attributes:
        owners: the rank of every block.
        appended: the rank that was given a block for tokens to come, if the last turn did so.
    """

    owners: list[int] = field(default_factory=list)
    appended: int | None = None

    def of_rank(self, values: Sequence[int], rank: int) -> list[int]:
        """Those of one rank out of a value per block."""
        return [value for value, owner in zip(values, self.owners, strict=True) if owner == rank]

    def places_by_turns(self) -> npt.NDArray[np.int64]:
        """int64 [blocks], where each block stands when all of the first rank's come first, then the next one's."""
        places: npt.NDArray[np.int64] = np.argsort(np.argsort(self.owners, kind="stable"), kind="stable")
        return places

    def tokens_of(self, rank: int, block_size: int) -> int:
        """How many of its tokens lie on a rank."""
        held = [self.filled - index * block_size for index in range(len(self.owners))]
        return sum(max(0, min(block_size, tokens)) for tokens in self.of_rank(held, rank))

    def last_owner(self, block_size: int) -> int:
        """The rank that has its last token."""
        return self.owners[(self.filled - 1) // block_size]


class DealtBlockManager(BlockManager):
    """A block manager per rank, behind the interface of one.

    Args:
        num_ranks: that blocks are dealt out to.
        num_blocks: of each rank.
        block_size: tokens of a block.
        caching: whether equal prefixes share blocks.

    Attributes:
        parts: the ranks' own.
    """

    def __init__(self, num_ranks: int, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        self.parts = [BlockManager(num_blocks, block_size, caching=caching) for _ in range(num_ranks)]
        super().__init__(num_ranks * num_blocks, block_size, caching=caching)

    def clear(self) -> None:
        """Forget everything, as a restarted host does."""
        for part in self.parts:
            part.clear()

    @property
    def num_free(self) -> int:
        """Blocks that can surely be handed out: the fullest rank decides, and one rank may have two in a row."""
        return max(0, min(part.num_free for part in self.parts) * len(self.parts) - 1)

    @property
    def num_used(self) -> int:
        """Blocks somebody holds."""
        return sum(part.num_used for part in self.parts)

    def num_missing(self, table: BlockTable, new_tokens: int) -> int:
        """0 if the ranks whose turn it is have room for ``new_tokens`` more, ``ROOMLESS`` if not."""
        missing = -(-(table.filled + new_tokens) // self.block_size) - len(table.block_ids)
        turns = [self._next_owner(table, further) for further in range(missing)]
        fits = all(turns.count(rank) <= part.num_free for rank, part in enumerate(self.parts))
        return 0 if fits else ROOMLESS

    def allocate(self, tokens: Sequence[int], extra: int = NO_HASH) -> BlockTable:
        """Blocks for a prompt; full blocks that are known are shared."""
        table, size, previous = DealtTable(extra=extra), self.block_size, NO_HASH
        num_blocks, last = -(-len(tokens) // size), len(self.parts) - 1
        for index in range(num_blocks):
            held = tokens[index * size : (index + 1) * size]
            is_named = self._caching and len(held) == size
            previous = chain_hash(previous, held, extra) if is_named else NO_HASH
            is_last_rank = index == num_blocks - 1 and index > last
            self._give(table, last if is_last_rank else index % len(self.parts), previous)
        table.filled = len(tokens)
        return table

    def append(self, table: BlockTable, tokens: Sequence[int]) -> None:
        """Give decoded tokens their place."""
        for _ in tokens:
            if table.filled % self.block_size == 0:
                self._give(_dealt(table), self._next_owner(table), NO_HASH)
            table.filled += 1

    def reserve(self, table: BlockTable, num_tokens: int) -> None:
        """Blocks for so many tokens behind those in place, in turn."""
        dealt, known = _dealt(table), len(table.block_ids)
        while len(dealt.block_ids) * self.block_size < dealt.filled + num_tokens:
            self._give(dealt, self._next_owner(dealt), NO_HASH)
        dealt.appended = dealt.owners[-1] if len(dealt.block_ids) > known else None

    def free(self, table: BlockTable, accessed: float) -> None:
        """Give back all blocks of a sequence; named ones stay cached, last used at ``accessed``."""
        dealt = _dealt(table)
        for index, (block_id, name) in enumerate(zip(dealt.block_ids, dealt.hashes, strict=True)):
            self.parts[dealt.owners[index]].release(block_id, name, accessed, index)
        dealt.block_ids, dealt.hashes, dealt.owners, dealt.filled = [], [], [], 0

    def computed_per_rank(self, table: DealtTable) -> list[int]:
        """Leading blocks whose KV is on the devices: on each rank as many as in a prefix without holes."""
        own = [table.of_rank(table.block_ids, rank) for rank in range(len(self.parts))]
        names = [table.of_rank(table.hashes, rank) for rank in range(len(self.parts))]
        counts = [
            part.num_computed(BlockTable(ids, hashes)) for part, ids, hashes in zip(self.parts, own, names, strict=True)
        ]
        least, is_leading = min(counts), True
        for rank, count in enumerate(counts):
            is_leading = is_leading and count > least
            counts[rank] = least + is_leading
        return counts

    def mark_computed(self, block_ids: Container[int] | None = None) -> None:
        """Take all newly named blocks for computed."""
        for part in self.parts:
            part.mark_computed(block_ids)

    def check_integrity(self) -> None:
        """Every rank's blocks are exactly one of free, cached and referenced.

        Raises:
            RuntimeError: it is not so.
        """
        for part in self.parts:
            part.check_integrity()

    def _next_owner(self, table: BlockTable, further: int = 0) -> int:
        return (_dealt(table).owners[-1] + 1 + further) % len(self.parts)

    def _give(self, table: DealtTable, rank: int, name: int) -> None:
        table.block_ids.append(self.parts[rank].place(name))
        table.hashes.append(name)
        table.owners.append(rank)


class DealtScheduler(Scheduler):
    """Hits and room counted per rank."""

    manager: DealtBlockManager

    def _fits(self, request: Request, chosen: list[Request]) -> bool:
        if not self._asynchronous:
            return super()._fits(request, chosen)
        running = [*self._running, *chosen]
        return all(
            sum(self._worst_share(other) - _dealt(other.blocks).owners.count(rank) for other in running)
            + self._worst_share(request)
            <= part.num_free
            for rank, part in enumerate(self.manager.parts)
        )

    def _worst_share(self, request: Request) -> int:
        """Blocks it may need on one rank, which may have the prompt's last one out of turn."""
        return -(-self._worst_case(request) // len(self.manager.parts)) + 1

    def _find_hits(self, request: Request) -> tuple[list[int], list[int]]:
        """Per rank: leading blocks on the device, and on the device or in the pool."""
        table, ranks = _dealt(request.blocks), len(self.manager.parts)
        computed = self.manager.computed_per_rank(table)
        promised = list(computed)
        for further in range(self._leading_in_pool(table, computed)):
            promised[(sum(computed) + further) % ranks] += 1
        request.hbm_blocks += sum(computed)
        request.pool_blocks += sum(promised) - sum(computed)
        request.prompt_tokens += request.num_tokens
        if sum(promised) * self.manager.block_size == request.num_tokens:
            # something is left to compute: the rank of the last block gives it up (input_metadata_builder.py)
            promised[table.owners[-1]] -= 1
            computed[table.owners[-1]] = min(computed[table.owners[-1]], promised[table.owners[-1]])
        return computed, promised

    def _leading_in_pool(self, table: DealtTable, computed: list[int]) -> int:
        ranks = range(len(computed))
        names = [table.of_rank(table.hashes, rank) for rank in ranks]
        first = next((rank for rank in ranks if computed[rank] <= computed[-1]), 0)
        asked = [
            (names[rank][index], rank)
            for index in range(computed[first], len(names[0]))
            for rank in ranks
            if index < len(names[rank]) and (index > computed[first] or rank >= first)
        ]
        keys = [f"{name}_{rank}_{len(computed)}_{self._model_name}" for name, rank in asked]
        return num_leading(self._lookup, keys)


def _dealt(table: BlockTable) -> DealtTable:
    if not isinstance(table, DealtTable):
        raise TypeError("a block table without owners")
    return table
