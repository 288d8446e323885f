"""Schedulers of a deployment of two nodes whose model guesses: multi-token prediction on both.

As the host does it (scheduler.cpp, ScheduleTransfer): a sequence that is pulled gets placeholders as if a batch of it
were on the way, since its first token came with it and its first decode answers several.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mindie_kvpool_plugin.simulator.dealt_guesses import DealtSpeculativeScheduler
from mindie_kvpool_plugin.simulator.node_schedulers import DealtPrefillScheduler, DecodeScheduler, PrefillScheduler
from mindie_kvpool_plugin.simulator.requests import Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler
from mindie_kvpool_plugin.simulator.speculation import SpeculativeScheduler


class SpeculativePrefillScheduler(SpeculativeScheduler, PrefillScheduler):
    """Prompts only; one token comes out of each, whatever was guessed."""


class SpeculativeDealtPrefillScheduler(DealtSpeculativeScheduler, PrefillScheduler):
    """The same where blocks are dealt out to ranks."""


class SpeculativeDecodeScheduler(SpeculativeScheduler, DecodeScheduler):
    """Answers only."""

    def ordered(self, requests: list[Request]) -> None:
        """All ranks were told to pull these requests' blocks."""
        for request in requests:
            self._expect_token(request)


def prefill_scheduler(gamma: int, *, is_dealt_out: bool = False) -> Callable[..., PrefillScheduler]:
    """Of a prefill node; ``gamma`` is ``speculationGamma``, 0 where nothing is guessed."""
    if gamma == 0:
        return DealtPrefillScheduler if is_dealt_out else PrefillScheduler
    return partial(SpeculativeDealtPrefillScheduler if is_dealt_out else SpeculativePrefillScheduler, gamma=gamma)


def decode_scheduler(gamma: int) -> Callable[..., DecodeScheduler]:
    """Of a decode node, likewise."""
    return partial(SpeculativeDecodeScheduler, gamma=gamma) if gamma else DecodeScheduler


def local_scheduler(gamma: int) -> Callable[..., Scheduler]:
    """Of what a flex node serves alone, likewise."""
    return partial(SpeculativeScheduler, gamma=gamma) if gamma else Scheduler
