"""``mindie-kvpool demo``: the same traffic through a simulated host without and with the pool, side by side."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mindie_kvpool_plugin.check.messages import Language, Refused, words
from mindie_kvpool_plugin.cli import demo_profile
from mindie_kvpool_plugin.cli.numbers import Number
from mindie_kvpool_plugin.cli.refusing import one_line_refusals
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.written import expect_folder, write_whole
from mindie_kvpool_plugin.observability.log import LEVEL_VARIABLE, logger
from mindie_kvpool_plugin.simulator import timed, timed_service
from mindie_kvpool_plugin.simulator.block_manager import OutOfBlocksError
from mindie_kvpool_plugin.simulator.cost import LINK_BYTES_PER_S, PROFILES
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.faults import KINDS, FaultSpec, parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.run import Comparison, PoolName, Result, RunConfig, compare
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE, TraceRequest, read_trace
from mindie_kvpool_plugin.simulator.traffic import replay

DEMO_SHAPE = ModelShape()
DEMO_MLA_SHAPE = ModelShape(num_kv_heads=1, mla=(32, 8))
BLOCK_TOKENS = 16
ANSWER_ROOM_TOKENS = 256

REQUESTS = 800
PLAIN_ONLY = ("pool", "tp", "mla", "async_scheduling", "async_write", "faults", "metrics_port")
TIMED_ONLY = ("pool_bandwidth", "load")
"""Options that are about the demo without a profile, and about the one with it."""

COUNTS = (
    "prompt_tokens",
    "hbm_hit_tokens",
    "pool_hit_tokens",
    "computed_tokens",
    "spilled_blocks",
    "spilled_bytes",
    "reloaded_blocks",
    "reloaded_bytes",
    "failed_get_blocks",
    "failed_put_blocks",
    "recomputed_blocks",
    "corruptions",
    "wrong_answers",
    "leaked_blocks",
)
"""Rows of the table: fields of a result; ``demo.<field>`` is what a row is called."""


@click.command(
    name="demo",
    cls=SpeakingCommand,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    values={"kinds": ", ".join(KINDS), "profiles": ", ".join(PROFILES)},
)
@click.option("--pool", type=click.Choice(["local_dram", "mooncake"]), default="local_dram")
@click.option("--trace", type=click.Path(readable=False, path_type=Path))
@click.option("--requests", type=click.IntRange(min=1), default=REQUESTS)
@click.option("--hbm-blocks", type=click.IntRange(min=2), default=160)
@click.option(
    "--pool-blocks",
    type=click.IntRange(min=1),
    default=4096,
)
@click.option("--tp", type=click.Choice(["1", "2", "4"]), default="1")
@click.option("--mla", is_flag=True)
@click.option("--async-scheduling", is_flag=True)
@click.option("--async-write", is_flag=True)
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option(
    "--faults",
    metavar="SPEC",
)
@click.option("--metrics-port", type=click.IntRange(1, 65535))
@click.option("--profile", type=click.Choice(list(PROFILES)))
@click.option("--pool-bandwidth", metavar="GB/S", type=Number(min=1e-6, max=1e6))
@click.option("--load", type=Number(min=0.01, max=10))
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path))
@lang_option
def command(
    pool: PoolName,
    trace: Path | None,
    requests: int,
    hbm_blocks: int,
    pool_blocks: int,
    tp: str,
    mla: bool,
    async_scheduling: bool,
    async_write: bool,
    seed: int,
    faults: str | None,
    metrics_port: int | None,
    profile: str | None,
    pool_bandwidth: float | None,
    load: float | None,
    json_file: Path | None,
    lang: str,
) -> None:
    """Exit status: 0 both runs were right, 1 corruption, wrong answer or leaked block, 2 it cannot run as asked."""
    given, chosen = _given(), chosen_language(lang)
    if profile is not None:
        _timed_demo(given, json_file, chosen)
    with _one_line_errors(chosen):
        _refuse_beside(given, TIMED_ONLY, "demo.only_timed")
        expect_folder(json_file)
        spec = parse_spec(faults) if faults is not None else None
        _refuse_missing_rank(spec, int(tp))
        recorded = read_trace(trace or BUNDLED_TRACE, requests)
        config = RunConfig(
            EngineConfig(
                shape=DEMO_MLA_SHAPE if mla else DEMO_SHAPE,
                block_size=BLOCK_TOKENS,
                hbm_blocks=hbm_blocks,
                tp=int(tp),
                async_scheduling=async_scheduling,
                async_write=async_write,
                max_seq_len=_longest(recorded) + ANSWER_ROOM_TOKENS,
            ),
            lambda: replay(recorded, block_size=BLOCK_TOKENS, seed=seed),
            pool=pool,
            pool_blocks=pool_blocks,
            faults=spec,
            section={} if metrics_port is None else {"metrics": "http", "metrics_port": metrics_port},
        )
        comparison = _run(config, len(recorded))
    _report(comparison, pool, Console(), chosen)
    _write(json_file, comparison.as_json(), chosen)
    sys.exit(0 if comparison.is_correct else 1)


def _given() -> dict[str, Any]:
    """The options that the user named, and their values."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }


