"""SplitFuse: long prompts are computed in chunks, and decodes run in the same batch.

Scheduler side.  As the host does it (fcfs_policy.cpp, ScheduleChunkedPrefill): decodes and running prompts get their
share of the batch's tokens first, then new prompts; a batch holds decodes, new prompts, running prompts, in this order.
A prompt gets all its blocks with its first chunk.  Hits count for the first chunk only, and what the pool promises does
not make it longer.  The host marks all blocks of a prompt as computed with its first chunk, which serves wrong blocks
without any pool (splitfuse with prefix_cache); here only what a chunk computes is marked.
"""

from __future__ import annotations

from typing import Any

from mindie_kvpool_plugin.simulator.requests import Batch, Chunk, Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler

Part = tuple[Request, Chunk]


class ChunkedScheduler(Scheduler):
    """Decodes and chunks of prompts in one batch.

    Args:
        chunk_tokens: tokens of a prompt in one batch, the ones found on the device not counted.
        more: of ``Scheduler``.

    Attributes:
        chunks: chunks of prompts that ran, whole prompts included.
        mixed_batches: batches of decodes and prompts.
    """

    def __init__(self, *args: Any, chunk_tokens: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self.chunks = self.mixed_batches = 0
        self._chunk_tokens = chunk_tokens
        self._left = 0

    def schedule(self, wants_prefill: bool | None = None) -> Batch | None:
        """The next batch, of whatever there is; None if there is none.

        Raises:
            OutOfBlocksError: requests wait but can never run.
        """
        self._left = self._limits.max_prefill_tokens
        preemptions, waiting = self.preemptions, len(self._waiting)
        self.swapper.begin_turn()
        decodes, running = self._go_on()
        # who made room waits at the end
        preempted = [self._waiting.popleft() for _ in range(len(self._waiting) - waiting)]
        if self.preemptions == preemptions:
            self._return(decodes, running)
        parts = [*decodes, *self._begin([*decodes, *running]), *running]
        self._waiting.extend(preempted)
        if not parts:
            self.refuse_to_wait_for_ever()
            return None
        return self._batch(parts, has_prompts=len(parts) > len(decodes), is_mixed=0 < len(decodes) < len(parts))

    def sent(self, batch: Batch) -> None:
        """The workers have the batch: tokens of decodes and of last chunks are on the way."""
        for request, chunk in zip(batch.requests, batch.chunks, strict=True):
            request.computed_tokens = 0 if chunk.is_last else chunk.end
            if chunk.is_last:
                self._expect_token(request)
        self._running.extend(batch.requests)

    def _go_on(self) -> tuple[list[Part], list[Part]]:
        """Decodes, and further chunks of prompts."""
        decodes, running = list[Part](), list[Part]()
        while self._running and self._has_room_for(self._running[0], [*decodes, *running]):
            request = self._running.popleft()
            if self._make_room(request):
                self._continue(request, decodes, running)
        return sorted(decodes, key=lambda part: part[0].sequence_id), running

    def _return(self, decodes: list[Part], running: list[Part]) -> None:
        """Who comes back from host memory goes on where it was: behind the decodes, or before the running prompts."""
        came = list[Part]()
        while self.swapper.waiting and self._has_room_for(self.swapper.waiting[0], [*decodes, *running, *came]):
            request = self.swapper.bring_in()
            if request is None:
                break
            self._continue(request, decodes, came)
        running[:0] = came

    def _has_room_for(self, request: Request, chosen: list[Part]) -> bool:
        return self._left > 0 and sum(other.width for other, _ in chosen) + request.width <= self._limits.max_batch

    def _continue(self, request: Request, decodes: list[Part], running: list[Part]) -> None:
        """A decode, or the next chunk."""
        self._append(request)
        if request.computed_tokens:
            running.append((request, self._next_chunk(request, request.computed_tokens)))
        else:
            decodes.append((request, Chunk(request.num_tokens - 1, request.num_tokens)))
            self._left -= len(request.live)

    def _begin(self, chosen: list[Part]) -> list[Part]:
        """First chunks of new prompts."""
        new, rest = list[Part](), [(request, Chunk(0, 0)) for request in self._running]
        while self._waiting and self._has_room_for(self._waiting[0], [*chosen, *rest, *new]):
            request = self._waiting[0]
            if not self._fits(request, [other for other, _ in (*chosen, *new)]):
                break
            self._waiting.popleft()
            self._place(request)
            cached = self.manager.num_computed(request.blocks) * self.manager.block_size
            new.append((request, self._next_chunk(request, 0, min(cached, request.num_tokens - 1))))
        return new

    def _next_chunk(self, request: Request, start: int, cached: int = 0) -> Chunk:
        """Tokens from ``start`` on; ``cached`` of them cost nothing."""
        computed = min(request.num_tokens - start - cached, self._chunk_tokens, self._left)
        self._left -= computed
        end = start + cached + computed
        return Chunk(start, end, is_prompt=True, is_last=end == request.num_tokens)

    def _batch(self, parts: list[Part], *, has_prompts: bool, is_mixed: bool) -> Batch:
        now = self._clock.now()
        # the host looks up every row of a batch that holds prompts, decodes too
        hits = [self._hits_of(*part) if has_prompts else (0, 0) for part in parts]
        for request, chunk in parts:
            for sequence in request.live:
                sequence.accessed = now
            self.chunks += chunk.is_prompt
        self.mixed_batches += is_mixed
        self.manager.mark_computed({block_id for part in parts for block_id in self._covered(*part)})
        computed, promised = [hit[0] for hit in hits], [hit[1] for hit in hits]
        requests = [request for request, _ in parts]
        moves = self._take_copies(requests), self.swapper.decisions()
        return Batch(has_prompts, requests, computed, promised, *moves, chunks=[chunk for _, chunk in parts])

    def _hits_of(self, request: Request, chunk: Chunk) -> tuple[int, int]:
        if chunk.is_prompt and not chunk.start:
            computed, promised = self._find_hits(request)
            request.first_hits = computed
            return computed, promised
        computed = request.first_hits if chunk.is_prompt else 0
        return computed, self._ask_pool(request.live[0].blocks.hashes, computed)

    def _covered(self, request: Request, chunk: Chunk) -> list[int]:
        full = chunk.end // self.manager.block_size if chunk.is_prompt else None
        return [block_id for sequence in request.live for block_id in sequence.blocks.block_ids[:full]]

    def _preempt(self, request: Request) -> None:
        super()._preempt(request)
        if request.state != "swapped":
            request.computed_tokens = 0
