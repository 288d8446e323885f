"""One simulated engine in a process of its own, for ``chaos.stage``; it may be frozen or killed at any moment.

Commands come as JSON lines on standard input, answers go as JSON lines to standard output: ``ready`` or
``refused`` first, a ``window`` every so often while it serves, ``done`` after a command, ``exception`` if the
engine stopped.  The end of standard input ends the process; every loop has a bound besides.  A SIGTERM ends it as it
ends the host's workers: channels are closed, and the thread that waits at one exits.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from mindie_kvpool_plugin.errors import KvPoolError
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.oracle import FIRST_TOKEN, reference_answer
from mindie_kvpool_plugin.simulator.requests import Limits, Request
from mindie_kvpool_plugin.simulator.run import DRAIN_TIMEOUT_S, PLUGIN, POOL_PLUGINS

WINDOW_S = 0.2
SIGNAL_POLL_S = 0.5
LONGEST_SERVE_S = 120.0
CONCURRENCY = 4
COUNTED = (
    "promised_blocks",
    "reloaded_blocks",
    "recomputed_blocks",
    "failed_get_blocks",
    "failed_put_blocks",
    "spilled_blocks",
)


@dataclass(frozen=True, slots=True)
class ChaosConfig:
    """One engine process.

    Attributes:
        pool_file: Mooncake's pool file; empty: no pool.
        seed: of the prompts: engines with one seed ask the same.
        prefixes, prefix_tokens: long beginnings the prompts share.
        head_size: of the model; decides how large a block is.
        hbm_blocks: device blocks.
        async_scheduling, async_write: the engine.
        step_ms, token_us: what the model takes per step and per computed token.
    """

    pool_file: str = ""
    seed: int = 0
    prefixes: int = 24
    prefix_tokens: int = 256
    head_size: int = 4
    hbm_blocks: int = 100
    async_scheduling: bool = True
    async_write: bool = True
    step_ms: float = 4.0
    token_us: float = 20.0


class ChaosEngine:
    """The engine, its prompts, and what it says."""

    def __init__(self, config: ChaosConfig) -> None:
        self._config = config
        self._prompts = self._make_prompts()
        self._commands: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._steps = 0
        self._slowest_step_s = 0.0
        self._engine = Engine(
            EngineConfig(
                shape=ModelShape(num_layers=1, num_kv_heads=4, head_size=config.head_size),
                block_size=4,
                hbm_blocks=config.hbm_blocks,
                plugins=POOL_PLUGINS if config.pool_file else "prefix_cache",
                backend="mooncake" if config.pool_file else "",
                pool_file=config.pool_file,
                async_scheduling=config.async_scheduling,
                async_write=config.async_write,
                max_seq_len=config.prefix_tokens + 32,
                limits=Limits(max_prefill_batch=1, max_batch=CONCURRENCY),
            )
        )

    def run(self) -> None:
        """Obey until the input ends."""
        threading.Thread(target=self._read, daemon=True).start()
        _listen_as_the_host()
        _say(event="ready", pid=os.getpid())
        while (command := self._next()) is not None:
            if command["do"] == "close":
                break
            requests, seconds = command.get("requests", sys.maxsize), command.get("seconds", LONGEST_SERVE_S)
            self._serve(requests, min(seconds, LONGEST_SERVE_S))
            self._drain()
            _say(event="done", **self._facts())
        self._engine.close()
        _say(event="closed")

    def _next(self) -> dict[str, Any] | None:
        while True:
            # a signal that comes just before a wait begins is seen when it ends
            with contextlib.suppress(Empty):
                return self._commands.get(timeout=SIGNAL_POLL_S)

    def _read(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        self._commands.put(None)

    def _serve(self, requests: int, seconds: float) -> None:
        """Keep CONCURRENCY requests running until all are sent, the time is over, or another command waits."""
        engine, sent, before = self._engine, 0, len(self._engine.done)
        shown = time.monotonic()
        end = shown + seconds
        while True:
            is_open = sent < requests and time.monotonic() < end and self._commands.empty()
            if not is_open and engine.scheduler.idle:
                return
            while is_open and sent < requests and sent - (len(engine.done) - before) < CONCURRENCY:
                engine.submit(next(self._prompts), 2)
                sent += 1
            self._step()
            if time.monotonic() > shown + WINDOW_S:
                shown = time.monotonic()
                _say(event="window", **self._facts(judge=False))

    def _step(self) -> None:
        began, before = time.monotonic(), self._engine.computed_tokens
        self._engine.step()
        took = time.monotonic() - began
        self._steps += 1
        self._slowest_step_s = max(self._slowest_step_s, took)
        tokens = self._engine.computed_tokens - before
        # what a model would take: the simulated one computes in no time
        time.sleep(self._config.step_ms / 1e3 + tokens * self._config.token_us / 1e6)

    def _drain(self) -> None:
        plugin = self._engine.plugin(PLUGIN)
        if plugin is not None:
            plugin.drain(DRAIN_TIMEOUT_S)

    def _facts(self, judge: bool = True) -> dict[str, Any]:
        engine = self._engine
        counters = getattr(engine.plugin(PLUGIN), "counters", None)
        facts: dict[str, Any] = {name: int(getattr(counters, name, 0)) for name in COUNTED}
        facts |= {
            "at_s": time.monotonic(),
            "computed_tokens": engine.computed_tokens,
            "prompt_tokens": sum(request.prompt_tokens for request in engine.done),
            "requests": len(engine.done),
            "steps": self._steps,
            "slowest_step_s": round(self._slowest_step_s, 2),
            "hook_errors": int(getattr(counters, "hook_errors", 0)),
            "corruptions": engine.oracle.corruptions + engine.oracle.input_errors,
        }
        if judge:
            facts |= {"wrong_answers": sum(map(self._is_wrong, engine.done)), "leaked_blocks": engine.leaked_blocks}
        return facts

    def _is_wrong(self, request: Request) -> bool:
        vocab = self._engine.config.shape.vocab_size
        return request.answer != reference_answer(request.prompt, len(request.answer), vocab)

    def _make_prompts(self) -> Iterator[list[int]]:
        """Each a prefix, some far more often than others, and a question of its own."""
        config = self._config
        source = random.Random(config.seed)  # noqa: S311 - repeatable on purpose
        prefixes = [_tokens(source, config.prefix_tokens) for _ in range(config.prefixes)]
        while True:
            yield prefixes[int(config.prefixes * source.random() ** 2)] + _tokens(source, 6)


def _listen_as_the_host() -> None:
    from mindie_llm.connector.request_listener.request_listener import RequestListener  # noqa: PLC0415 - the engine's

    listener = RequestListener.get_instance(None)
    threading.Thread(target=listener.start, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: listener.stop())


def _tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(FIRST_TOKEN, 1024) for _ in range(count)]


def _say(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main() -> int:
    """The process; answers its exit status."""
    try:
        engine = ChaosEngine(ChaosConfig(**json.loads(sys.argv[1])))
    except KvPoolError as error:
        _say(event="refused", text=str(error))
        return 2
    try:
        engine.run()
    except Exception:  # noqa: BLE001 - said to whoever started us
        _say(event="exception", text=traceback.format_exc())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
