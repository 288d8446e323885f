"""Runs traffic through a simulated host, without and with the pool, and counts what happened."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from mindie_kvpool_plugin.pools.local_dram import forget_pool
from mindie_kvpool_plugin.simulator.beams import reference_beams
from mindie_kvpool_plugin.simulator.client import Client, Host, Progress
from mindie_kvpool_plugin.simulator.disaggregated import Disaggregated
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import FAULTY, FaultRecord, FaultSpec, injected
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster, write_pool_file
from mindie_kvpool_plugin.simulator.oracle import reference_answer
from mindie_kvpool_plugin.simulator.requests import Request, Sequence
from mindie_kvpool_plugin.simulator.traffic import Prompt, Traffic
from mindie_kvpool_plugin.simulator.two_nodes import TwoNodes
from mindie_kvpool_plugin.simulator.worker import Worker

PoolName = Literal["local_dram", "mooncake"]

PLUGIN = "kv_pool"
POOL_PLUGINS = f"{PLUGIN},prefix_cache"
COUNTERS = (
    "spilled_blocks",
    "spilled_bytes",
    "reloaded_blocks",
    "reloaded_bytes",
    "failed_get_blocks",
    "failed_put_blocks",
    "recomputed_blocks",
    "hook_errors",
)
DRAIN_TIMEOUT_S = 30.0
PATIENT: Mapping[str, Any] = {
    "load": "always",
    "fence_timeout_s": 5.0,
    "reload_budget_ms": 60_000,
    "lookup_budget_s": 5.0,
}
"""The ``kv_pool`` section where computing takes no time: a busy machine may hold threads up for long."""
ALIAS_BYTES = 64
"""A block's share of the pool beside its data, about."""


@dataclass(frozen=True, slots=True)
class RunConfig:
    """One run.

    Attributes:
        engine: the host.
        make_traffic: makes the traffic, the same at every call.
        concurrency: requests in the engine at once.
        gap: turns of the engine from one request to the next; 0: all that may be sent are sent at once.
        pool: the pool's backend.
        pool_blocks: blocks the pool can hold.
        faults: what goes wrong with the pool.
        fail_after: requests that end before the device, of two nodes the decode node's, fails and is repaired; 0: it
            does not fail.
        two: how two such hosts work together; None: there is one.
        section: options of the pool file's ``kv_pool`` section.  Unless they say otherwise pool hits are always loaded,
            spills and lookups waited for: this model computes in next to no time, and nothing would be worth it.
    """

    engine: EngineConfig
    make_traffic: Callable[[], Traffic]
    concurrency: int = 8
    gap: int = 0
    pool: PoolName = "local_dram"
    pool_blocks: int = 4096
    faults: FaultSpec | None = None
    fail_after: int = 0
    two: TwoNodes | None = None
    section: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.two is not None:
            self.two.judge(self.engine)
            if self.fail_after and self.two.roles == "flex":
                raise ValueError("of two nodes only a decode node is repaired: the host lets others pull lost blocks")


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did.

    Attributes:
        requests: answered requests.
        prompt_tokens: tokens of their prompts; a prompt computed again after a preemption counts again.
        hbm_hit_tokens: of these, found on the device by the scheduler.
        pool_hit_tokens: of these, promised by the pool.
        computed_tokens: of these, computed by the model.
        spilled_blocks: blocks copied to the pool, all ranks together.
        spilled_bytes: their bytes.
        reloaded_blocks: blocks copied from the pool.
        reloaded_bytes: their bytes.
        failed_get_blocks: gets that did not deliver.
        failed_put_blocks: puts the pool refused.
        recomputed_blocks: promised blocks the host computed after all.
        hook_errors: calls of the plugin in which something unexpected was caught.
        refused_keys: keys that the scheduler did not ask the pool for, because it was left alone or too slow.
        corruptions: wrong positions somebody attended to, and rows with wrong inputs.
        wrong_answers: answers an uncorrupted model would not give.
        leaked_blocks: blocks nobody gave back.
        aborted: requests the host ended: groups that had to make room, and all at a device fault.
        copied_blocks: blocks copied for the sequences of requests with several answers.
        moved_beams: times a running beam went on from another one's history.
        swapped_blocks: blocks that came back from host memory.
        recoveries: device faults that were repaired.
        preemptions: times a request had to make room.
        speculation: what speculative steps did and found, by name (``simulator.oracle``).
        pulled_blocks: blocks copied from node to node, all ranks together.
        failed_pulls: requests whose blocks did not come from the other node.
        hook_seconds: "plugin.hook" -> seconds spent in it on rank 0.
        seconds: the whole run.
        faults: kind -> how often it really happened (``simulator.faults``).
    """

    requests: int
    prompt_tokens: int
    hbm_hit_tokens: int
    pool_hit_tokens: int
    computed_tokens: int
    spilled_blocks: int
    spilled_bytes: int
    reloaded_blocks: int
    reloaded_bytes: int
    failed_get_blocks: int
    failed_put_blocks: int
    recomputed_blocks: int
    hook_errors: int
    refused_keys: int
    corruptions: int
    wrong_answers: int
    leaked_blocks: int
    aborted: int
    copied_blocks: int
    moved_beams: int
    swapped_blocks: int
    recoveries: int
    preemptions: int
    speculation: dict[str, int]
    pulled_blocks: int
    failed_pulls: int
    hook_seconds: dict[str, float]
    seconds: float
    faults: dict[str, int]

    @property
    def is_correct(self) -> bool:
        """Nothing wrong was read or answered, and nothing was lost."""
        return not (self.corruptions or self.wrong_answers or self.leaked_blocks)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same traffic twice.

    Attributes:
        without_pool: prefix cache only.
        with_pool: prefix cache and pool.
    """

    without_pool: Result
    with_pool: Result

    @property
    def is_correct(self) -> bool:
        """Both runs were."""
        return self.without_pool.is_correct and self.with_pool.is_correct

    def as_json(self) -> str:
        """Both results as JSON text."""
        return json.dumps(dataclasses.asdict(self), indent=2)


