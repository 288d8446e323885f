"""Traffic in simulated time: requests arrive when they arrive, and what users would see is measured.

The same requests meet three services: prefix cache only, the host's own pooling, and this plugin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import itertools
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.pools.local_dram.pool import LocalDram
from mindie_kvpool_plugin.simulator.client import Progress
from mindie_kvpool_plugin.simulator.cost import Costs
from mindie_kvpool_plugin.simulator.cost_clock import SimulatedTime
from mindie_kvpool_plugin.simulator.cost_pool import COSTED, Costed, CostedPool, Trouble, costed
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.own_pooling import own_pool
from mindie_kvpool_plugin.simulator.requests import Request
from mindie_kvpool_plugin.simulator.run import (
    DRAIN_TIMEOUT_S,
    PATIENT,
    PLUGIN,
    Result,
    RunConfig,
    opened_pool,
    result_of,
)
from mindie_kvpool_plugin.simulator.traffic import Prompt, Traffic

Service = Literal["without", "host", "plugin"]
SERVICES: tuple[Service, ...] = ("without", "host", "plugin")
TIMED = {**{name: getattr(KvPoolOptions(), name) for name in PATIENT}, "load": "auto"}
"""As on a real host, where ``simulator.run`` is patient because computing takes no time."""


@dataclass(frozen=True, slots=True)
class TimedRun:
    """What is run.

    Attributes:
        run: the host and the traffic; its pool is the embedded one, and ``pool_blocks`` are blocks stored once.
        costs: what takes how long.
        troubles: what happens to the pool, and when (``simulator.cost_pool``).
        counts_hooks: the processor time of the hooks counts; False: a run repeats exactly.
    """

    run: RunConfig
    costs: Costs
    troubles: Mapping[Trouble, float] = field(default_factory=dict)
    counts_hooks: bool = True


@dataclass(slots=True)
class Seen:
    """What users saw, in simulated seconds.

    Attributes:
        first_token_s: from the arrival of each request to its first token, in the order of arrival.
        arrived_s: when each of them arrived.
        stalls_s: each time in which sequences that were decoding got no token because prompts came in between.
        held_s: of each step in between, what is not computing: loading, storing, waiting at a fence, hooks.
        ended_s: when the last one ended.
        answer_tokens: that were answered, as many as the simulated ones stand for.
        computing_s: that the device computed prompts.
    """

    first_token_s: list[float] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    stalls_s: list[float] = field(default_factory=list)
    held_s: list[float] = field(default_factory=list)
    ended_s: float = 0.0
    answer_tokens: int = 0
    computing_s: float = 0.0

    def figures(self) -> dict[str, float]:
        """What is shown of it."""
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
        of = {"first_token": self.first_token_s, "stall": self.stalls_s, "held": self.held_s}
        found = {f"{what}_{name}_s": percentile(values, p) for what, values in of.items() for name, p in shares.items()}
        mean_s = sum(self.first_token_s) / len(self.first_token_s) if self.first_token_s else 0.0
        rate = self.answer_tokens / self.ended_s if self.ended_s else 0.0
        busy = self.computing_s / self.ended_s if self.ended_s else 0.0
        return {**found, "first_token_mean_s": mean_s, "tokens_per_s": rate, "prefill_share": busy}


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of them lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class Timed:
    """One service's run.

    Attributes:
        result: what it counted.
        seen: what its users saw.
    """

    result: Result
    seen: Seen


def compare(config: TimedRun, progress: Progress | None = None) -> dict[Service, Timed]:
    """The same traffic through all three services."""
    return {service: serve(config, service, progress) for service in SERVICES}


def as_json(found: Mapping[Service, Timed]) -> str:
    """All results as JSON text: counts, and figures in seconds."""
    told = {name: {**dataclasses.asdict(timed.result), **timed.seen.figures()} for name, timed in found.items()}
    return json.dumps(told, indent=2)


def serve(config: TimedRun, service: Service, progress: Progress | None = None) -> Timed:
    """The traffic through one of them."""
    costs = dataclasses.replace(config.costs, is_every_copy=service == "host")
    time = SimulatedTime(costs) if config.counts_hooks else SimulatedTime(costs, None)
    with (
        _pooled(config, service, time) as engine_config,
        Engine(dataclasses.replace(engine_config, time=time)) as engine,
    ):
        seen, asked = _drive(engine, config.run.make_traffic(), time, progress)
        return Timed(result_of(engine, asked, time.now_s), seen)


@contextlib.contextmanager
def _pooled(config: TimedRun, service: Service, time: SimulatedTime) -> Iterator[EngineConfig]:
    run = config.run
    size = run.engine.block_size
    if service == "without":
        yield dataclasses.replace(run.engine, plugins="prefix_cache", backend="", pool_file="")
    elif service == "host":
        with _own_pool(run, time) as engine:
            yield engine
    else:
        # here computing takes time, so that loading may or may not be worth it
        run = dataclasses.replace(run, section={**TIMED, **run.section})
        with opened_pool(run) as engine, costed(time, engine.backend, engine.pool_file, size, config.troubles):
            yield dataclasses.replace(engine, backend=COSTED)


@contextlib.contextmanager
def _own_pool(run: RunConfig, time: SimulatedTime) -> Iterator[EngineConfig]:
    """The host's own pooling: the same memory, in which every rank stores its copy."""
    profile, engine = time.costs.profile, run.engine
    block_bytes = engine.cache_shape.block_bytes(engine.block_size, engine.tp) * engine.tp
    pool = LocalDram(run.pool_blocks * profile.shards // profile.ranks * block_bytes)
    shared = Costed(time, engine.block_size, "", math.inf)

    def client(role: str) -> CostedPool:
        return CostedPool(pool, shared, shared.own_link() if role == "worker" else None)

    with tempfile.TemporaryDirectory(prefix="mindie-kvpool-") as folder:
        path = Path(folder) / "own_pool.json"
        path.write_text("{}", encoding="utf-8")
        with own_pool(str(path), client):
            yield dataclasses.replace(
                engine, plugins="prefix_cache", backend="mooncake", pool_file=str(path), async_write=False
            )


def _drive(
    engine: Engine, traffic: Traffic, time: SimulatedTime, progress: Progress | None
) -> tuple[Seen, dict[int, tuple[Prompt, Request]]]:
    """Send requests when they arrive, and note what their users see."""
    seen, asked = Seen(), dict[int, tuple[Prompt, Request]]()
    order = itertools.count()
    arriving: list[tuple[float, int, Prompt]] = []
    watch = _Watch(engine, time, seen)

    def ended(request: Request) -> None:
        prompt = asked[request.sequence_id][0]
        traffic.answered(prompt, request.answer)
        seen.answer_tokens += len(request.answer) * time.costs.scale
        if progress is not None:
            progress(1)

    engine.on_end = ended
    while True:
        for prompt in _take(traffic):
            at_s = prompt.at_s + (time.now_s if prompt.is_after_answer else 0.0)
            heapq.heappush(arriving, (at_s, next(order), prompt))
        if not arriving and engine.idle and not time.is_decoding:
            break
        if engine.idle and not time.is_decoding:
            time.reach(arriving[0][0])
        while arriving and arriving[0][0] <= time.now_s:
            at_s, _, prompt = heapq.heappop(arriving)
            request = engine.submit(prompt.tokens, prompt.answer_length, prompt.adapter)
            asked[request.sequence_id] = (prompt, request)
            watch.arrived(request, at_s)
        time.expect(arriving[0][0] if arriving else math.inf)
        if time.is_decoding and not engine.scheduler.can_prefill:
            watch.decoding_goes_on()
            time.pay()
        else:
            watch.step()
    seen.ended_s = time.now_s
    return seen, asked


def _take(traffic: Traffic) -> Iterator[Prompt]:
    while traffic.ready:
        yield traffic.ready.popleft()


class _Watch:
    """Looks at every step: first tokens, and what came between the tokens of others."""

    def __init__(self, engine: Engine, time: SimulatedTime, seen: Seen) -> None:
        self._engine, self._time, self._seen = engine, time, seen
        self._waiting: dict[int, tuple[Request, int]] = {}
        self._stall_s = 0.0
        self._is_interrupted = False

    def arrived(self, request: Request, at_s: float) -> None:
        """A request was sent."""
        self._waiting[request.sequence_id] = request, len(self._seen.arrived_s)
        self._seen.arrived_s.append(at_s)
        self._seen.first_token_s.append(math.nan)

    def step(self) -> None:
        """Run one."""
        began_s = self._time.now_s
        is_decoding = any(request.answer for request in self._engine.scheduler.running)
        self._engine.step()
        for worker in self._engine.workers:
            drain = getattr(worker.plugin(PLUGIN), "drain", None)
            if drain is not None:  # what was freed is on its link before the next step
                drain(DRAIN_TIMEOUT_S)
        took_s, computed = self._time.meet() - began_s, self._time.take_computed()
        self._note_stall(took_s, computed, is_decoding)
        for request, index in [entry for entry in self._waiting.values() if entry[0].answer]:
            del self._waiting[request.sequence_id]
            self._seen.first_token_s[index] = self._time.now_s - self._seen.arrived_s[index]

    def _note_stall(self, took_s: float, computed: Any, is_decoding: bool) -> None:
        seconds = computed.seconds if computed is not None else 0.0
        if computed is not None and computed.is_prefill:
            self._seen.computing_s += seconds
            if is_decoding:
                self._is_interrupted = True
                self._seen.held_s.append(took_s - seconds)
        if is_decoding:
            self._stall_s += took_s - (seconds if computed is not None and not computed.is_prefill else 0.0)
        if computed is not None and not computed.is_prefill:
            self.decoding_goes_on()

    def decoding_goes_on(self) -> None:
        """What came in between is over."""
        if self._is_interrupted:
            self._seen.stalls_s.append(self._stall_s)
        self._stall_s = 0.0
        self._is_interrupted = False
