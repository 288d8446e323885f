"""``mindie-kvpool doctor``: does what this configuration names really work, here and now."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.cli.examined import Results, objects, read_report, say, say_title
from mindie_kvpool_plugin.cli.numbers import SECONDS
from mindie_kvpool_plugin.cli.refusing import one_line_refusals
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.targets import Named
from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.examine import examine
from mindie_kvpool_plugin.doctor.lines import Line, is_trouble
from mindie_kvpool_plugin.doctor.table import PROBES

DEFAULT_TIMEOUT_S = 60.0
COLOURS = {"good": "green", "trouble": "red", "warning": "yellow"}


@click.command("doctor", cls=SpeakingCommand)
@click.argument("config", required=False, metavar="[CONFIG]", type=Named(path_type=Path))
@click.option("--timeout", type=SECONDS, default=DEFAULT_TIMEOUT_S, show_default=True)
@click.option("--user", metavar="NAME", default="")
@click.option("--metrics-port", type=click.IntRange(1, 65535))
@click.option("--device", type=click.IntRange(min=0))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@lang_option
def command(
    *,
    config: Path | None,
    timeout: float,
    user: str,
    metrics_port: int | None,
    device: int | None,
    form: str,
    lang: str,
) -> None:
    """Exit status: 0 no trouble, 1 trouble, 2 could not examine."""
    chosen = chosen_language(lang)
    with one_line_refusals("doctor", chosen):
        report = read_report(config)
    case = Case(report, dict(os.environ), user=user, metrics_port=metrics_port, device=device, timeout_s=timeout)
    results: Results = examine(case, PROBES)
    if form == "text":
        in_view = examine(case, PROBES, lambda probe: say_title(probe, chosen))
        results = say(in_view, chosen, lambda line: _mark(line, chosen))
    found = list(results)
    lines = [line for _, each in found for line in each]
    if form == "json":
        _say_as_json(found, case, chosen)
    else:
        click.echo(f"\n{_summary(lines, case, chosen)}")
    sys.exit(1 if is_trouble(lines) else 0)


def _mark(line: Line, lang: Language) -> tuple[str, str | None]:
    return words(f"doctor.verdict.{line.verdict}", lang), COLOURS.get(line.verdict)


def _summary(lines: Iterable[Line], case: Case, lang: Language) -> str:
    counts = Counter(line.verdict for line in lines)
    verdict = "trouble" if counts["trouble"] else "good"
    found = words(
        "doctor.summary",
        lang,
        trouble=counts["trouble"],
        warning=counts["warning"],
        skipped=counts["skipped"],
        seconds=f"{time.monotonic() - case.began_s:.1f}",
    )
    return f"{click.style(words(f'doctor.verdict.{verdict}', lang), fg=COLOURS[verdict], bold=True)}: {found}"


def _say_as_json(results: Results, case: Case, lang: Language) -> None:
    lines = [line for _, each in results for line in each]
    document = {
        "verdict": "trouble" if is_trouble(lines) else "good",
        "seconds": round(time.monotonic() - case.began_s, 3),
        "backend": case.backend,
        "lines": objects(results, lang),
    }
    click.echo(json.dumps(document, ensure_ascii=False, indent=2))
