"""Two hosts on one pool: what one stored, the other is promised.

A host alone finds in the pool only what it computed itself and has lost since.  With a neighbour it is promised blocks
that it never computed, also of prompts that it computes right now.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from mindie_kvpool_plugin.simulator.run import (
    Result,
    RunConfig,
    broken_pool,
    opened_pool,
    result_of,
    run_traffic,
    sent,
)
from mindie_kvpool_plugin.simulator.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another host like that of a run, on the same pool.  Its device does not fail.

    Attributes:
        make_traffic: makes its traffic.
        ahead: turns it takes before the run's host begins; from then on each takes one.  None: its traffic ends, what
            it has is stored, and it is gone before the run begins; the pool breaks only then.
    """

    make_traffic: Callable[[], Traffic]
    ahead: int | None = None


def run_with_neighbour(config: RunConfig, neighbour: Neighbour) -> tuple[Result, Result]:
    """Send each its traffic, on an empty pool that is broken as the configuration asks.

    Answers the run's result, with all faults, and the neighbour's.
    """
    with (
        opened_pool(config) as pooled,
        broken_pool(pooled, config.faults) as (engine, record),
    ):
        run = dataclasses.replace(config, engine=engine)
        other = dataclasses.replace(run, make_traffic=neighbour.make_traffic, fail_after=0)
        if neighbour.ahead is None:
            with record.sparing():
                before = run_traffic(other)
            result = run_traffic(run)
        else:
            result, before = _by_turns(run, other, neighbour.ahead)
    return dataclasses.replace(result, faults=dict(sorted(record.happened.items()))), before


def _by_turns(run: RunConfig, other: RunConfig, ahead: int) -> tuple[Result, Result]:
    began = time.perf_counter()
    with sent(run) as (host, client), sent(other) as (neighbour, others):
        for _ in range(ahead):
            others.turn()
        while any([client.turn(), others.turn()]):  # a list: both take theirs
            pass
        seconds = time.perf_counter() - began
        return result_of(host, client.asked, seconds), result_of(neighbour, others.asked, seconds)
