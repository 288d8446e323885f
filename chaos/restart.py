"""What a restart costs: prompt tokens computed cold, after an engine's SIGKILL, and after that of its store, too.

``python -m chaos.restart`` prints one table: without a pool, with the memory in the engine, in a store, and in a
store with an SSD tier, each on a real ``mooncake_master`` and real processes.  Every engine answers the same
requests, more than memory holds; every byte it reads is checked.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.stage import ANSWER_TIMEOUT_S, ChaosError, EngineProcess, Report, Stage
from mindie_kvpool_plugin.pools.mooncake.limits import MIN_SEGMENT_BYTES
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster, write_pool_file

MIB = 1024**2
MEMORY_BYTES = MIN_SEGMENT_BYTES
DISK_BYTES = 8 * MEMORY_BYTES
HITS_WITHIN_S = 5.0
SEED = 7
REQUESTS = 150
HEAD_SIZE = 256  # blocks of 16 KiB: the prompts' 24 MiB are more than memory, and less than memory and disk
MASTER_FLAGS = ("--client_ttl=5", "--eviction_high_watermark_ratio=0.95", "--eviction_ratio=0.02")
SSD_FLAGS = ("--enable_offload=true", "--offload_on_evict=true")
STAGING = {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(64 * MIB)}
WIDTH = 140


@dataclass(frozen=True, slots=True)
class Shape:
    """Where the pool's memory is.

    Attributes:
        name: for the table.
        owner: of the memory.
        with_ssd: a disk behind it.
        memory_bytes: of it.
    """

    name: str
    owner: str
    with_ssd: bool = False
    memory_bytes: int = MEMORY_BYTES


SHAPES = (
    Shape("no pool", "nobody"),
    Shape("memory in the engine", "engine"),
    Shape("store", "store"),
    Shape("store with an SSD", "store", with_ssd=True),
    Shape("store with twice the memory", "store", memory_bytes=2 * MEMORY_BYTES),
)


@dataclass(slots=True)
class Row:
    """Prompt tokens computed for the same requests; None: there was no such run.

    Attributes:
        prompt: tokens of the prompts.
        cold: with nothing in the pool.
        restarted: by an engine that follows one that was killed.
        first_hit_s: from its readiness to its first reload; None: there was none.
        store_restarted: by a third one, after engine and store were killed.
        is_right: nothing wrong was read.
    """

    prompt: int = 0
    cold: int = 0
    restarted: int = 0
    first_hit_s: float | None = None
    store_restarted: int | None = None
    is_right: bool = True


class StoreProcess:
    """``mindie-kvpool store`` beside the engines; leave the block to end it."""

    def __init__(self, shape: Shape, folder: Path, master: MooncakeMaster) -> None:
        self._shape, self._folder, self._master = shape, folder, master
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it is part of the pool.

        Raises:
            ChaosError: it ended instead.
        """
        path = self._folder / "store.json"
        write_pool_file(path, self._master.address, 0)
        command = [sys.executable, "-m", "mindie_kvpool_plugin", "store", str(path), "--drain", "0"]
        command += ["--size", str(self._shape.memory_bytes), "--metrics-port", str(self._master.metrics_port)]
        if self._shape.with_ssd:
            command += ["--ssd", str(self._folder / "ssd"), "--ssd-size", str(DISK_BYTES)]
        with (self._folder / "store.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **STAGING}
            )
        if self._process.stdout is None or not self._process.stdout.readline():
            raise ChaosError(f"the store ended: {(self._folder / 'store.log').read_text()}")

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


@contextlib.contextmanager
def _stores(shape: Shape, folder: Path, master: MooncakeMaster) -> Iterator[StoreProcess]:
    store = StoreProcess(shape, folder, master)
    try:
        if shape.owner == "store":
            store.start()
        yield store
    finally:
        store.kill()


def measure(shape: Shape, requests: int) -> Row:
    """Let three engines answer the same requests, one after the other, each killed.

    Raises:
        ChaosError: a process did not do what it should.
    """
    flags = (*MASTER_FLAGS, *(SSD_FLAGS if shape.with_ssd else ()))
    with tempfile.TemporaryDirectory() as name, MooncakeMaster(*flags) as master:
        stage = Stage(master, Report(shape.name), Path(name))
        try:
            with _stores(shape, Path(name), master) as store:
                return _three_engines(stage, shape, store, requests)
        finally:
            stage.end()


def _three_engines(stage: Stage, shape: Shape, store: StoreProcess, requests: int) -> Row:
    row = Row()
    row.cold, _ = _answer(stage, shape, row, requests)
    row.restarted, row.first_hit_s = _answer(stage, shape, row, requests)
    if shape.owner == "store":
        store.kill()
        store.start()
        row.store_restarted, _ = _answer(stage, shape, row, requests)
    return row


def _answer(stage: Stage, shape: Shape, row: Row, requests: int) -> tuple[int, float | None]:
    """One engine's life: prompt tokens it computed, and when it first reloaded a block."""
    segment = shape.memory_bytes if shape.owner == "engine" else 0
    engine = stage.ready(
        seed=SEED, with_pool=shape.owner != "nobody", segment_bytes=segment, head_size=HEAD_SIZE, async_write=False
    )
    began = time.monotonic()
    heard = engine.tell("serve", requests=requests)
    first = _first_hit_s(engine, heard, began) if shape.owner != "nobody" else None
    facts = engine.wait_for("done", ANSWER_TIMEOUT_S, heard)
    row.prompt = facts["prompt_tokens"]
    row.is_right &= not any(facts[name] for name in ("corruptions", "wrong_answers", "leaked_blocks", "hook_errors"))
    engine.kill()
    return facts["computed_tokens"], first


def _first_hit_s(engine: EngineProcess, heard: int, began: float) -> float | None:
    with contextlib.suppress(ChaosError):
        hit = engine.wait_until(lambda facts: facts.get("reloaded_blocks", 0) > 0, "a hit", HITS_WITHIN_S * 2, heard)
        return max(0.0, float(hit["at_s"]) - began)
    return None


def show(rows: dict[str, Row], console: Console) -> None:
    """The table."""
    table = Table(title="prompt tokens computed for the same requests", title_justify="left")
    table.add_column("")
    for title in ("asked", "cold", "engine killed", "first hit", "store killed, too", "right"):
        table.add_column(title, justify="right")
    for name, row in rows.items():
        first = "-" if row.first_hit_s is None else f"{row.first_hit_s:.1f} s"
        third = "-" if row.store_restarted is None else f"{row.store_restarted:,}"
        table.add_row(
            name,
            f"{row.prompt:,}",
            f"{row.cold:,}",
            f"{row.restarted:,}",
            first,
            third,
            "yes" if row.is_right else "NO",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 if something was read wrong, or a store's next engine hit too late."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--only", choices=[shape.name for shape in SHAPES], action="append")
    chosen = parser.parse_args(arguments)
    rows = {
        shape.name: measure(shape, chosen.requests)
        for shape in SHAPES
        if chosen.only is None or shape.name in chosen.only
    }
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    show(rows, console)
    late = [
        shape.name
        for shape in SHAPES
        if shape.name in rows
        and shape.owner == "store"
        and (rows[shape.name].first_hit_s or HITS_WITHIN_S) >= HITS_WITHIN_S
    ]
    return 1 if late or not all(row.is_right for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
