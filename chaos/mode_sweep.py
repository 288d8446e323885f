"""Seeded combinations of modes and faults on the simulated host: ``python -m chaos.mode_sweep [--seeds 300]``.

A seed decides the mode (several answers, beam search, swap preemption, repair of the device, LoRA adapters, SplitFuse,
context parallelism, data parallelism with one server or, on a prefill node, with several, multi-token prediction,
lookahead, memory decoding, prefill and decode on two nodes, two flex nodes, or none of them), the scheduling,
asyncWrite, ranks, cache layout, block size, device memory, traffic, the size of the pool, who else uses it and what is
wrong with it.
Another host has filled the pool before with all of the traffic or a part of it, or takes turns with this one, or there
is none.  The same seed is the same run.  Exit status 1 if anything went wrong, if a mode never did what it is named
after, if lookups were slow and none was left out, or if no small pool had to let blocks go.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Console
from rich.table import Table

from chaos.cells import HEADINGS, Outcome, run_cells, run_config, sums
from chaos.fault_matrix import FAULTS, SECTIONS, SLOW_LOOKUP, WIDTH
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.neighbour import Neighbour
from mindie_kvpool_plugin.simulator.pulls import PullFaults
from mindie_kvpool_plugin.simulator.run import RunConfig
from mindie_kvpool_plugin.simulator.speculation import Speculation, la, memory_decoding, mtp
from mindie_kvpool_plugin.simulator.traffic import Chat
from mindie_kvpool_plugin.simulator.two_nodes import TwoNodes

TWO_NODES = ("two nodes", "two flex nodes")
MODES = (
    *("plain", "several answers", "swap", "recovery", "adapters", "chunks", "dealt out", "groups", "beams", "mtp"),
    *("la", "memory decoding"),
    *TWO_NODES,
    "servers",
)
WRITING_MODES = frozenset({"several answers", "beams", "swap", "recovery", *TWO_NODES})
"""In these the host writes blocks outside a batch."""

GROUPS = frozenset({"several answers", "beams"})
"""In these some requests have several sequences."""

SYNC_ONLY = GROUPS | {"la", "memory decoding", "two flex nodes", "servers"}
"""The host's documents exclude asynchronous scheduling for them."""

SYNC_WRITE_ONLY = frozenset({"chunks"})
"""The host refuses asyncWrite with it."""

SEVERAL_MEMORIES = frozenset({"dealt out", "groups", "servers"})
"""Blocks are counted per rank or group there."""

SHAPES = (
    ModelShape(),
    ModelShape(num_kv_heads=2),
    ModelShape(num_kv_heads=1, mla=(32, 8), dtype="bfloat16"),
    ModelShape(int8_key_layers=(0,)),
    ModelShape(index_head_size=8),
)
POOLS = ("alone", "filled", "shared")
"""Nobody else uses the pool; another host did before; another host does."""

AMPLE_BLOCKS = 4096
SMALL_SHARE = 0.5

SLOW = "slow lookups"
SEEDS = 300


@dataclass(frozen=True, slots=True)
class Combination:
    """What one seed stands for.

    Attributes:
        seed: of everything.
        mode: of ``MODES``.
        fault: of the fault matrix, or "none".
        pool: of ``POOLS``.
    """

    seed: int
    mode: str
    fault: str
    pool: str

    @property
    def name(self) -> str:
        """For people; the seed alone repeats the run."""
        return f"seed {self.seed}: {self.mode}, pool {self.pool}, fault {self.fault}"


