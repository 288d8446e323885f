"""Many small requests through one engine: does anything grow?

``python -m chaos.soak`` prints what the process holds at the start, in the middle and
at the end.  The start is taken after a warm-up in which pool, queues and allocators fill.  Exit status 1 if
something was wrong or grew.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.cells import quiet
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import FAULTY, injected, parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.oracle import FIRST_TOKEN, reference_answer
from mindie_kvpool_plugin.simulator.requests import Limits, Request
from mindie_kvpool_plugin.simulator.run import DRAIN_TIMEOUT_S, PLUGIN, PoolName, RunConfig, opened_pool
from mindie_kvpool_plugin.simulator.traffic import Traffic

WARM_UP_SHARE = 0.1
GROWTH_LIMIT_MIB = 16.0
"""Allocators breathe by a few MiB; a leak of 100 bytes per request would show as 20 MiB in a full run."""
PREFIXES = 400
CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class Held:
    """What this process holds.

    Attributes:
        rss_mib: resident memory.
        threads, files: threads and open file descriptors.
        shared_segments: mapped pieces of shared memory.
    """

    rss_mib: float
    threads: int
    files: int
    shared_segments: int


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a soak found.

    Attributes:
        held: at start, middle and end.
        requests, reloaded_blocks, faults: what happened between start and end.
        corruptions, wrong_answers, leaked_blocks, hook_errors: what must be 0.
        seconds: the whole run.
    """

    held: list[Held]
    requests: int
    reloaded_blocks: int
    faults: int
    corruptions: int
    wrong_answers: int
    leaked_blocks: int
    hook_errors: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Nothing was wrong."""
        return not (self.corruptions or self.wrong_answers or self.leaked_blocks or self.hook_errors)

    @property
    def is_flat(self) -> bool:
        """Nothing grew."""
        start, end = self.held[0], self.held[-1]
        return (
            end.threads <= start.threads
            and end.files <= start.files
            and end.shared_segments <= start.shared_segments
            and end.rss_mib <= start.rss_mib + GROWTH_LIMIT_MIB
        )


def held_now() -> Held:
    """Read it from /proc."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    maps = Path("/proc/self/maps").read_text().splitlines()
    return Held(
        rss_mib=int(status["VmRSS"].split()[0]) / 1024,
        threads=int(status["Threads"]),
        files=len(os.listdir("/proc/self/fd")),
        shared_segments=sum("/dev/shm" in line or "/SYSV" in line for line in maps),  # noqa: S108 - only read
    )


def soak(requests: int, *, pool: PoolName = "local_dram", tp: int = 1, faults: str = "") -> SoakResult:
    """Run ``requests`` small requests after a warm-up."""
    engine_config = EngineConfig(
        shape=ModelShape(num_layers=1, num_kv_heads=4, head_size=4),
        block_size=4,
        hbm_blocks=200,
        tp=tp,
        async_scheduling=True,
        async_write=True,
        max_seq_len=64,
        limits=Limits(max_prefill_batch=8, max_batch=CONCURRENCY),
    )
    config = RunConfig(engine_config, lambda: Traffic([]), pool=pool, pool_blocks=2000)
    began = time.monotonic()
    with (
        opened_pool(config) as pooled,
        injected(parse_spec(faults), pooled.backend, pooled.pool_file) as record,
        Engine(dataclasses.replace(pooled, backend=FAULTY) if faults else pooled) as engine,
    ):
        feeder = _Feeder(engine)
        feeder.send(max(CONCURRENCY, int(requests * WARM_UP_SHARE)))
        reloaded, happened = feeder.counted("reloaded_blocks"), sum(record.happened.values())
        held = [held_now()]
        for part in (requests // 2, requests - requests // 2):
            feeder.send(part)
            held.append(held_now())
        return SoakResult(
            held,
            requests,
            feeder.counted("reloaded_blocks") - reloaded,
            sum(record.happened.values()) - happened,
            engine.oracle.corruptions + engine.oracle.input_errors,
            feeder.wrong_answers,
            engine.leaked_blocks,
            feeder.counted("hook_errors"),
            time.monotonic() - began,
        )


class _Feeder:
    """Sends requests and forgets them once they were judged.

    Attributes:
        wrong_answers: answers an uncorrupted model would not give.
    """

    def __init__(self, engine: Engine) -> None:
        self.wrong_answers = 0
        self._engine = engine
        self._random = random.Random(0)  # noqa: S311 - repeatable on purpose
        self._prefixes = [self._tokens(24) for _ in range(PREFIXES)]
        self._running = 0
        engine.on_end = self._judge

    def send(self, requests: int) -> None:
        """Send them and wait for all answers."""
        engine, sent = self._engine, 0
        while sent < requests or not engine.scheduler.idle:
            while sent < requests and self._running < CONCURRENCY:
                engine.submit(self._random.choice(self._prefixes) + self._tokens(3), 2)
                self._running += 1
                sent += 1
            engine.step()
        for worker in engine.workers:
            worker.plugin(PLUGIN).drain(DRAIN_TIMEOUT_S)

    def counted(self, name: str) -> int:
        """A counter, all ranks."""
        return sum(int(getattr(worker.plugin(PLUGIN).counters, name)) for worker in self._engine.workers)

    def _judge(self, request: Request) -> None:
        vocab = self._engine.config.shape.vocab_size
        self.wrong_answers += request.answer != reference_answer(request.prompt, len(request.answer), vocab)
        self._running -= 1
        self._engine.done.clear()

    def _tokens(self, count: int) -> list[int]:
        return [self._random.randrange(FIRST_TOKEN, 1024) for _ in range(count)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; answers its exit status."""
    parser = argparse.ArgumentParser(description="Run many small requests and see whether anything grows.")
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--pool", choices=["local_dram", "mooncake"], default="local_dram")
    parser.add_argument("--tp", type=int, choices=[1, 2, 4], default=1)
    parser.add_argument("--faults", default="", help="break the pool, as demo --faults does")
    options = parser.parse_args(arguments)
    with quiet():
        result = soak(options.requests, pool=options.pool, tp=options.tp, faults=options.faults)
    console = Console()
    table = Table(title=f"{result.requests:,} requests, {options.pool}, tp {options.tp}", title_justify="left")
    for heading in ("", "RSS MiB", "threads", "open files", "shared segments"):
        table.add_column(heading, justify="right")
    for when, held in zip(("start", "middle", "end"), result.held, strict=True):
        table.add_row(when, f"{held.rss_mib:,.1f}", *map(str, dataclasses.astuple(held)[1:]))
    console.print(table)
    console.print(
        f"{result.reloaded_blocks:,} blocks reloaded, {result.faults:,} faults, {result.corruptions} corruptions, "
        f"{result.wrong_answers} wrong answers, {result.leaked_blocks} leaked blocks, "
        f"{result.hook_errors} hook errors, {result.seconds:.0f} s",
        soft_wrap=True,
        highlight=False,
    )
    return 0 if result.is_right and result.is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
