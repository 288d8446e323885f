"""The tables of ``mindie-kvpool stats``: a row per rank, and per scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.observability.metrics import PREFIX
from mindie_kvpool_plugin.options.records import GIB

Json = Mapping[str, Any]
WIDEST = 10_000
"""Columns of a terminal that narrows nothing."""
STATES = ("closed", "half_open", "open")


class Row:
    """One part of a process.

    Args:
        process: the process's answer.
        part: the part's.
        lang: of the texts.
    """

    def __init__(self, process: Json, part: Json, lang: Language) -> None:
        self.process = process
        self.part = part
        self._metrics = part.get("metrics", {})
        self._lang = lang

    def number(self, name: str, *labels: str) -> float:
        """A metric's value; the sum over its labels unless one is named; of a histogram how many values it has."""
        value = self._metrics.get(PREFIX + name, 0)
        for label in labels:
            value = value.get(label, 0) if isinstance(value, dict) else 0
        return _total(value)

    def seconds(self, name: str) -> float:
        """The sum of a histogram."""
        value = self._metrics.get(PREFIX + name, {})
        return float(value.get("sum", 0.0)) if isinstance(value, dict) else 0.0

    def state(self) -> str:
        """How the pool is; to a store, whether the master answers."""
        if self.part.get("role") == "store":
            return words(f"stats.state.{'closed' if self.number('store_master_answers') else 'no_master'}", self._lang)
        if not self.number("pool_open"):
            return words("stats.state.none", self._lang)
        at = int(self.number("breaker_state"))
        return words(f"stats.state.{STATES[at] if at < len(STATES) else STATES[-1]}", self._lang)


Cell = Callable[[Row], str]

WHO: Mapping[str, Cell] = {
    "pid": lambda row: str(row.process.get("pid", "?")),
    "rank": lambda row: str(row.part.get("label", "?")),
}
POOL: Mapping[str, Cell] = {
    "pool": lambda row: f"{row.part.get('backend') or '?'} {row.part.get('namespace') or '?'}",
    "state": Row.state,
    "metrics": lambda row: str(row.process.get("metrics_address") or "-"),
}
WORKER: Mapping[str, Cell] = {
    **WHO,
    "prompts": lambda row: f"{row.number('prompts_total'):,.0f}",
    "hit": lambda row: f"{row.number('loaded_depth_blocks'):,.0f}",
    "promised": lambda row: f"{row.number('promised_tokens_total'):,.0f}",
    "loaded": lambda row: f"{row.number('loaded_tokens_total'):,.0f}",
    "reload": lambda row: f"{row.seconds('reload_seconds'):,.2f}",
    "net": lambda row: f"{row.number('net_seconds'):+,.2f}",
    "spilled": lambda row: f"{row.number('spilled_blocks_total'):,.0f}",
    "dropped": lambda row: f"{row.number('dropped_blocks_total'):,.0f}",
    "queue": lambda row: f"{row.number('queue_blocks'):,.0f}",
    "errors": lambda row: f"{row.number('hook_errors_total'):,.0f}",
    **POOL,
}
SCHEDULER: Mapping[str, Cell] = {
    **WHO,
    "questions": lambda row: f"{row.number('scheduler_questions_total'):,.0f}",
    "with_hits": lambda row: f"{_with_hits(row):,.0f}",
    "keys": lambda row: (
        f"{row.number('scheduler_found_keys_total'):,.0f} / {row.number('scheduler_asked_keys_total'):,.0f}"
    ),
    "each": lambda row: f"{_milliseconds_each(row):.2f}",
    "errors": lambda row: f"{row.number('scheduler_lookup_errors_total'):,.0f}",
    **POOL,
}
STORE: Mapping[str, Cell] = {
    "pid": WHO["pid"],
    "memory": lambda row: _used_of(row, "store_used_bytes", "store_memory_bytes"),
    "disk": lambda row: _used_of(row, "store_disk_bytes", "store_disk_limit_bytes"),
    "losses": lambda row: f"{row.number('store_master_losses_total'):,.0f}",
    **POOL,
}


class Fitting:
    """A table with a row per part; where that is too wide, one with a column per part, or as many as it takes."""

    def __init__(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], num_figures: int) -> None:
        self._title, self._headings, self._rows, self._num_figures = title, headings, rows, num_figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """What fits without breaking a line, or comes nearest to it."""
        table = self._upright()
        if _fits(table, console, options):
            yield table
            return
        size = len(self._rows)
        while size > 1 and not all(_fits(each, console, options) for each in self._turned(size)):
            size -= 1
        yield from self._turned(size)

    def _upright(self) -> Table:
        table = Table(title=self._title, title_justify="left")
        for at, heading in enumerate(self._headings):
            table.add_column(heading, justify="right" if at < self._num_figures else "left")
        for row in self._rows:
            table.add_row(*row)
        return table

    def _turned(self, size: int) -> Iterator[Table]:
        for first in range(0, len(self._rows), size):
            rows = self._rows[first : first + size]
            table = Table(title=self._title, title_justify="left", show_header=False)
            for line in zip(self._headings, *rows, strict=True):
                table.add_row(*line)
            yield table


def tables(processes: Sequence[Json], lang: Language) -> list[Fitting]:
    """A table per role that somebody has."""
    rows = [Row(process, part, lang) for process in processes for part in process["parts"]]
    rows.sort(key=lambda row: (row.part.get("namespace", ""), row.part.get("rank", 0), row.process.get("pid", 0)))
    return [
        _table(role, [row for row in rows if row.part.get("role") == role], columns, lang)
        for role, columns in (("worker", WORKER), ("scheduler", SCHEDULER), ("store", STORE))
        if any(row.part.get("role") == role for row in rows)
    ]


def _table(role: str, rows: Iterable[Row], columns: Mapping[str, Cell], lang: Language) -> Fitting:
    return Fitting(
        words(f"stats.title.{role}", lang),
        [words(f"stats.column.{name}", lang) for name in columns],
        [[cell(row) for cell in columns.values()] for row in rows],
        num_figures=len(columns) - len(POOL),
    )


def _fits(table: Table, console: Console, options: ConsoleOptions) -> bool:
    return Measurement.get(console, options.update(max_width=WIDEST), table).maximum <= options.max_width


def _used_of(row: Row, used: str, size: str) -> str:
    return f"{row.number(used) / GIB:,.2f} / {row.number(size) / GIB:,.2f}" if row.number(size) else "-"


def _with_hits(row: Row) -> float:
    return row.number("scheduler_questions_total", "all") + row.number("scheduler_questions_total", "some")


def _milliseconds_each(row: Row) -> float:
    questions = row.number("scheduler_lookup_seconds")
    return 1000 * row.seconds("scheduler_lookup_seconds") / questions if questions else 0.0


def _total(value: Any) -> float:
    if isinstance(value, dict):
        return float(value["count"]) if "counts" in value else sum(_total(each) for each in value.values())
    return float(value) if isinstance(value, (int, float)) else 0.0
