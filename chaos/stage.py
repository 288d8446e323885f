"""A stage for scenarios: a running master, engines in processes of their own, and the report of what was found.

Loopback only, and only processes started here are ever signalled.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.engine import ChaosConfig
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster, write_pool_file

ROOT = Path(__file__).parents[1]
START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 120.0
CLOSE_TIMEOUT_S = 90.0
SEGMENT_BYTES = 16 * 1024**2
JUDGED = ("corruptions", "wrong_answers", "leaked_blocks", "hook_errors")


class ChaosError(Exception):
    """A scenario could not be carried out, or an engine stopped."""


class EngineProcess:
    """An engine in a process of its own.

    Attributes:
        facts: all it said that counts, oldest first.
    """

    def __init__(self, config: ChaosConfig, log: Path) -> None:
        self.facts: list[dict[str, Any]] = []
        self._heard = threading.Condition()
        self._is_over = False
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "chaos.engine", _as_json(config)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def last(self) -> dict[str, Any]:
        """The newest counts."""
        with self._heard:
            return next((facts for facts in reversed(self.facts) if "requests" in facts), {})

    def wait_for(self, event: str, timeout_s: float = ANSWER_TIMEOUT_S, after: int = 0) -> dict[str, Any]:
        """The first ``event`` it says after the first ``after`` lines.

        Raises:
            ChaosError: it stopped, or said nothing in time.
        """
        return self.wait_until(lambda facts: facts["event"] == event, f'"{event}"', timeout_s, after)

    def wait_until(
        self, is_met: Callable[[dict[str, Any]], bool], what: str, timeout_s: float, after: int = 0
    ) -> dict[str, Any]:
        """The first line after ``after`` lines that meets the condition.

        Raises:
            ChaosError: it stopped, or no such line came in time.
        """
        deadline = time.monotonic() + timeout_s
        with self._heard:
            while True:
                for facts in self.facts[after:]:
                    if is_met(facts):
                        return facts
                    if facts["event"] in ("exception", "refused"):
                        raise ChaosError(f"engine {self.pid}: {facts['text']}")
                after = len(self.facts)
                left = deadline - time.monotonic()
                if self._is_over or left <= 0:
                    raise ChaosError(f"engine {self.pid} {'ended' if self._is_over else 'is silent'}, expected {what}")
                self._heard.wait(left)

    def tell(self, do: str, **more: Any) -> int:
        """Give a command; answers how many lines were heard before."""
        with self._heard:
            heard = len(self.facts)
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
            self._process.stdin.flush()
        return heard

    def ask(self, requests: int) -> dict[str, Any]:
        """Let it answer some requests; its counts afterwards."""
        return self.wait_for("done", after=self.tell("serve", requests=requests))

    def stop_serving(self) -> dict[str, Any]:
        """End an open-ended ``serve``; its counts."""
        return self.wait_for("done", after=self.tell("serve", requests=0))

    def close(self) -> None:
        """End it properly.

        Raises:
            ChaosError: it did not end in time.
        """
        self.wait_for("closed", CLOSE_TIMEOUT_S, after=self.tell("close"))
        self._process.wait(CLOSE_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL: nothing is said good-bye to."""
        self._process.kill()
        self._process.wait(START_TIMEOUT_S)

    def terminate(self) -> int:
        """SIGTERM, as the daemon stops a worker; its exit status."""
        self._process.terminate()
        return self._process.wait(START_TIMEOUT_S)

    def end(self) -> None:
        """Whatever state it is in."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        self.kill()
        self._listener.join(START_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            with self._heard:
                self.facts.append(json.loads(line))
                self._heard.notify_all()
        with self._heard:
            self._is_over = True
            self._heard.notify_all()


@dataclass
class Report:
    """What a scenario found.

    Attributes:
        name: the scenario.
        proof: what shows that the fault happened; empty: it did not.
        totals: counts of all engines that answered.
        notes: measured figures, in words.
        misses: figures that are not yet what they should be.
        exception: why it could not be carried through.
        seconds: how long it took.
    """

    name: str
    proof: str = ""
    totals: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    exception: str = ""
    seconds: float = 0.0

    @property
    def is_right(self) -> bool:
        """The fault happened and nothing went wrong."""
        return bool(self.proof) and not self.exception and not any(self.totals.get(name, 0) for name in JUDGED)

    def add(self, facts: dict[str, Any]) -> None:
        """Count what one engine did."""
        for name, value in facts.items():
            if isinstance(value, int) and not isinstance(value, bool):
                self.totals[name] = self.totals.get(name, 0) + value


@dataclass
class Stage:
    """A running master and whoever uses it.

    Attributes:
        master: the master.
        report: what is found.
        folder: for pool files and logs.
    """

    master: MooncakeMaster
    report: Report
    folder: Path

    def __post_init__(self) -> None:
        self._engines: list[EngineProcess] = []

    def engine(
        self, *, address: str = "", with_pool: bool = True, segment_bytes: int = SEGMENT_BYTES, **config: Any
    ) -> EngineProcess:
        """Start an engine; do not wait for it."""
        pool_file = ""
        if with_pool:
            path = self.folder / f"pool-{len(self._engines)}.json"
            # a simulated model computes in next to no time: by itself the plugin would load nothing, and store little
            options = {"load": "always", "reload_budget_ms": 60_000}
            write_pool_file(path, address or self.master.address, segment_bytes, **options)
            pool_file = str(path)
        self._engines.append(EngineProcess(ChaosConfig(pool_file=pool_file, **config), self.folder / "engines.log"))
        return self._engines[-1]

    def ready(self, **config: Any) -> EngineProcess:
        """Start an engine and wait until it serves."""
        engine = self.engine(**config)
        engine.wait_for("ready", START_TIMEOUT_S)
        return engine

    def end(self) -> None:
        """End every process that is left."""
        for engine in self._engines:
            engine.end()


def _as_json(config: ChaosConfig) -> str:
    return json.dumps(dataclasses.asdict(config))
