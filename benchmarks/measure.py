"""How a figure is taken: medians of interleaved runs, printed beside a baseline of the same run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

MIN_ROUNDS = 7


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Attributes:
        figure: what was measured.
        value, baseline: in ``unit``; the baseline is None where the target is absolute.
        ratio: as ``target`` means it.
        target: what must be seen.
        is_met: whether it was.
    """

    figure: str
    value: float
    unit: str
    baseline: float | None
    ratio: float | None
    target: str
    is_met: bool | None


@contextlib.contextmanager
def one_core():
    """This thread, and the threads and processes it begins meanwhile, on one core; a clock of CPU seconds.

    That clock counts this process, and is what one core to itself would show, however busy the machine is.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield time.process_time
    finally:
        os.sched_setaffinity(0, allowed)


def interleaved(calls, rounds=MIN_ROUNDS, inner=1, clock=time.perf_counter):
    """Median seconds of each call; every round runs each of them once (``inner`` times for very short ones)."""
    taken = seconds_of(calls, rounds, inner, clock=clock)
    return {name: statistics.median(values) for name, values in taken.items()}


def seconds_of(
    calls,
    rounds=MIN_ROUNDS,
    inner=1,
    between=lambda: None,
    clock=time.perf_counter,
):
    """Seconds of each call in each round, by ``clock``; ``between`` follows every call, outside the clock."""
    for call in calls.values():
        call()
        between()
    taken = {name: [] for name in calls}
    for _ in range(max(MIN_ROUNDS, rounds)):
        for name, call in calls.items():
            began = clock()
            for _ in range(inner):
                call()
            taken[name].append((clock() - began) / inner)
            between()
    return taken


def against_best(taken, ours):
    """The best of the others, and the median seconds of ours and of it.

    It is chosen in the even rounds and judged in the odd ones: the least of several medians of the same
    rounds would be below what any of them takes.
    """
    best = min((statistics.median(values[::2]), name) for name, values in taken.items() if name != ours)[1]
    return best, statistics.median(taken[ours][1::2]), statistics.median(taken[best][1::2])


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def faster(figure, value_s, baseline_s, at_least):
    """A row whose baseline takes ``at_least`` times as long."""
    ratio = baseline_s / value_s
    return Row(figure, value_s * 1e6, "us", baseline_s * 1e6, ratio, f">= {at_least:g} x", ratio >= at_least)


def at_most(figure, value_s, baseline_s, factor):
    """A row that may take ``factor`` times its baseline."""
    ratio = value_s / baseline_s
    return Row(figure, value_s * 1e6, "us", baseline_s * 1e6, ratio, f"<= {factor:g} x", ratio <= factor)


def below(figure, value_s, limit_s):
    """A row with an absolute target."""
    return Row(figure, value_s * 1e6, "us", None, None, f"<= {limit_s * 1e6:g} us", value_s <= limit_s)


def speed(figure, num_bytes, value_s, baseline_s, at_least):
    """A row of throughput."""
    ratio = baseline_s / value_s
    return Row(
        figure,
        num_bytes / value_s / 1e9,
        "GB/s",
        num_bytes / baseline_s / 1e9,
        ratio,
        f">= {at_least:g} x",
        ratio >= at_least,
    )


def seen(figure, value, unit):
    """A row without target."""
    return Row(figure, value, unit, None, None, "-", None)


def main(name, rows):
    """Command line of a benchmark: a table, and with ``--json`` a file."""
    parser = argparse.ArgumentParser(prog=name)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    found = rows()
    print(f"\n### {name}\n")
    print("| figure | seen | baseline | ratio | target | met |\n| --- | --- | --- | --- | --- | --- |")
    for row in found:
        baseline = "-" if row.baseline is None else f"{row.baseline:.4g} {row.unit}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.3g}"
        met = {None: "-", True: "yes", False: "**no**"}[row.is_met]
        print(f"| {row.figure} | {row.value:.4g} {row.unit} | {baseline} | {ratio} | {row.target} | {met} |")
    if arguments.json:
        text = json.dumps({"benchmark": name, "rows": [asdict(row) for row in found]}, indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")
