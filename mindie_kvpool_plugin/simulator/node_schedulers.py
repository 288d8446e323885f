"""Schedulers of a deployment whose prompts and answers are computed on two nodes.

As the host does it (scheduler.cpp, pdds_policy.cpp).  A prefill node never decodes: a prompt keeps its blocks until the
decode node has them, and the workers hear of the end after the next batch (ReleaseKvPulledBlocks).  With SplitFuse
only a prompt's last chunk makes it one that is kept.  A decode node never prefills: it takes blocks for the prompt and
its first token, has the former pulled (PickPullSeqGroup), and then decodes (KVPulledReqEnterRunningQueue).  Who has to
make room there goes to host memory or back to a prefill node (SendRecomputeResponse).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from mindie_kvpool_plugin.simulator.chunks import ChunkedScheduler
from mindie_kvpool_plugin.simulator.dealt_out import DealtScheduler
from mindie_kvpool_plugin.simulator.requests import Batch, Request, Sequence
from mindie_kvpool_plugin.simulator.scheduler import Scheduler

KEPT_FREE = 0.05
"""Share of the blocks that pulls leave to decodes (PRESERVED_FACTOR_FOR_DECODE)."""


class PrefillScheduler(Scheduler):
    """Prompts only.

    Attributes:
        kept: by sequence id, prompts whose blocks wait for the decode node.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.kept: dict[int, Request] = {}

    @property
    def idle(self) -> bool:
        """Nothing waits, is kept, or has blocks to give back."""
        return super().idle and not self.kept

    def release(self, request: Request) -> None:
        """The decode node has the blocks, or does not want them: they are free at the next turn."""
        if request.sequence_id in self.kept and not request.is_over:
            self._end(request, request)

    def reclaim(self) -> list[Request]:
        """Take the blocks of ended sequences back; the workers are told of each."""
        for request, sequence in self._over:
            self.kept.pop(sequence.sequence_id, None)
            if request.state != "aborted":
                self.cleanup.append(sequence.sequence_id)
        return super().reclaim()

    def schedule(self, wants_prefill: bool | None = None) -> Batch | None:
        """The next prompts; None if none fits."""
        return super().schedule(wants_prefill=True)

    def refuse_to_wait_for_ever(self) -> None:
        """What is kept will be released; the deployment notices when nothing happens any more."""

    def sent(self, batch: Batch) -> None:
        """The workers have the batch: first tokens are on the way."""
        for request in batch.requests:
            self._expect_token(request)
            self.kept[request.sequence_id] = request


class ChunkedPrefillScheduler(PrefillScheduler, ChunkedScheduler):
    """Prompts in chunks."""

    def sent(self, batch: Batch) -> None:
        """The workers have the batch: tokens of last chunks are on the way."""
        ChunkedScheduler.sent(self, batch)
        for request, chunk in zip(batch.requests, batch.chunks, strict=True):
            if chunk.is_last:
                self._running.remove(request)
                self.kept[request.sequence_id] = request


class DealtPrefillScheduler(DealtScheduler, PrefillScheduler):
    """Prompts whose blocks are dealt out to ranks."""


class DecodeScheduler(Scheduler):
    """Answers only.

    Attributes:
        pulling: by sequence id, requests whose blocks are on the way.
        recomputed: requests that had to make room since somebody looked.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.pulling: dict[int, Request] = {}
        self.recomputed: list[Request] = []

    @property
    def idle(self) -> bool:
        """Nothing waits, is pulled, runs, or has blocks to give back."""
        return super().idle and not self.pulling

    def abort(self, request: Request) -> None:
        """The client went away: the request ends at the next turn, or when its blocks have come."""
        if request.sequence_id in self.pulling:
            request.state = "aborted"
        else:
            super().abort(request)

    def stop(self) -> list[Request]:
        """End everything at once, also what is pulled: the device has failed."""
        for request in list(self.pulling.values()):
            request.state = "aborted"
            self.arrived(request)
        return super().stop()

    def next_pull(self) -> list[Request]:
        """Requests whose blocks are to be pulled now, with blocks of their own."""
        chosen = list[Request]()
        self._waiting = deque(request for request in self._waiting if not request.is_over)
        while self._waiting and len(chosen) < self._limits.max_prefill_batch and self._may_pull(self._waiting[0]):
            request = self._waiting.popleft()
            self._place(request)
            request.accessed = self._clock.now()
            self.pulling[request.sequence_id] = request
            chosen.append(request)
        return chosen

    def ordered(self, requests: list[Request]) -> None:
        """All ranks were told to pull these requests' blocks."""

    def arrived(self, request: Request) -> None:
        """Its blocks have come: it decodes."""
        del self.pulling[request.sequence_id]
        if request.state == "aborted":
            self._end(request, request)
        else:
            self._running.append(request)

    def lost(self, request: Request) -> None:
        """Its blocks have not come: this node is done with it."""
        del self.pulling[request.sequence_id]
        if request.state == "aborted":
            self._end(request, request)
        else:
            self._drop(request)

    def schedule(self, wants_prefill: bool | None = None) -> Batch | None:
        """The next decodes; None if there are none."""
        return super().schedule(wants_prefill=False)

    def _may_pull(self, request: Request) -> bool:
        manager, pulling = self.manager, list(self.pulling.values())
        return (
            len(self._running) + len(pulling) < self._limits.max_batch
            and manager.num_free >= int(KEPT_FREE * manager.num_blocks)
            and self._fits(request, pulling)
        )

    def _preempt(self, request: Request) -> None:
        self.preemptions += 1
        if not self.swapper.take_out(request):
            self._drop(request)
            self.recomputed.append(request)

    def _drop(self, request: Request) -> None:
        self._free(request, request)
        self.cleanup.append(request.sequence_id)
        self.forgotten.append(request.sequence_id)
        self._remove(request)


def owner_of(sequence: Sequence, schedulers: list[Scheduler]) -> Scheduler | None:
    """The scheduler that knows a sequence."""
    return next((scheduler for scheduler in schedulers if scheduler.knows(sequence)), None)
