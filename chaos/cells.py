"""Runs many configurations of the simulated host, a few at a time, each bounded and quiet, in processes of their own.

A cell is one run with its name; what it did is an ``Outcome``.  A cell that stops, dies or hangs is a finding, not the
end of the others.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, TextIO

from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.simulator.neighbour import Neighbour, run_with_neighbour
from mindie_kvpool_plugin.simulator.run import Result, RunConfig, run_with_pool

MEMBERS = ("corruptions", "wrong_answers", "leaked_blocks", "hook_errors")
CELL_TIMEOUT_S = 300.0

_stacks: TextIO | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cell did.

    Attributes:
        cell: the run.
        reloaded: blocks that arrived from the pool, all ranks.
        recomputed: promised blocks that were computed after all, all ranks.
        faults: injected faults that really happened.
        wrong: corruptions, wrong answers, leaked blocks, caught errors in hooks; a neighbour's, too.
        events: how often the host wrote blocks outside a batch: copies, swaps, pulls, repairs of the device.
        exception: why the engine stopped, if it did.
        seconds: the whole cell.
        result: all counts of the run, unless the engine stopped.
    """

    cell: Any
    reloaded: int = 0
    recomputed: int = 0
    faults: int = 0
    wrong: tuple[int, ...] = (0, 0, 0, 0)
    events: int = 0
    exception: str = ""
    seconds: float = 0.0
    result: Result | None = None

    @property
    def is_clean(self) -> bool:
        """Nothing went wrong."""
        return not self.exception and not any(self.wrong)

    @property
    def is_right(self) -> bool:
        """Nothing went wrong and the fault was there."""
        return self.is_clean and self.faults > 0

    @property
    def detail(self) -> str:
        """What went wrong, for people."""
        return self.exception or f"{dict(zip(MEMBERS, self.wrong, strict=True))}, {self.faults} faults"


def run_config(cell: Any, config: RunConfig, neighbour: Neighbour | None = None) -> Outcome:
    """Run a cell's configuration, with another host on its pool or without, in this process."""
    began = time.monotonic()
    with quiet(), _bounded():
        try:
            results = run_with_neighbour(config, neighbour) if neighbour is not None else (run_with_pool(config),)
        except Exception as error:  # noqa: BLE001 - an engine that stopped is a finding, not the end of the matrix
            return Outcome(cell, exception=f"{type(error).__name__}: {error}", seconds=time.monotonic() - began)
    result = results[0]
    return Outcome(
        cell,
        result.reloaded_blocks,
        result.recomputed_blocks,
        sum(result.faults.values()),
        tuple(sum(getattr(each, member) for each in results) for member in MEMBERS),
        result.copied_blocks + result.swapped_blocks + result.pulled_blocks + result.recoveries,
        seconds=time.monotonic() - began,
        result=result,
    )


def run_cells(run: Callable[[Any], Outcome], cells: Sequence[Any], jobs: int) -> Iterator[Outcome]:
    """Run them, ``jobs`` at a time, in processes that run many; one that dies or hangs ends all as failed."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_hush) as pool:
        futures = {pool.submit(run, cell): cell for cell in cells}
        for future in as_completed(futures):
            try:
                yield future.result()
            except Exception as error:  # noqa: BLE001 - the process died
                yield Outcome(futures[future], exception=f"the process ended: {error}")


def sums(outcomes: Sequence[Outcome]) -> list[str]:
    """Cells, reloaded, recomputed, faults, the four kinds of wrong, stopped: as texts for a table."""
    wrong = [sum(column) for column in zip(*(outcome.wrong for outcome in outcomes), strict=True)]
    stopped = sum(bool(outcome.exception) for outcome in outcomes)
    totals = [sum(getattr(outcome, name) for outcome in outcomes) for name in ("reloaded", "recomputed", "faults")]
    return [f"{value:,}" for value in (len(outcomes), *totals, *wrong, stopped)]


HEADINGS = ("cells", "reloaded", "recomputed", "faults", "corrupt", "wrong", "leaked", "hook errors", "stopped")
"""Of the columns that ``sums`` fills."""


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """A cell that never ends says where it stands and ends its process."""
    faulthandler.dump_traceback_later(CELL_TIMEOUT_S, exit=True, file=_stacks or sys.stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is logged meanwhile."""
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _hush() -> None:
    """Mooncake's own log: one line per client, straight to the file descriptor."""
    global _stacks  # noqa: PLW0603 - set once per process, before anything runs
    _stacks = os.fdopen(os.dup(2), "w")
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
