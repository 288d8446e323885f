"""The host's scheduler: which sequences run next, in which blocks, and what the pool is asked for.

One thread, the engine's.  It owns the requests and the block manager.  Synchronous: the tokens of a
batch are known before the next is scheduled.  Asynchronous: the last token of a sequence is still on
the way and a placeholder stands for it; a sequence that has ended takes part in one batch more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from mindie_kvpool_plugin.host.adapters import extra_hash
from mindie_kvpool_plugin.simulator.block_manager import (
    NO_HASH,
    UNKNOWN_TOKEN,
    BlockManager,
    Clock,
    OutOfBlocksError,
)
from mindie_kvpool_plugin.simulator.requests import Batch, Limits, Request


class Scheduler:
    """Prefill first, then decode; finished sequences give their blocks back at the next turn.

    Attributes:
        manager: the block manager.
        cleanup: sequences the workers are still to be told about: aborted or preempted.
        preemptions: sequences that lost their blocks and were computed again.
    """

    def __init__(
        self,
        manager: BlockManager,
        limits: Limits,
        *,
        asynchronous: bool = False,
        lookup: Any = None,
        tp: int = 1,
        model_name: str = "",
        clock: str = "exact",
    ) -> None:
        self.manager = manager
        self.cleanup: list[int] = []
        self.preemptions = 0
        self._limits = limits
        self._asynchronous = asynchronous
        self._lookup = lookup
        self._tp, self._model_name = tp, model_name
        self._clock = Clock(clock)
        self._waiting: deque[Request] = deque()
        self._running: deque[Request] = deque()
        self._ended: list[Request] = []
        self._by_id: dict[int, Request] = {}

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, or has blocks to give back."""
        return not (self._waiting or self._running or self._ended)

    @property
    def running(self) -> list[Request]:
        """Sequences that have blocks and are not over."""
        return [request for request in self._running if request.state == "running"]

    def submit(self, request: Request) -> None:
        """Queue a request."""
        request.budget = request.max_tokens
        self._by_id[request.sequence_id] = request
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """The client went away: the request ends at the next turn."""
        if request.state == "running":
            request.state = "aborted"
            self._ended.append(request)

    def reclaim(self) -> list[Request]:
        """Take the blocks of ended sequences back; answers those sequences.  The first thing of a turn."""
        ended, self._ended = self._ended, []
        for request in ended:
            self._running.remove(request)
            self._free(request)
            if request.state == "aborted":
                self.cleanup.append(request.sequence_id)
            del self._by_id[request.sequence_id]
        return ended

    def schedule(self) -> Batch | None:
        """The next batch, with its blocks allocated and its hits counted; None if there is none.

        Raises:
            OutOfBlocksError: requests wait but can never run.
        """
        requests = self._schedule_prefill()
        is_prefill = bool(requests)
        requests = requests or self._schedule_decode()
        if not requests:
            if self._waiting and not self.cleanup:
                raise OutOfBlocksError(
                    f"request {self._waiting[0].sequence_id} needs more device blocks than there are"
                )
            return None
        now = self._clock.now()
        hits = [self._find_hits(request) if is_prefill else (0, 0) for request in requests]
        for request in requests:
            request.accessed = now
        self.manager.mark_computed()
        return Batch(is_prefill, requests, [hit[0] for hit in hits], [hit[1] for hit in hits])

    def sent(self, batch: Batch) -> None:
        """The workers have the batch: its tokens are on the way."""
        for request in batch.requests:
            request.outputs.append(UNKNOWN_TOKEN)
            self._running.append(request)

    def take(self, sequence_ids: Iterable[int], tokens: Iterable[int], reasons: Iterable[int]) -> None:
        """Tokens have arrived."""
        for sequence_id, token, reason in zip(sequence_ids, tokens, reasons, strict=True):
            request = self._by_id.get(sequence_id)
            if request is None or request.state != "running":
                continue
            request.outputs[request.outputs.index(UNKNOWN_TOKEN)] = token
            request.answer.append(token)
            if reason != 0:
                request.state = "finished"
                self._ended.append(request)

    def _schedule_prefill(self) -> list[Request]:
        limits, chosen, tokens = self._limits, list[Request](), 0
        while self._waiting and len(chosen) < limits.max_prefill_batch:
            request = self._waiting[0]
            if len(chosen) + len(self._running) >= limits.max_batch or not self._fits(request, chosen):
                break
            if chosen and tokens + request.num_tokens > limits.max_prefill_tokens:
                break
            self._waiting.popleft()
            request.table = self.manager.allocate(request.tokens, _extra_hash(request))
            request.state = "running"
            request.budget = request.max_tokens - len(request.answer)
            tokens += request.num_tokens
            chosen.append(request)
        return chosen

    def _fits(self, request: Request, chosen: list[Request]) -> bool:
        if not self._asynchronous:
            return -(-request.num_tokens // self.manager.block_size) <= self.manager.num_free
        # no preemption with placeholders: only start what can surely end
        promised = sum(self._worst_case(other) - len(other.blocks.block_ids) for other in (*self._running, *chosen))
        return promised + self._worst_case(request) <= self.manager.num_free

    def _worst_case(self, request: Request) -> int:
        return -(-(len(request.prompt) + request.max_tokens + 2) // self.manager.block_size)

    def _schedule_decode(self) -> list[Request]:
        chosen, postponed = list[Request](), deque[Request]()
        while self._running:
            request = self._running.popleft()
            if len(chosen) == self._limits.max_batch:
                postponed.append(request)
            elif self._make_room(request):
                table = request.blocks
                self.manager.append(table, request.outputs[table.filled - len(request.prompt) :])
                chosen.append(request)
        self._running = postponed
        return chosen

    def _make_room(self, request: Request) -> bool:
        """Preempt younger sequences, then ``request`` itself, until its next token has a place."""
        new = request.num_tokens - request.blocks.filled
        while self.manager.num_missing(request.blocks, new) > self.manager.num_free:
            if self._asynchronous:
                raise OutOfBlocksError("asynchronous scheduling cannot preempt: give the simulator more device blocks")
            victim = self._running.pop() if self._running else request
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        self._free(request)
        request.state = "waiting"
        self._waiting.appendleft(request)
        self.cleanup.append(request.sequence_id)

    def _free(self, request: Request) -> None:
        self.manager.free(request.blocks, request.accessed)
        request.table = None

    def _find_hits(self, request: Request) -> tuple[int, int]:
        """(leading blocks on the device, leading blocks on the device or in the pool)."""
        table = request.blocks
        computed = self.manager.num_computed(table)
        promised = computed + self._ask_pool(table.hashes[computed:])
        request.hbm_blocks += computed
        request.pool_blocks += promised - computed
        request.prompt_tokens += request.num_tokens
        return computed, promised

    def _ask_pool(self, hashes: list[int]) -> int:
        if self._lookup is None or not hashes:
            return 0
        # a block that is not full has no name: the host asks for hash 0
        keys = [f"{name}_{rank}_{self._tp}_{self._model_name}" for name in hashes for rank in range(self._tp)]
        answer = self._lookup.batch_exist(keys)
        if len(answer) != len(keys) or not all(type(found) is bool for found in answer):
            raise TypeError("batch_exist must answer one Python bool per key: the host casts nothing else")
        leading = next((index for index, found in enumerate(answer) if not found), len(answer))
        return leading // self._tp


def _extra_hash(request: Request) -> int:
    return extra_hash(request.adapter) if request.adapter else NO_HASH
