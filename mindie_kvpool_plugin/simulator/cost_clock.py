"""Simulated time: modelled seconds of the device and the links, and between them the processor time that hooks really
take.

Each rank has a time of its own within a step; when the step ends all have the latest one.  What a hook computes is
counted as it is measured on its thread, without what the toy pool's copies took; what is modelled is added by
whoever does it.

Threads: a rank's time moves on the thread that runs its steps, or on the engine's between steps.  Others may read
it.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mindie_kvpool_plugin.simulator.cost import Costs, Ints


class Computed(NamedTuple):
    """What a device did in a step: seconds of computing."""

    is_prefill: bool
    seconds: float


class RankTime:
    """One rank's time.

    Args:
        costs: what takes how long.
        cpu_s: processor seconds of the calling thread; None: hooks take no time, so that a run repeats exactly.

    Attributes:
        base_s: simulated seconds since the start, without the hook that is running.
        owed_s: decode seconds whose tokens are out already: a request came in between.
        next_arrival_s: when the next request comes.
        last: what the device did last.
    """

    def __init__(self, costs: Costs, cpu_s: Callable[[], float] | None = time.thread_time) -> None:
        self.costs = costs
        self.base_s = self.owed_s = 0.0
        self.next_arrival_s = math.inf
        self.last: Computed | None = None
        self._step_s = 0.0
        self._cpu_s = cpu_s or (lambda: 0.0)
        self._hook: tuple[int, float] | None = None

    def now(self) -> float:
        """Seconds since the start; on the thread of a hook with what it has taken so far."""
        hook = self._hook
        if hook is None or hook[0] != threading.get_ident():
            return self.base_s
        return self.base_s + self._cpu_s() - hook[1]

    def spend(self, seconds: float) -> None:
        """So many modelled seconds pass."""
        self.base_s += seconds

    @contextlib.contextmanager
    def in_hook(self) -> Iterator[None]:
        """A hook runs on this thread, and its processor time counts."""
        self._hook = threading.get_ident(), self._cpu_s()
        try:
            yield
        finally:
            self.base_s = self.now()
            self._hook = None

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """What this thread does here is modelled elsewhere."""
        began = self._cpu_s()
        try:
            yield
        finally:
            hook = self._hook
            if hook is not None and hook[0] == threading.get_ident():
                self._hook = hook[0], hook[1] + self._cpu_s() - began

    def prefill(self, lengths: Ints, counts: Ints) -> None:
        """The device computes prompts: tokens of each, and how many of them are left to compute."""
        self.last = Computed(True, self.costs.prefill_s(lengths, counts))
        self.spend(self.last.seconds)

    def decode(self, lengths: Ints) -> None:
        """The device decodes one simulated token per sequence: as many steps as that stands for.

        A request that comes meanwhile is served after the step that runs then: the rest is owed (``pay``).
        """
        self._step_s = self.costs.decode_s(lengths)
        self.owed_s += self._step_s * self.costs.scale
        self.last = Computed(False, self.pay())

    def pay(self) -> float:
        """Decode on, for tokens that are out, until that is done or the next request comes; answers the seconds."""
        until_s = self.next_arrival_s - self.base_s
        steps = max(1, math.ceil(until_s / self._step_s)) if until_s < self.owed_s else math.inf
        spent_s = min(self.owed_s, steps * self._step_s)
        self.owed_s -= spent_s
        self.spend(spent_s)
        return spent_s


class SimulatedTime:
    """All ranks' time.

    Args:
        costs: what takes how long.
        cpu_s: as for ``RankTime``.

    Attributes:
        costs: what takes how long.
        ranks: by number.
    """

    def __init__(self, costs: Costs, cpu_s: Callable[[], float] | None = time.thread_time) -> None:
        self.costs = costs
        self.ranks: dict[int, RankTime] = {}
        self._cpu_s = cpu_s

    def of(self, rank: int) -> RankTime:
        """A rank's time; it begins at 0."""
        return self.ranks.setdefault(rank, RankTime(self.costs, self._cpu_s))

    @property
    def now_s(self) -> float:
        """The latest rank's."""
        return max((rank.base_s for rank in self.ranks.values()), default=0.0)

    def meet(self) -> float:
        """A step has ended: all ranks have waited for the latest one; answers its time."""
        return self.reach(self.now_s)

    def reach(self, at_s: float) -> float:
        """Nothing happens until then."""
        for rank in self.ranks.values():
            rank.base_s = max(rank.base_s, at_s)
        return self.now_s

    @property
    def is_decoding(self) -> bool:
        """Whether the devices are at it still, for tokens that are out already."""
        return any(rank.owed_s > 0 for rank in self.ranks.values())

    def pay(self) -> None:
        """They go on until that is done or the next request comes."""
        for rank in self.ranks.values():
            rank.pay()
        self.meet()

    def expect(self, next_arrival_s: float) -> None:
        """When the next request comes."""
        for rank in self.ranks.values():
            rank.next_arrival_s = next_arrival_s

    def take_computed(self) -> Computed | None:
        """What the devices did since the last question: the slowest one's; None: nothing."""
        done = [rank.last for rank in self.ranks.values() if rank.last is not None]
        for rank in self.ranks.values():
            rank.last = None
        return max(done, key=lambda computed: computed.seconds, default=None)