def run_traffic(config: RunConfig, progress: Progress | None = None) -> Result:
    """Send the traffic through one engine, configured as it is.

    Args:
        config: the run; its pool settings do not matter here.
        progress: called with the number of requests that were answered since the last call.
    """
    began = time.perf_counter()
    with sent(config, progress) as (engine, client):
        while client.turn():
            pass
        return result_of(engine, client.asked, time.perf_counter() - began)


@contextlib.contextmanager
def sent(config: RunConfig, progress: Progress | None = None) -> Iterator[tuple[Host, Client]]:
    """For the length of a ``with`` block, a host as it is configured and who sends it the traffic, by turns."""
    with (
        build_host(config) as engine,
        Client(
            engine,
            config.make_traffic(),
            config.concurrency,
            gap=config.gap,
            fail_after=config.fail_after,
            progress=progress,
        ) as client,
    ):
        yield engine, client


def build_host(config: RunConfig) -> Host:
    """The host of a run, or the two."""
    return Engine(config.engine) if config.two is None else Disaggregated(config.engine, config.two)


def run_without_pool(config: RunConfig, progress: Progress | None = None) -> Result:
    """Send the traffic through a host with prefix cache only."""
    engine = dataclasses.replace(config.engine, plugins="prefix_cache", backend="", pool_file="")
    return run_traffic(dataclasses.replace(config, engine=engine), progress)


def run_with_pool(config: RunConfig, progress: Progress | None = None) -> Result:
    """Send the traffic through a host with prefix cache and an empty pool, broken as the configuration asks."""
    with opened_pool(config) as pooled, broken_pool(pooled, config.faults) as (engine, record):
        result = run_traffic(dataclasses.replace(config, engine=engine), progress)
    return dataclasses.replace(result, faults=dict(sorted(record.happened.items())))


def compare(config: RunConfig, progress: Progress | None = None) -> Comparison:
    """Send the same traffic through both."""
    return Comparison(run_without_pool(config, progress), run_with_pool(config, progress))


