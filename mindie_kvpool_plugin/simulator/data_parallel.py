"""Data parallelism under one server: a scheduler and a block manager per group, one batch for the ranks of all.

As the host does it (llm_engine.cpp, AddRequest and BuildExecuteModelRequest; pre_scheduler.cpp): requests go to the
groups in turn, the groups vote on prefill or decode, and every rank gets the rows of all groups, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mindie_kvpool_plugin.simulator.requests import Batch, Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler


class DataParallelScheduler(Scheduler):
    """The schedulers of all groups, behind the interface of one.

    Args:
        groups: one per group.
        more: of ``Scheduler``.

    Attributes:
        groups: likewise.
        lonely_rounds: batches without a row for some group.
    """

    def __init__(self, groups: list[Scheduler], **more: Any) -> None:
        super().__init__(groups[0].manager, **more)
        self.groups = groups
        self.lonely_rounds = 0
        self._turn = 0
        self._parts: list[tuple[Scheduler, Batch]] = []

    @property
    def parts(self) -> dict[int, Batch]:
        """By group, the batches of the last turn."""
        return {self.groups.index(group): batch for group, batch in self._parts}

    @property
    def each(self) -> list[Scheduler]:
        """The groups' schedulers."""
        return self.groups

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, or has blocks to give back."""
        return all(group.idle for group in self.groups)

    @property
    def running(self) -> list[Request]:
        """Requests that have device blocks and are not over."""
        return [request for group in self.groups for request in group.running]

    def submit(self, request: Request) -> None:
        """Queue a request in the group whose turn it is."""
        request.group = self._turn % len(self.groups)
        self._turn += 1
        self.groups[request.group].submit(request)

    def abort(self, request: Request) -> None:
        """The client went away: the request ends at the next turn."""
        self.groups[request.group].abort(request)

    def reclaim(self) -> list[Request]:
        """Take the blocks of ended sequences back; answers requests that ended."""
        ended = [request for group in self.groups for request in group.reclaim()]
        self._gather()
        return ended

    def stop(self) -> list[Request]:
        """End everything at once, without a word to the workers: the device has failed."""
        ended = [request for group in self.groups for request in group.stop()]
        self._gather()
        return ended

    def schedule(self, wants_prefill: bool | None = None) -> Batch | None:
        """The next batch, of all groups; None if there is none.

        Raises:
            OutOfBlocksError: requests wait but can never run.
        """
        if wants_prefill is None:
            voters = [group for group in self.groups if not group.idle]
            wants_prefill = 2 * sum(group.can_prefill for group in voters) >= len(voters)
        self._parts = self._schedule_all(wants_prefill) or self._schedule_all(not wants_prefill)
        self._gather()
        if not self._parts:
            for group in self.groups:
                group.refuse_to_wait_for_ever()
            return None
        self.lonely_rounds += len(self._parts) < len(self.groups)
        batches = [batch for _, batch in self._parts]
        return Batch(
            batches[0].is_prefill,
            [request for batch in batches for request in batch.requests],
            [count for batch in batches for count in batch.computed],
            [count for batch in batches for count in batch.promised],
        )

    def sent(self, batch: Batch) -> None:
        """The workers have the batch: its tokens are on the way."""
        for group, part in self._parts:
            group.sent(part)

    def branch(self, samples: Iterable[tuple[int, int, int]]) -> None:
        """Beams go on from their parents' histories; each group knows its own."""
        samples = list(samples)
        for group in self.groups:
            group.branch(samples)

    def take(self, sequence_ids: Iterable[int], tokens: Iterable[int], reasons: Iterable[int]) -> None:
        """Tokens have arrived."""
        answers = list(zip(sequence_ids, tokens, reasons, strict=True))
        for group in self.groups:
            group.take(*([answer[place] for answer in answers] for place in range(3)))

    def _schedule_all(self, wants_prefill: bool) -> list[tuple[Scheduler, Batch]]:
        batches = [(group, group.schedule(wants_prefill)) for group in self.groups]
        return [(group, batch) for group, batch in batches if batch is not None]

    def _gather(self) -> None:
        for group in self.groups:
            self.cleanup += group.cleanup
            self.forgotten += group.forgotten
            group.cleanup.clear()
            group.forgotten.clear()
        self.preemptions = sum(group.preemptions for group in self.groups)
        self.copied_blocks = sum(group.copied_blocks for group in self.groups)
        self.moved_beams = sum(group.moved_beams for group in self.groups)