def combination(seed: int) -> Combination:
    """The mode, the pool and the fault of a seed; all take turns, so that a few seeds show each."""
    faults = ("none", *FAULTS)
    row, mode = divmod(seed, len(MODES))
    # a fault meets another pool in the next mode, and in the same mode when its turn comes again
    pool = (row + row // len(faults) + mode) % len(POOLS)
    return Combination(seed, MODES[mode], faults[row % len(faults)], POOLS[pool])


def configuration(cell: Combination) -> RunConfig:
    """The run that a combination stands for."""
    draw = random.Random(f"mode sweep {cell.seed}")  # noqa: S311 - repeatable choices are the point
    asynchronous = cell.mode not in SYNC_ONLY and draw.random() < 0.5
    block_size = draw.choice((4, 8, 16))
    # without preemption there only starts what surely ends, and short flex nodes wait for each other for ever
    roomy = 2 if asynchronous or cell.mode == "two flex nodes" else 1
    is_swapping, shares = cell.mode == "swap", 2 if cell.mode in SEVERAL_MEMORIES else 1
    engine = EngineConfig(
        shape=draw.choice(SHAPES),
        block_size=block_size,
        hbm_blocks=(40 if is_swapping else draw.choice((48, 56, 72)) * roomy) * 16 // block_size // shares,
        tp=2 if cell.fault == "one rank" else draw.choice((1, 2, 4)),
        async_scheduling=asynchronous,
        async_write=draw.random() < 0.5 and cell.mode not in SYNC_WRITE_ONLY,
        clock=draw.choice(("exact", "coarse")),
        max_preempt_count=draw.choice((2, 4)) if is_swapping else 0,
        cpu_blocks=64 * 16 // block_size if is_swapping else 0,
        chunk_tokens=draw.choice((24, 50, 96)) if cell.mode == "chunks" else 0,
        cp=2 if cell.mode == "dealt out" else 1,
        dp=2 if cell.mode in {"groups", "servers"} else 1,
        servers=cell.mode == "servers",
        role="prefill" if cell.mode == "servers" else "standard",
        speculation=_speculation(cell.mode, draw),
    )
    return RunConfig(
        engine,
        chats(cell)[0],
        gap=draw.choice((0, 1, 2)),
        faults=None if cell.fault == "none" else parse_spec(FAULTS[cell.fault]),
        fail_after=draw.randrange(5, 15) if cell.mode == "recovery" else 0,
        two=two_nodes(cell.mode, engine, draw) if cell.mode in TWO_NODES else None,
        section=SECTIONS.get(cell.fault, {}),
        pool_blocks=_pool_blocks(cell, engine.hbm_blocks),
    )


def _pool_blocks(cell: Combination, hbm_blocks: int) -> int:
    """All that is ever stored, or less than the device has: then blocks leave between a lookup and its get."""
    draw = random.Random(f"pool of mode sweep {cell.seed}")  # noqa: S311 - repeatable choices are the point
    return hbm_blocks // draw.choice((1, 2, 4)) if draw.random() < SMALL_SHARE else AMPLE_BLOCKS


def chats(cell: Combination) -> tuple[Callable[[], Chat], Callable[[], Chat]]:
    """What a run's users say, and what those of another host on its pool do: the same, or some of it."""
    draw = random.Random(f"chats of mode sweep {cell.seed}")  # noqa: S311 - repeatable choices are the point
    speakers, chat = draw.choice((6, 8, 10)), partial(Chat, seed=draw.randrange(1 << 30))
    if cell.mode == "swap":
        speakers, chat = 10, partial(chat, system_tokens=20, turn_tokens=24, answer_tokens=60)
    else:
        chat = partial(
            chat,
            system_tokens=draw.choice((70, 150)),
            sampled=0.6 if cell.mode in GROUPS else 0.0,
            samples=3,
            beams=float(cell.mode == "beams"),
            adapters=2 if cell.mode == "adapters" else 0,
            answer_tokens=1 if cell.mode == "servers" else 24,
        )
    return partial(chat, speakers, 3), partial(chat, draw.choice((2, speakers)), draw.choice((1, 3)))


def neighbour(cell: Combination) -> Neighbour | None:
    """The other host on the pool, if there is one: it was there before, or takes turns from some turns before."""
    if cell.pool == "alone":
        return None
    draw = random.Random(f"neighbour of mode sweep {cell.seed}")  # noqa: S311 - repeatable choices are the point
    return Neighbour(chats(cell)[1], None if cell.pool == "filled" else draw.choice((0, 20, 60)))


def _speculation(mode: str, draw: random.Random) -> Speculation | None:
    if mode == "mtp" or (mode in TWO_NODES and draw.random() < 0.5):
        return mtp(draw.choice((1, 2, 3)), accept_rate=draw.choice((0.3, 0.6, 0.9)))
    if mode == "la":
        return la(draw.choice((3, 4)), 2, draw.choice((2, 4)), accept_rate=draw.choice((0.6, 0.9)))
    if mode == "memory decoding":
        return memory_decoding(draw.choice((4, 8, 16)), accept_rate=draw.choice((0.3, 0.6, 0.9)))
    return None


def two_nodes(mode: str, engine: EngineConfig, draw: random.Random) -> TwoNodes:
    """How they work together: with pulls that fail or do not, in roles that change or do not."""
    faults = PullFaults(draw.choice((0, 3, 5)), draw.choice((None, engine.tp - 1)))
    if mode == "two flex nodes":
        return TwoNodes("flex", switch_every=draw.choice((0, 5, 8)), faults=faults)
    return TwoNodes(decode_blocks=engine.hbm_blocks * draw.choice((3, 4)) // 4, faults=faults)


def run_combination(cell: Combination) -> Outcome:
    """Run it, in this process."""
    return run_config(cell, configuration(cell), neighbour(cell))


def table_of(outcomes: Iterable[Outcome]) -> Table:
    """One line per mode, one per pool, and the sum."""
    table = Table(title="Modes and faults in seeded combinations; blocks count per rank", title_justify="left")
    for heading in ("mode", *HEADINGS, "copies, swaps, pulls, repairs"):
        table.add_column(heading, justify="left" if heading == "mode" else "right")
    found = list(outcomes)
    for mode in MODES:
        _add(table, mode, [outcome for outcome in found if outcome.cell.mode == mode])
    table.add_section()
    for pool in POOLS:
        _add(table, f"pool {pool}", [outcome for outcome in found if outcome.cell.pool == pool])
    _add(table, "pool too small", overflowed(found))
    table.add_section()
    _add(table, "all", found)
    return table


def _add(table: Table, name: str, rows: Sequence[Outcome]) -> None:
    if rows:
        table.add_row(name, *sums(rows), f"{sum(outcome.events for outcome in rows):,}")


def slow_lookups(outcomes: Iterable[Outcome]) -> tuple[int, int]:
    """How many lookups were slow, and the keys that were not asked for meanwhile, where lookups alone are slow."""
    results = [outcome.result for outcome in outcomes if outcome.cell.fault == SLOW and outcome.result is not None]
    return sum(result.faults.get(SLOW_LOOKUP, 0) for result in results), sum(result.refused_keys for result in results)


def overflowed(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Those in which each rank stored more than the whole pool holds."""
    return [
        outcome
        for outcome in outcomes
        if outcome.result is not None
        and outcome.result.spilled_blocks
        > (config := configuration(outcome.cell)).pool_blocks * config.engine.tp * config.engine.cp * config.engine.dp
    ]


def is_right(outcomes: Sequence[Outcome]) -> bool:
    """Nothing went wrong, blocks came back in every mode, and the host wrote blocks where a mode says so.

    Where lookups were slow some of them were left out, and of many pools some were too small.
    """
    by_mode = {mode: [o for o in outcomes if o.cell.mode == mode] for mode in {o.cell.mode for o in outcomes}}
    return (
        all(outcome.is_clean for outcome in outcomes)
        and all(
            any(o.reloaded for o in rows) and (mode not in WRITING_MODES or any(o.events for o in rows))
            for mode, rows in by_mode.items()
        )
        and (all(slow_lookups(outcomes)) or all(outcome.cell.fault != SLOW for outcome in outcomes))
        and (bool(overflowed(outcomes)) or len(outcomes) < len(MODES))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; answers its exit status."""
    parser = argparse.ArgumentParser(description="Run seeded combinations of modes and faults on the simulated host.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many (default {SEEDS})")
    parser.add_argument("--first", type=int, default=0, help="the first one (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at once (default: processors)")
    options = parser.parse_args(arguments)
    console, began = Console(), time.monotonic()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    outcomes = []
    cells = [combination(seed) for seed in range(options.first, options.first + options.seeds)]
    for outcome in run_cells(run_combination, cells, options.jobs):
        outcomes.append(outcome)
        if not outcome.is_clean:
            console.print(f"NOT RIGHT: {outcome.cell.name}: {outcome.detail}", soft_wrap=True, highlight=False)
    console.print(table_of(outcomes))
    slow, refused = slow_lookups(outcomes)
    console.print(f"{slow:,} slow lookups, {refused:,} keys that were not asked for meanwhile", highlight=False)
    console.print(f"{len(outcomes)} combinations in {time.monotonic() - began:.0f} s", highlight=False)
    return 0 if is_right(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
