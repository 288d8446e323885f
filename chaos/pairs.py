"""Two modes at a time on the simulated host: ``python -m chaos.pairs``.

Every two modes that ``support`` says work and of which no row of ``support.PAIRS`` speaks run together, with a sound
pool and with gets that fail on one rank.  Exit status 1 if anything went wrong, if a pair never hit the pool, if no
get failed, or if a mode did not do what it is named after.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos.cells import HEADINGS, Outcome, run_cells, run_config, sums
from chaos.fault_matrix import WIDTH
from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.faults import FaultSpec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.run import Result, RunConfig
from mindie_kvpool_plugin.simulator.speculation import la, memory_decoding, mtp
from mindie_kvpool_plugin.simulator.traffic import Chat
from mindie_kvpool_plugin.simulator.two_nodes import TwoNodes

Keys = frozenset[str]


@dataclass(frozen=True, slots=True)
class Part:
    """What a mode changes in a run.

    Attributes:
        engine: of the ``EngineConfig``.
        shape: of its ``ModelShape``.
        chat: of the traffic.
        run: of the ``RunConfig``.
        room: times the device blocks that a rank has otherwise.
        happened: whether the mode did in this run what it is named after.
    """

    engine: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    chat: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    room: float = 1.0
    happened: Callable[[Result], bool] = lambda _: True


_LATENT = {"num_kv_heads": 1, "mla": (32, 16)}
_LONG_ANSWERS = {"speakers": 10, "system_tokens": 20, "turn_tokens": 24, "answer_tokens": 60}


def _pulled(result: Result) -> bool:
    return result.pulled_blocks > 0


PARTS: dict[str, Part] = {
    "tp": Part({"tp": 2}),
    "dp": Part({"dp": 2}, room=0.5),
    "dp_servers": Part({"dp": 2, "servers": True}, room=0.5),
    "cp": Part({"cp": 2}, _LATENT, room=0.5),
    "sp": Part({"tp": 2, "sp": 2}, _LATENT, room=0.5),
    "splitfuse": Part({"chunk_tokens": 50}),
    "async_scheduling": Part({"async_scheduling": True}, room=2.0),  # without preemption there only starts what ends
    "async_write": Part({"async_write": True}),
    "lora": Part(chat={"adapters": 2}),
    "n": Part(chat={"sampled": 0.6, "samples": 3}, room=1.2, happened=lambda result: result.copied_blocks > 0),
    "beam": Part(
        chat={"sampled": 0.6, "samples": 3, "beams": 0.5}, room=1.2, happened=lambda result: result.moved_beams > 0
    ),
    "swap": Part(
        {"max_preempt_count": 4, "cpu_blocks": 64},
        chat=_LONG_ANSWERS,
        room=0.9,
        happened=lambda result: result.swapped_blocks > 0,
    ),
    "recompute": Part(chat=_LONG_ANSWERS, room=0.9, happened=lambda result: result.preemptions > 0),
    "recovery": Part(run={"fail_after": 10}, happened=lambda result: result.recoveries > 0),
    "la": Part(
        {"speculation": la(4, 2, 3)}, room=1.3, happened=lambda result: result.speculation.get("computed_again", 0) > 0
    ),
    "memory_decoding": Part(
        {"speculation": memory_decoding(8)}, happened=lambda result: result.speculation.get("accepted", 0) > 0
    ),
    "mtp": Part({"speculation": mtp(2)}, room=1.3, happened=lambda result: result.speculation.get("accepted", 0) > 0),
    "nz": Part(shape={"nz": True, "head_size": 16}),
    "pd_prefill": Part(run={"two": TwoNodes(decode_plugins="")}, happened=_pulled),
    "pd_decode": Part(run={"two": TwoNodes()}, happened=_pulled),
    "pd_flex": Part(run={"two": TwoNodes("flex", switch_every=8)}, room=1.4, happened=_pulled),
    "int8_kv": Part(shape={"int8_key_layers": (0,)}),
    "sparse_index": Part(shape={"index_head_size": 16}),
}
"""Key of ``support.MODES`` -> how the simulated host plays it; other modes it does not play."""

NOT_PLAYED = {
    frozenset({"recompute", "async_scheduling"}): "asynchronous scheduling starts only what can end",
    frozenset({"pd_prefill", "async_scheduling"}): "asynchronous scheduling is the decode node's",
}
"""Two modes that the simulated host plays, but not at once, where no configuration says so."""


def _each(one: str, others: str) -> set[Keys]:
    return {frozenset({one, other}) for other in others.split()}


ON_THE_HOST = frozenset[Keys]().union(
    _each("async_scheduling", "recompute"),
    _each("dp", "pd_prefill"),
    _each("dp_servers", "async_scheduling pd_prefill pd_decode"),
)
"""Two modes that ran together, gets failing on one rank, on the host's own Python code and not here."""

