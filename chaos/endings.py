"""What an engine leaves behind when it ends: memory that the master still lists, and blocks that it still promises.

``python -m chaos.endings`` prints one table.  An engine with its memory in its own process fills it and ends; the next
one starts at once and answers the same requests.  Killed, it can say nothing: so it was at a SIGTERM, too, before
``host.leaving``, since the host ends a worker with ``os._exit``.  Real processes, real signals, a real master.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.restart import HEAD_SIZE, SEED
from chaos.stage import ANSWER_TIMEOUT_S, EngineProcess, Report, Stage
from mindie_kvpool_plugin.pools.mooncake.admin import Admin
from mindie_kvpool_plugin.simulator.mooncake_master import HOST, MooncakeMaster

SEGMENT_BYTES = 64 * 1024**2  # all of the requests' blocks
REQUESTS = 60
MASTER_FLAGS = ("--client_ttl=10", "--eviction_high_watermark_ratio=0.95", "--eviction_ratio=0.02")
POLL_S = 0.02
CLEAN_WITHIN_S = 60.0
ENDINGS = ("killed", "stopped")


@dataclass(slots=True)
class Row:
    """What came after an engine's end.

    Attributes:
        took_s: from the signal to the process's end.
        segments: of it that the master lists when the next engine is ready.
        clean_s: from the process's end until the master lists none of them.
        computed: prompt tokens the next engine computed for its requests.
        promised, recomputed: blocks it was promised for them, and those of them that were not there.
        is_right: nothing wrong was read.
    """

    took_s: float = 0.0
    segments: int = 0
    clean_s: float = 0.0
    computed: int = 0
    promised: int = 0
    recomputed: int = 0
    is_right: bool = True


def measure(ending: str, requests: int = REQUESTS) -> Row:
    """Let an engine fill its memory and end; let the next one answer the same.

    Raises:
        ChaosError: a process did not do what it should.
        TimeoutError: the master lists the dead memory for ever.
    """
    with tempfile.TemporaryDirectory() as folder, MooncakeMaster(*MASTER_FLAGS) as master:
        stage, admin = Stage(master, Report(ending), Path(folder)), Admin(HOST, master.metrics_port)
        try:
            return _measure(stage, admin, ending, requests)
        finally:
            stage.end()


def _measure(stage: Stage, admin: Admin, ending: str, requests: int) -> Row:
    row = Row()
    first = _ready(stage)
    _answer(first, row, requests)
    left = {segment.name for segment in admin.segments()}
    began = time.monotonic()
    if ending == "killed":
        first.kill()
    else:
        first.terminate()
    ended = time.monotonic()
    row.took_s = ended - began
    watch = ThreadPoolExecutor(1).submit(_forgotten_s, admin, left, ended)
    second = _ready(stage)
    row.segments = len(_listed(admin, left))
    facts = _answer(second, row, requests)
    row.computed = facts["computed_tokens"]
    row.promised, row.recomputed = facts["promised_blocks"], facts["recomputed_blocks"]
    row.clean_s = watch.result()
    return row


def _listed(admin: Admin, names: set[str]) -> set[str]:
    return names & {segment.name for segment in admin.segments()}


def _forgotten_s(admin: Admin, names: set[str], ended: float) -> float:
    """How long after a process's end the master lists its memory."""
    while _listed(admin, names):
        if time.monotonic() > ended + CLEAN_WITHIN_S:
            raise TimeoutError(f"the master still lists {', '.join(names)}")
        time.sleep(POLL_S)
    return time.monotonic() - ended


def _ready(stage: Stage) -> EngineProcess:
    return stage.ready(seed=SEED, segment_bytes=SEGMENT_BYTES, head_size=HEAD_SIZE, async_write=False)


def _answer(engine: EngineProcess, row: Row, requests: int) -> dict[str, int]:
    facts = engine.wait_for("done", ANSWER_TIMEOUT_S, engine.tell("serve", requests=requests))
    row.is_right &= not any(facts[name] for name in ("corruptions", "wrong_answers", "leaked_blocks", "hook_errors"))
    return facts


def show(rows: dict[str, Row], console: Console) -> None:
    """The table."""
    table = Table(title="an engine ends, and the next one starts", title_justify="left")
    table.add_column("")
    for title in (
        "ends within",
        "segments left",
        "forgotten after",
        "computed tokens",
        "blocks promised",
        "not there",
        "right",
    ):
        table.add_column(title, justify="right")
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row.took_s:.2f} s",
            str(row.segments),
            f"{row.clean_s:.1f} s",
            f"{row.computed:,}",
            f"{row.promised:,}",
            f"{row.recomputed:,}",
            "yes" if row.is_right else "NO",
        )
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; exit status 1 if something was read wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--only", choices=ENDINGS, action="append")
    chosen = parser.parse_args(arguments)
    rows = {ending: measure(ending, chosen.requests) for ending in chosen.only or ENDINGS}
    show(rows, Console(width=None if sys.stdout.isatty() else 120))
    return 0 if all(row.is_right for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