def _refuse_beside(given: Iterable[str], refused: Sequence[str], key: str) -> None:
    named = [f"--{name.replace('_', '-')}" for name in given if name in refused]
    if named:
        raise Refused(key, options=", ".join(named))


def _timed_demo(given: dict[str, Any], json_file: Path | None, lang: Language) -> NoReturn:
    """Three services in simulated time."""
    with _one_line_errors(lang):
        _refuse_beside(given, PLAIN_ONLY, "demo.only_plain")
        expect_folder(json_file)
        config, asked = _timed_run(given)
        with _quiet_log(logging.ERROR), _progress(len(timed.SERVICES) * given.get("requests", REQUESTS)) as advance:
            found = timed.compare(config, advance)
    demo_profile.report(config, asked, found, Console(), lang)
    _write(json_file, timed.as_json(found), lang)
    sys.exit(0 if demo_profile.is_correct(found) else 1)


def _timed_run(given: dict[str, Any]) -> tuple[timed.TimedRun, timed_service.Asked]:
    profile, seed = PROFILES[given["profile"]], given.get("seed", 0)
    requests, load = given.get("requests", REQUESTS), given.get("load", 0.0)
    rate = given["pool_bandwidth"] * 1e9 if "pool_bandwidth" in given else LINK_BYTES_PER_S
    if "trace" in given:
        asked = timed_service.from_trace(read_trace(given["trace"], requests), profile, load, seed)
    else:
        asked = timed_service.from_chats(requests, profile, load, seed)
    blocks = {name: given.get(name, 0) for name in ("hbm_blocks", "pool_blocks")}
    return timed_service.timed_run(profile, asked, link_bytes_per_s=rate, **blocks), asked


def _refuse_missing_rank(spec: FaultSpec | None, tp: int) -> None:
    if spec is not None and spec.rank is not None and spec.rank >= tp:
        raise Refused("faults.no_such_rank", rank=spec.rank, tp=tp, last=tp - 1)


def _longest(recorded: list[TraceRequest]) -> int:
    return max((len(request.hash_ids) + 1) * BLOCK_TOKENS + request.output_length for request in recorded)


@contextlib.contextmanager
def _one_line_errors(lang: Language) -> Iterator[None]:
    with one_line_refusals("demo", lang):
        try:
            yield
        except OutOfBlocksError as error:
            raise Refused("demo.out_of_blocks") from error


def _write(file: Path | None, results: str, lang: Language) -> None:
    """After they are shown: a run takes minutes."""
    if file is not None:
        with one_line_refusals("demo", lang):
            write_whole(file, f"{results}\n".encode())


def _run(config: RunConfig, requests: int) -> Comparison:
    with _quiet_log(logging.ERROR if config.faults else logging.WARNING), _progress(2 * requests) as advance:
        return compare(config, advance)


@contextlib.contextmanager
def _quiet_log(level: int) -> Iterator[None]:
    """Only warnings, or errors where faults are wanted, unless the user asked for more: the table says the rest."""
    before = logger.level
    if LEVEL_VARIABLE not in os.environ:
        logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None] | None]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda count: bar.advance(task, count)


def _report(comparison: Comparison, pool: str, console: Console, lang: Language) -> None:
    without, with_pool = comparison.without_pool, comparison.with_pool
    counts = _table(words("demo.title", lang, requests=with_pool.requests), pool, lang)
    for field in COUNTS:
        before, after = getattr(without, field), getattr(with_pool, field)
        counts.add_row(words(f"demo.{field}", lang), f"{before:,}", f"{after:,}", f"{after - before:+,}")
    if with_pool.faults:
        counts.add_section()
    for kind, times_happened in with_pool.faults.items():
        counts.add_row(words("demo.fault", lang, kind=kind), "-", f"{times_happened:,}", "")
    console.print(counts)
    times = _table(words("demo.hooks", lang), pool, lang)
    for hook in sorted(without.hook_seconds.keys() | with_pool.hook_seconds.keys()):
        times.add_row(hook, *_milliseconds(without.hook_seconds.get(hook), with_pool.hook_seconds.get(hook)))
    times.add_section()
    times.add_row(words("demo.whole", lang), *_milliseconds(without.seconds, with_pool.seconds))
    times.caption = words("demo.caption", lang)
    console.print(times)
    console.print(_verdict(without, with_pool, lang), soft_wrap=True, highlight=False)


def _table(title: str, pool: str, lang: Language) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    headings = (words("demo.without", lang), words("demo.with", lang, pool=pool), words("demo.difference", lang))
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _milliseconds(before: float | None, after: float | None) -> tuple[str, str, str]:
    shown = ["-" if spent is None else f"{spent * 1000:,.1f}" for spent in (before, after)]
    return shown[0], shown[1], f"{((after or 0.0) - (before or 0.0)) * 1000:+,.1f}"


def _verdict(without: Result, with_pool: Result, lang: Language) -> str:
    if not (without.is_correct and with_pool.is_correct):
        return words("demo.wrong", lang)
    saved = without.computed_tokens - with_pool.computed_tokens
    share = 100 * saved / without.computed_tokens if without.computed_tokens else 0.0
    return words("demo.right", lang, saved=f"{saved:,}", all=f"{without.computed_tokens:,}", share=f"{share:.1f}")