HBM_BLOCKS = 48
GETS_FAIL = 0.3


@dataclass(frozen=True, slots=True)
class Run:
    """Two modes, once.

    Attributes:
        keys: the modes.
        is_faulty: whether gets fail on the last rank.
    """

    keys: Keys
    is_faulty: bool

    @property
    def name(self) -> str:
        """For people."""
        return f"{name_of(self.keys)}{', gets fail on one rank' if self.is_faulty else ''}"


def name_of(keys: Keys) -> str:
    """Both modes."""
    return " + ".join(sorted(keys))


def working_pairs() -> list[Keys]:
    """Every two modes that work, if no row says otherwise of both together."""
    told = {keys for pair in support.PAIRS if pair.status != "works" for keys in pair.together}
    working = [mode.key for mode in support.MODES if mode.status == "works"]
    pairs = [pair for pair in map(frozenset, combinations(working, 2)) if pair not in told]
    return [pair for pair in pairs if not any(pair <= either for either in support.ALTERNATIVES)]


def is_played(keys: Keys) -> bool:
    """Whether the simulated host plays both at once."""
    if not keys <= PARTS.keys() or keys in NOT_PLAYED:
        return False
    try:
        configuration(Run(keys, is_faulty=False))
    except ValueError:
        return False
    return True


def configuration(run: Run) -> RunConfig:
    """The run.

    Raises:
        ValueError: the simulated host does not play these modes together.
    """
    parts = [PARTS[key] for key in sorted(run.keys)]
    room = 1.0
    for part in parts:
        room *= part.room
    engine = EngineConfig(
        shape=ModelShape(**_merged(part.shape for part in parts)),
        hbm_blocks=round(HBM_BLOCKS * room),
        clock="coarse",
        **_merged(part.engine for part in parts),
    )
    chat = {"speakers": 10, "turns": 3, **_merged(part.chat for part in parts)}
    faults = FaultSpec({"get_fail": GETS_FAIL}, {}, engine.num_ranks - 1, 0)
    return RunConfig(
        engine,
        lambda: Chat(seed=1, **chat),
        faults=faults if run.is_faulty else None,
        **_merged(part.run for part in parts),
    )


def _merged(changes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for change in changes for key, value in change.items()}


def run_pair(run: Run) -> Outcome:
    """Run it, in this process."""
    return run_config(run, configuration(run))


def complaint(outcome: Outcome) -> str:
    """What is not as it must be; empty if nothing."""
    run, result = outcome.cell, outcome.result
    if not outcome.is_clean or result is None:
        return outcome.detail
    idle = [key for key in sorted(run.keys) if not PARTS[key].happened(result)]
    reasons = {
        "it never hit the pool": not outcome.reloaded,
        "no get failed": run.is_faulty and not outcome.faults,
        f"{' and '.join(idle)} never happened": bool(idle),
    }
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def table_of(outcomes: Iterable[Outcome]) -> Table:
    """One line per pair, of its two runs together, and the sum."""
    table = Table(title="Two modes together; blocks count per rank", title_justify="left")
    for heading in ("modes", *HEADINGS):
        table.add_column(heading, justify="left" if heading == "modes" else "right")
    found = sorted(outcomes, key=lambda outcome: name_of(outcome.cell.keys))
    for keys in dict.fromkeys(outcome.cell.keys for outcome in found):
        table.add_row(name_of(keys), *sums([outcome for outcome in found if outcome.cell.keys == keys]))
    table.add_section()
    table.add_row("all", *sums(found))
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; answers its exit status."""
    parser = argparse.ArgumentParser(description="Run every two modes that work together on the simulated host.")
    parser.add_argument("--with", dest="only", default="", help="only pairs with this mode")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at once (default: processors)")
    options = parser.parse_args(arguments)
    console, began = Console(), time.monotonic()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    played = [keys for keys in working_pairs() if is_played(keys) and (not options.only or options.only in keys)]
    runs = [Run(keys, is_faulty) for keys in played for is_faulty in (False, True)]
    outcomes = []
    for outcome in run_cells(run_pair, runs, options.jobs):
        outcomes.append(outcome)
        if complaint(outcome):
            console.print(f"NOT RIGHT: {outcome.cell.name}: {complaint(outcome)}", soft_wrap=True, highlight=False)
    console.print(table_of(outcomes))
    console.print(f"{len(played)} pairs in {time.monotonic() - began:.0f} s", highlight=False)
    return int(not outcomes or any(map(complaint, outcomes)))


if __name__ == "__main__":
    sys.exit(main())