@contextlib.contextmanager
def opened_pool(config: RunConfig) -> Iterator[EngineConfig]:
    """A pool for the length of a ``with`` block, and the engine configuration that uses it."""
    shape, tp, size = config.engine.cache_shape, config.engine.tp, config.engine.block_size
    shards = len({shape.shard(rank, tp) for rank in range(tp)})
    capacity = config.pool_blocks * (shape.block_bytes(size, tp) * shards + ALIAS_BYTES)
    section = {**PATIENT, **config.section}
    with tempfile.TemporaryDirectory(prefix="mindie-kvpool-") as folder, contextlib.ExitStack() as stack:
        path = Path(folder) / "kv_pool.json"
        if config.pool == "mooncake":
            master = stack.enter_context(MooncakeMaster())
            write_pool_file(path, master.address, capacity // tp)
            content = json.loads(path.read_text(encoding="utf-8"))
            path.write_text(json.dumps({**content, "kv_pool": section}), encoding="utf-8")
        else:
            path.write_text(json.dumps({"capacity": capacity, "kv_pool": section}), encoding="utf-8")
            stack.callback(forget_pool, str(path))
        yield dataclasses.replace(config.engine, plugins=POOL_PLUGINS, backend=config.pool, pool_file=str(path))


@contextlib.contextmanager
def broken_pool(engine: EngineConfig, faults: FaultSpec | None) -> Iterator[tuple[EngineConfig, FaultRecord]]:
    """The engine configuration whose pool breaks as asked for the length of a ``with`` block, and what happened."""
    if faults is None:
        yield engine, FaultRecord(FaultSpec(), engine.backend)
        return
    with injected(faults, engine.backend, engine.pool_file) as record:
        yield dataclasses.replace(engine, backend=FAULTY), record


def drive(engine: Host, traffic: Traffic, concurrency: int) -> dict[int, tuple[Prompt, Request]]:
    """Feed an engine until the traffic ends; answers what was asked, by sequence id (``simulator.client``)."""
    with Client(engine, traffic, concurrency) as client:
        while client.turn():
            pass
    return client.asked


def result_of(engine: Host, asked: dict[int, tuple[Prompt, Request]], seconds: float) -> Result:
    """What a host counted in a run of so many seconds: who was asked what, by sequence id."""
    for worker in engine.workers:
        worker.wait_until_idle()
        drain = getattr(worker.plugin(PLUGIN), "drain", None)
        if drain is not None:
            drain(DRAIN_TIMEOUT_S)
    requests = [request for _, request in asked.values()]
    size = engine.config.block_size
    counters = {name: sum(_counter(worker, name) for worker in engine.workers) for name in COUNTERS}
    return Result(
        requests=len(engine.done),
        prompt_tokens=sum(request.prompt_tokens for request in requests),
        hbm_hit_tokens=sum(request.hbm_blocks for request in requests) * size,
        pool_hit_tokens=sum(request.pool_blocks for request in requests) * size,
        computed_tokens=engine.computed_tokens,
        refused_keys=engine.refused_keys,
        corruptions=engine.oracle.corruptions + engine.oracle.input_errors,
        wrong_answers=sum(wrong_answers(request, engine.config.shape) for request in requests),
        leaked_blocks=engine.leaked_blocks,
        aborted=sum(request.state == "aborted" for request in requests),
        copied_blocks=engine.copied_blocks,
        moved_beams=engine.moved_beams,
        swapped_blocks=engine.swapped_blocks,
        recoveries=engine.recoveries,
        preemptions=engine.preemptions,
        speculation=dict(sorted(engine.oracle.counts.items())),
        pulled_blocks=engine.pulled_blocks if isinstance(engine, Disaggregated) else 0,
        failed_pulls=engine.failed_pulls if isinstance(engine, Disaggregated) else 0,
        hook_seconds={hook: round(spent, 6) for hook, spent in sorted(engine.workers[0].hook_seconds.items())},
        seconds=round(seconds, 3),
        faults={},
        **counters,
    )


def wrong_answers(request: Request, shape: ModelShape) -> int:
    """Answers of a request that has ended which an uncorrupted model would not give; a cut one must begin right."""
    if request.is_beam_search:
        return wrong_beams(request, shape)

    def expected(sequence: Sequence) -> list[int]:
        length = request.max_tokens if request.state == "finished" else len(sequence.answer)
        eos_every = shape.eos_every if request.children else 0
        return reference_answer(request.prompt, length, shape.vocab_size, request.adapter, sequence.sample, eos_every)

    return sum(sequence.answer != expected(sequence) for sequence in request.samples)


def wrong_beams(request: Request, shape: ModelShape) -> int:
    """Beams of a search that an uncorrupted model would not have kept or ended; which ones depends on all of them."""
    length = request.max_tokens if request.state == "finished" else len(request.answer)
    right, ended = reference_beams(request.prompt, length, shape.vocab_size, request.width, shape.eos_every)
    answers = sorted(sequence.answer for sequence in request.samples)
    return sum(a != b for a, b in zip_longest(answers + sorted(request.ended_beams), right + ended))


def _counter(worker: Worker, name: str) -> int:
    return int(getattr(getattr(worker.plugin(PLUGIN), "counters", None), name, 0))
