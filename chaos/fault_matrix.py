"""Every fault x scheduling x asyncWrite x ranks x pool: what happened, and that nothing went wrong.

``python -m chaos.fault_matrix`` runs all cells, a few at a time, each in a process of its own, and prints
one line per fault.  The traffic is made of few long prefixes in a device memory that holds a fraction of
them, so most of what a request needs is a reload; some prompts are asked again.  Exit status 1 if anything
went wrong.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos.cells import HEADINGS, Outcome, run_cells, run_config, sums
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.requests import Limits
from mindie_kvpool_plugin.simulator.run import PoolName, RunConfig
from mindie_kvpool_plugin.simulator.traffic import Traffic, few_shot

SLOW_LOOKUP = "slow_lookup_ms"
FAULTS = {
    "get_fail": "get_fail=0.15",
    "short": "short=0.15",
    "torn": "torn=0.15",
    "flip": "flip=0.15",
    "evict": "evict=0.1",
    "put_fail": "put_fail=0.3",
    "stale": "stale=0.3",
    "lie": "lie=0.5",
    "deny": "deny=0.02",
    "raise": "raise=0.2",
    "wrong_length": "wrong_length=0.2",
    "slow": "slow_ms=3:0.1",
    "hang": "hang_ms=40:0.03",
    "slow lookups": f"{SLOW_LOOKUP}=40:0.9",
    "crash": "crash=0.15",
    "one rank": "get_fail=0.1,torn=0.05,raise=0.02,rank=1",
    "all at once": "get_fail=0.03,short=0.03,torn=0.03,flip=0.03,evict=0.02,put_fail=0.05,stale=0.05,lie=0.1,"
    "deny=0.005,raise=0.02,wrong_length=0.02,slow_ms=2:0.02,hang_ms=20:0.005,crash=0.005",
}
"""Row of the table -> spec."""

SECTIONS: dict[str, dict[str, Any]] = {"slow lookups": {"lookup_budget_s": KvPoolOptions().lookup_budget_s}}
"""Row of the table -> options of the pool: the simulated host is more patient than what is tried there."""

SHAPE = ModelShape(num_layers=1, num_kv_heads=4, head_size=4)
BLOCK_TOKENS = 4
EXAMPLES = 24
EXAMPLE_TOKENS = 256
HBM_BLOCKS = 300
REPEATED_AFTER = 13
WIDTH = 140  # of the table in a file


@dataclass(frozen=True, slots=True)
class Cell:
    """One run.

    Attributes:
        fault: row of the table.
        async_scheduling, async_write, tp: the engine.
        pool: the backend.
        requests: how many.
    """

    fault: str
    async_scheduling: bool
    async_write: bool
    tp: int
    pool: PoolName
    requests: int

    @property
    def name(self) -> str:
        """For people."""
        scheduling, write = ("async" if flag else "sync" for flag in (self.async_scheduling, self.async_write))
        return f"{self.fault}, {scheduling} scheduling, {write} write, tp {self.tp}, {self.pool}"


def all_cells(requests: int, mooncake_requests: int) -> list[Cell]:
    """The whole matrix: "one rank" needs several."""
    cells = []
    for pool, count in (("mooncake", mooncake_requests), ("local_dram", requests)):
        for fault, asynchronous, write, tp in itertools.product(FAULTS, (False, True), (False, True), (1, 4)):
            if count and (fault != "one rank" or tp > 1):
                cells.append(Cell(fault, asynchronous, write, tp, pool, count))  # type: ignore[arg-type]
    return cells


def slice_of_cells(requests: int) -> list[Cell]:
    """Each fault once, the modes in turn, without a service: bounded, for the tests."""
    modes = itertools.cycle(itertools.product((False, True), (False, True), (4, 1)))
    cells = []
    for fault in FAULTS:
        asynchronous, write, tp = next(modes)
        cells.append(Cell(fault, asynchronous, write, 4 if fault == "one rank" else tp, "local_dram", requests))
    return cells


def run_cell(cell: Cell) -> Outcome:
    """Run it, in this process."""
    config = RunConfig(
        EngineConfig(
            shape=SHAPE,
            block_size=BLOCK_TOKENS,
            hbm_blocks=HBM_BLOCKS,
            tp=cell.tp,
            async_scheduling=cell.async_scheduling,
            async_write=cell.async_write,
            max_seq_len=EXAMPLE_TOKENS + 40,
            limits=Limits(max_batch=4),
        ),
        lambda: _with_repeats(
            few_shot(
                cell.requests, examples=EXAMPLES, example_tokens=EXAMPLE_TOKENS, question_tokens=6, answer_tokens=2
            )
        ),
        concurrency=4,
        pool=cell.pool,
        pool_blocks=20_000,
        faults=parse_spec(FAULTS[cell.fault]),
        section=SECTIONS.get(cell.fault, {}),
    )
    return run_config(cell, config)


def _with_repeats(traffic: Traffic) -> Traffic:
    """Every fourth prompt is one of a moment ago: gone from device memory, and the scheduler remembers its answer."""
    prompts = list(traffic.ready)
    for row in range(REPEATED_AFTER, len(prompts), 4):
        prompts[row] = replace(prompts[row - REPEATED_AFTER], speaker=prompts[row].speaker)
    return Traffic(prompts)


def table_of(outcomes: Iterable[Outcome]) -> Table:
    """One line per fault and pool, and the sum."""
    table = Table(title="Faults injected into the pool; blocks count per rank", title_justify="left")
    table.add_column("fault")
    table.add_column("pool")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    found = list(outcomes)
    for pool in ("local_dram", "mooncake"):
        for fault in FAULTS:
            rows = [outcome for outcome in found if (outcome.cell.fault, outcome.cell.pool) == (fault, pool)]
            if rows:
                table.add_row(fault, pool, *sums(rows))
    table.add_section()
    table.add_row("all", "", *sums(found))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; answers its exit status."""
    parser = argparse.ArgumentParser(description="Run the fault matrix on the simulated host and print its table.")
    parser.add_argument("--requests", type=int, default=250, help="requests per cell on local_dram (default 250)")
    parser.add_argument(
        "--mooncake-requests", type=int, default=100, help="the same on Mooncake (default 100); 0: none"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cells at once (default: processors)")
    parser.add_argument("--slice", action="store_true", help="each fault once, on local_dram only")
    options = parser.parse_args(arguments)
    cells = (
        slice_of_cells(options.requests) if options.slice else all_cells(options.requests, options.mooncake_requests)
    )
    console, began = Console(), time.monotonic()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    outcomes = []
    for outcome in run_cells(run_cell, cells, options.jobs):
        outcomes.append(outcome)
        if not outcome.is_right:
            console.print(f"NOT RIGHT: {outcome.cell.name}: {outcome.detail}", soft_wrap=True, highlight=False)
    console.print(table_of(outcomes))
    console.print(f"{len(outcomes)} cells in {time.monotonic() - began:.0f} s", highlight=False)
    return 0 if all(outcome.is_right for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
