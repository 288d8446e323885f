"""The scheduler of a node in role flex: prefills for the other node, decodes what it pulled, serves its own requests.

As the host does it (time_division_policy.cpp, GetFlexRole; scheduler.cpp, PrepCandidatesForFlex): one block manager,
and in every round only one kind of request is looked at.  Which one the host decides by time shares; here a coin
does.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, Literal

from mindie_kvpool_plugin.simulator.block_manager import BlockManager, Clock
from mindie_kvpool_plugin.simulator.node_schedulers import DecodeScheduler, PrefillScheduler, owner_of
from mindie_kvpool_plugin.simulator.requests import Batch, Limits, Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler
from mindie_kvpool_plugin.simulator.speculative_nodes import decode_scheduler, local_scheduler, prefill_scheduler
from mindie_kvpool_plugin.simulator.swapping import Swapper

Part = Literal["prefill", "decode", "local"]


class FlexScheduler(Scheduler):
    """Three schedulers over one block manager, behind the interface of one.

    Args:
        manager, limits, more: of ``Scheduler``.
        seed: of the coin.
        gamma: ``speculationGamma``; 0: nothing is guessed.
        swapper: of the decodes; prompts for the other node are not preempted.

    Attributes:
        prefill, decode, local: the three.
        part: whose round it is.
    """

    def __init__(
        self,
        manager: BlockManager,
        limits: Limits,
        *,
        seed: int = 0,
        gamma: int = 0,
        clock: str = "exact",
        swapper: Swapper,
        **more: Any,
    ) -> None:
        more["clock"] = Clock(clock)
        super().__init__(manager, limits, **more)
        self.prefill: PrefillScheduler = prefill_scheduler(gamma)(manager, limits, **more)
        self.decode: DecodeScheduler = decode_scheduler(gamma)(manager, limits, swapper=swapper, **more)
        self.local: Scheduler = local_scheduler(gamma)(manager, limits, swapper=swapper.sibling(), **more)
        for part in self._parts:
            part.is_one_of_several = True
        self.part: Part = "local"
        self._was_empty = False
        self._coin = random.Random(f"flex {seed}")  # noqa: S311 - repeatable choices are the point

    @property
    def each(self) -> list[Scheduler]:
        """The three."""
        return self._parts

    @property
    def idle(self) -> bool:
        """Nothing waits, runs, or has blocks to give back."""
        return all(part.idle for part in self._parts)

    @property
    def running(self) -> list[Request]:
        """Requests that have device blocks and are not over."""
        return [request for part in self._parts for request in part.running]

    def begin_round(self) -> None:
        """Choose whose round it is."""
        prefills, decodes, locals_ = (part.has_candidates for part in self._parts)
        busy = list[Part](name for name in ("prefill", "decode", "local") if not self._part(name).idle)
        if self._was_empty and busy:
            # the host's rule might choose one that finds no blocks for ever; here others get a turn
            self.part = self._coin.choice(busy)
        elif locals_ and not (prefills or decodes):
            self.part = "local"
        elif prefills != decodes:
            self.part = "prefill" if prefills else "decode"
        else:
            self.part = self._coin.choice(("prefill", "decode"))

    def submit(self, request: Request) -> None:
        """Not known whose: use the one of the three."""
        raise NotImplementedError

    def abort(self, request: Request) -> None:
        """The client went away: the request ends at its next round."""
        owner = owner_of(request, self._parts)
        if owner is not None:
            owner.abort(request)

    def reclaim(self) -> list[Request]:
        """Take the blocks of ended sequences back, of those whose round it is."""
        ended = self._part(self.part).reclaim()
        self._gather()
        return ended

    def schedule(self, wants_prefill: bool | None = None) -> Batch | None:
        """The next batch of those whose round it is; None if there is none."""
        part = self._part(self.part)
        if wants_prefill is None and part is self.local:
            batch = part.schedule(wants_prefill=True) or part.schedule(wants_prefill=False)
        else:
            batch = part.schedule(wants_prefill)
        self._was_empty = batch is None
        # at the end of every round, also an empty one, and also blocks that are still on the way (scheduler.cpp)
        self.manager.mark_computed()
        self._gather()
        return batch

    def sent(self, batch: Batch) -> None:
        """The workers have the batch: its tokens are on the way."""
        self._part(self.part).sent(batch)

    def take(self, sequence_ids: Iterable[int], tokens: Iterable[int], reasons: Iterable[int]) -> None:
        """Tokens have arrived."""
        answers = list(zip(sequence_ids, tokens, reasons, strict=True))
        for part in self._parts:
            part.take(*([answer[place] for answer in answers] for place in range(3)))

    @property
    def _parts(self) -> list[Scheduler]:
        return [self.prefill, self.decode, self.local]

    def _part(self, name: Part) -> Scheduler:
        return {"prefill": self.prefill, "decode": self.decode, "local": self.local}[name]

    def _gather(self) -> None:
        for part in self._parts:
            self.cleanup += part.cleanup
            self.forgotten += part.forgotten
            part.cleanup.clear()
            part.forgotten.clear()
        self.preemptions = sum(part.preemptions for part in self._parts)
