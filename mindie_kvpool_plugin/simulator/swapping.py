"""Swap preemption: who has to make room goes to host memory, and comes back when there is room again.

Scheduler side.  As the host does it (fcfs_policy.cpp, Preempt and ApplyToSwappedQueue; cpu_npu_block_allocator.cpp,
Swap): all blocks of a sequence are given back on one side and as many are taken on the other, where named ones may
be found in that side's prefix cache.  So a sequence comes back to other device blocks, and into blocks that others
share.  The bytes move before the batch runs.
"""

from __future__ import annotations

from collections import deque

from mindie_kvpool_plugin.simulator.block_manager import BlockManager, BlockTable
from mindie_kvpool_plugin.simulator.requests import SWAP_IN, SWAP_OUT, Request, SwapDecision


class Swapper:
    """The requests in host memory.

    Args:
        device: the device blocks.
        host: the host blocks.
        max_per_turn: requests that may go out in one turn of the scheduler; 0: none ever.
        ahead: places behind its tokens that a request has blocks for, and needs when it comes back; the host forgets
            them when it counts, and its scheduler ends when there is no room for them.

    Attributes:
        host: the host blocks.
        waiting: requests in host memory, in the order in which they come back.
        blocks_out, blocks_in: blocks moved so far.
    """

    def __init__(self, device: BlockManager, host: BlockManager, max_per_turn: int, ahead: int = 0) -> None:
        self.host = host
        self.waiting: deque[Request] = deque()
        self.blocks_out = self.blocks_in = 0
        self._device = device
        self._max_per_turn = max_per_turn
        self._ahead = ahead
        self._out_this_turn = 0
        self._decisions: list[SwapDecision] = []

    def sibling(self) -> Swapper:
        """For other requests of the same device, with the same host blocks."""
        return Swapper(self._device, self.host, self._max_per_turn, self._ahead)

    @property
    def is_on(self) -> bool:
        """Whether anything may ever be swapped."""
        return self._max_per_turn > 0

    def begin_turn(self) -> None:
        """The next decode batch is scheduled."""
        self._out_this_turn = 0

    def decisions(self) -> list[SwapDecision]:
        """Take what must be moved before the next batch."""
        taken, self._decisions = self._decisions, []
        return taken

    def take_out(self, request: Request) -> bool:
        """Move a request to host memory if it may go there and fits."""
        if self._out_this_turn >= self._max_per_turn:
            return False
        if self._room_for(request) > self.host.num_free:
            return False
        self._out_this_turn += 1
        moved = self._move(SWAP_OUT, request.blocks, self._device, self.host, request.accessed)
        self.host.mark_computed()
        self.blocks_out += moved
        request.state = "swapped"
        self.waiting.append(request)
        return True

    def bring_in(self) -> Request | None:
        """Move the first request back to the device if it fits there."""
        if not self.waiting or self._room_for(self.waiting[0]) > self._device.num_free:
            return None
        request = self.waiting.popleft()
        self.blocks_in += self._move(SWAP_IN, request.blocks, self.host, self._device, request.accessed)
        request.state = "running"
        return request

    def _room_for(self, request: Request) -> int:
        ends = request.num_tokens + self._ahead
        return max(len(request.blocks.block_ids), -(-ends // self.host.block_size))

    def _move(self, kind: int, table: BlockTable, source: BlockManager, target: BlockManager, accessed: float) -> int:
        pairs = source.move(table, target, accessed)
        self._decisions += [(kind, before, after) for before, after in pairs]
        return len(pairs)
