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
from mindie_kvpool_plugin.simulator.pool_question import leading_hits
from mindie_kvpool_plugin.simulator.requests import Batch, Limits, Request, Sequence
from mindie_kvpool_plugin.simulator.sequence_groups import branch, place_children
from mindie_kvpool_plugin.simulator.swapping import Swapper


class Scheduler:
    """Prefill first, then decode; finished sequences give their blocks back at the next turn.

    Attributes:
        manager: the block manager.
        swapper: the requests in host memory.
        cleanup: sequences the workers are still to be told about: aborted or preempted.
        forgotten: sequences that no later batch will name.
        preemptions: times a request had to make room.
        aborted_groups: of these, requests of several sequences: they end.
        copied_blocks: blocks copied for children and beams.
        moved_beams: times a running beam went on from another one's history.
        is_one_of_several: others hand out the same blocks, so what does not fit may fit later.
    """

    is_one_of_several = False

    def __init__(
        self,
        manager: BlockManager,
        limits: Limits,
        *,
        asynchronous: bool = False,
        lookup: Any = None,
        tp: int = 1,
        model_name: str = "",
        clock: str | Clock = "exact",
        swapper: Swapper | None = None,
    ) -> None:
        self.manager = manager
        self.swapper = swapper or Swapper(manager, BlockManager(0, manager.block_size), 0)
        self.cleanup: list[int] = []
        self.forgotten: list[int] = []
        self.preemptions = self.aborted_groups = self.copied_blocks = self.moved_beams = 0
        self._limits = limits
        self._asynchronous = asynchronous
        self._lookup = lookup
        self._tp, self._model_name = tp, model_name
        self._clock = Clock(clock) if isinstance(clock, str) else clock
        self._waiting: deque[Request] = deque()
        self._running: deque[Request] = deque()
        self._over: list[tuple[Request, Sequence]] = []
        self._ended: list[Request] = []
        self._by_id: dict[int, tuple[Request, Sequence]] = {}

    @property
    def each(self) -> list[Scheduler]:
        """The schedulers it consists of."""
        return [self]

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, or has blocks to give back."""
        return not (self._waiting or self._running or self.swapper.waiting or self._over or self._ended)

    @property
    def running(self) -> list[Request]:
        """Requests that have device blocks and are not over."""
        return [request for request in self._running if request.state == "running"]

    @property
    def can_prefill(self) -> bool:
        """Whether the next prompt fits."""
        return bool(self._waiting) and self._fits(self._waiting[0], [])

    @property
    def has_candidates(self) -> bool:
        """Whether a request waits, runs, or is in host memory."""
        return bool(self._waiting or self._running or self.swapper.waiting)

    def knows(self, sequence: Sequence) -> bool:
        """Whether a sequence is one of its requests'."""
        return sequence.sequence_id in self._by_id

    def submit(self, request: Request) -> None:
        """Queue a request."""
        request.budget = request.max_tokens
        for sequence in request.samples:
            self._by_id[sequence.sequence_id] = (request, sequence)
        self._waiting.append(request)

    def abort(self, request: Request) -> None:
        """The client went away: the request ends at the next turn."""
        if request.state not in {"finished", "aborted"}:
            request.state = "aborted"
            for sequence in request.live:
                self._end(request, sequence)

    def reclaim(self) -> list[Request]:
        """Take the blocks of ended sequences back; answers requests that ended.  The first thing of a turn."""
        over, self._over = self._over, []
        for request, sequence in over:
            self._free(request, sequence)
            self.forgotten.append(sequence.sequence_id)
            if request.state == "aborted":
                self.cleanup.append(sequence.sequence_id)
        ended, self._ended = self._ended, []
        for request in ended:
            self._remove(request)
        return ended

    def stop(self) -> list[Request]:
        """End everything at once, without a word to the workers: the device has failed."""
        stopped = [*self._running, *self._waiting, *self.swapper.waiting]
        for request in stopped:
            self.abort(request)
        ended = self.reclaim()
        self.swapper.decisions()
        self.cleanup.clear()
        return ended

    def schedule(self, wants_prefill: bool | None = None) -> Batch | None:
        """The next batch, with its blocks allocated and its hits counted; None if there is none.

        Args:
            wants_prefill: only a batch of this kind; None: prefill first.

        Raises:
            OutOfBlocksError: requests wait but can never run.
        """
        requests = [] if wants_prefill is False else self._schedule_prefill()
        is_prefill = bool(requests)
        if not requests and not wants_prefill:
            requests = self._schedule_decode()
        if not requests:
            if wants_prefill is None:
                self.refuse_to_wait_for_ever()
            return None
        now = self._clock.now()
        hits = [self._find_hits(request) if is_prefill else (0, 0) for request in requests]
        for request in requests:
            for sequence in request.live:
                sequence.accessed = now
        self.manager.mark_computed()
        return Batch(
            is_prefill,
            requests,
            [hit[0] for hit in hits],
            [hit[1] for hit in hits],
            self._take_copies(requests),
            self.swapper.decisions(),
        )

    def sent(self, batch: Batch) -> None:
        """The workers have the batch: its tokens are on the way."""
        for request in batch.requests:
            self._expect_token(request)
        self._running.extend(batch.requests)

    def branch(self, samples: Iterable[tuple[int, int, int]]) -> None:
        """Beams go on from their parents' histories, as (id, id of the parent, token); the tokens are taken next."""
        for sequence_id, parent, token in samples:
            request, sequence = self._by_id.get(parent, (None, None))
            if request is not None and sequence is not None and request.is_beam_search:
                self.moved_beams += branch(sequence_id, token, sequence, request)

    def take(self, sequence_ids: Iterable[int], tokens: Iterable[int], reasons: Iterable[int]) -> None:
        """Tokens have arrived."""
        for sequence_id, token, reason in zip(sequence_ids, tokens, reasons, strict=True):
            request, sequence = self._by_id.get(sequence_id, (None, None))
            if request is None or sequence is None or sequence.is_over or token == UNKNOWN_TOKEN:
                continue
            sequence.receive(token)
            if reason != 0:
                self._end(request, sequence)

    def _expect_token(self, request: Request) -> None:
        for sequence in request.live:
            sequence.outputs.append(UNKNOWN_TOKEN)

    def _end(self, request: Request, sequence: Sequence) -> None:
        sequence.is_over = True
        self._over.append((request, sequence))
        if request.is_over and not request.live:
            request.state = "aborted" if request.state == "aborted" else "finished"
            self._ended.append(request)

    def _remove(self, request: Request) -> None:
        for queue in (self._running, self._waiting, self.swapper.waiting):
            if request in queue:
                queue.remove(request)
        for sequence in request.samples:
            del self._by_id[sequence.sequence_id]

    def refuse_to_wait_for_ever(self) -> None:
        """There is no batch; raise OutOfBlocksError if there will never be one."""
        if self.swapper.waiting and not self._running and not self._over:
            raise OutOfBlocksError("the only running sequence does not fit: give the simulator more device blocks")
        if self._waiting and not self.cleanup and not self._over:
            raise OutOfBlocksError(f"request {self._waiting[0].sequence_id} needs more device blocks than there are")

    def _take_copies(self, requests: list[Request]) -> list[tuple[int, int]]:
        copies = [pair for request in requests for pair in request.copies]
        self.copied_blocks += len(copies)
        for request in requests:
            request.copies = []
        return copies

    def _schedule_prefill(self) -> list[Request]:
        limits, chosen, tokens = self._limits, list[Request](), 0
        if self.swapper.waiting:
            return chosen
        width = sum(request.width for request in self._running)
        while self._waiting and len(chosen) < limits.max_prefill_batch:
            request = self._waiting[0]
            if width + request.width > limits.max_batch or not self._fits(request, chosen):
                break
            if chosen and tokens + request.num_tokens > limits.max_prefill_tokens:
                break
            self._waiting.popleft()
            self._place(request)
            tokens += request.num_tokens
            width += request.width
            chosen.append(request)
        return chosen

    def _place(self, request: Request) -> None:
        request.table = self.manager.allocate(request.tokens, _extra_hash(request))
        request.state = "running"
        request.budget = request.max_tokens - len(request.answer)

    def _fits(self, request: Request, chosen: list[Request]) -> bool:
        if not self._asynchronous or self.swapper.is_on:
            return -(-request.num_tokens // self.manager.block_size) <= self.manager.num_free
        # no preemption with placeholders: only start what can surely end
        promised = sum(self._worst_case(other) - len(other.blocks.block_ids) for other in (*self._running, *chosen))
        return promised + self._worst_case(request) <= self.manager.num_free

    def _worst_case(self, request: Request) -> int:
        return -(-(len(request.prompt) + request.max_tokens + 2) // self.manager.block_size)

    def _schedule_decode(self) -> list[Request]:
        chosen, postponed, width, preemptions = list[Request](), deque[Request](), 0, self.preemptions
        self.swapper.begin_turn()
        while self._running:
            request = self._running.popleft()
            if width + request.width > self._limits.max_batch:
                postponed.append(request)
            elif self._make_room(request):
                self._append(request)
                chosen.append(request)
                width += request.width
        self._running = postponed
        if self.preemptions > preemptions:
            if not chosen and not self.is_one_of_several and (self._asynchronous or self.swapper.is_on):
                raise OutOfBlocksError("the only running sequence does not fit: give the simulator more device blocks")
        else:
            chosen = self._bring_back(chosen, width)
        return chosen

    def _bring_back(self, chosen: list[Request], width: int) -> list[Request]:
        """``chosen`` and who comes back from host memory, in order of arrival."""
        came = list[Request]()
        while width + len(came) < self._limits.max_batch and (request := self.swapper.bring_in()) is not None:
            self._append(request)
            came.append(request)
        return sorted(chosen + came, key=lambda request: request.sequence_id) if came else chosen

    def _append(self, request: Request) -> None:
        for sequence in request.live:
            self.manager.append(sequence.blocks, sequence.tokens[sequence.blocks.filled :])

    def _make_room(self, request: Request) -> bool:
        """Preempt younger requests, then ``request`` itself, until its next tokens have a place."""
        while not (place_children(request, self.manager) and self._can_append(request)):
            if self._asynchronous and not self.swapper.is_on:
                raise OutOfBlocksError("asynchronous scheduling cannot preempt: give the simulator more device blocks")
            victim = self._running.pop() if self._running else request
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _can_append(self, request: Request) -> bool:
        missing = sum(self.manager.num_missing(s.blocks, s.num_tokens - s.blocks.filled) for s in request.live)
        return missing <= self.manager.num_free

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        if not request.children and self.swapper.take_out(request):
            return
        self.cleanup.append(request.sequence_id)
        for sequence in request.live:
            self._free(request, sequence)
        request.copies = []
        if request.children:
            # the host ends a group it would have to compute again (scheduler.cpp)
            self.aborted_groups += 1
            self.abort(request)
            return
        # a token on the way comes back later, as if it belonged to the prompt
        request.outputs = [token for token in request.outputs if token != UNKNOWN_TOKEN]
        request.state = "waiting"
        self._waiting.appendleft(request)

    def _free(self, request: Request, sequence: Sequence) -> None:
        if sequence.table is not None:
            manager = self.swapper.host if request in self.swapper.waiting else self.manager
            manager.free(sequence.table, sequence.accessed)
            sequence.table = None

    def _find_hits(self, request: Request) -> tuple[Any, Any]:
        """(leading blocks on the device, leading blocks on the device or in the pool)."""
        table = request.blocks
        computed = self.manager.num_computed(table)
        promised = self._ask_pool(table.hashes, computed)
        request.hbm_blocks += computed
        request.pool_blocks += promised - computed
        request.prompt_tokens += request.num_tokens
        return computed, promised

    def _ask_pool(self, hashes: list[int], computed: int) -> int:
        return computed + leading_hits(self._lookup, hashes[computed:], self._tp, self._model_name)


def _extra_hash(request: Request) -> int:
    return extra_hash(request.adapter) if request.adapter else NO_HASH
