"""``mindie-kvpool acceptance``: once on the machine, before and beside the service: nothing is left to guess."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.cli import acceptance_page
from mindie_kvpool_plugin.cli.examined import Results, objects, read_report, say, say_title
from mindie_kvpool_plugin.cli.numbers import SECONDS
from mindie_kvpool_plugin.cli.refusing import one_line_refusals
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.cli.targets import Named
from mindie_kvpool_plugin.cli.written import expect_folder, write_whole
from mindie_kvpool_plugin.doctor.acceptance import plots
from mindie_kvpool_plugin.doctor.acceptance.table import ACCEPTANCE, CLEANING, SECTIONS
from mindie_kvpool_plugin.doctor.acceptance.trial import Tls, Trial
from mindie_kvpool_plugin.doctor.child import end_all
from mindie_kvpool_plugin.doctor.examine import Probe, examine
from mindie_kvpool_plugin.doctor.lines import Line, is_trouble

DEFAULT_TIMEOUT_S = 900.0
INTERRUPTED = 130
RESULTS = {"good": "passed", "warning": "passed", "trouble": "failed", "absent": "not_possible",
           "skipped": "not_possible", "note": "note"}  # fmt: skip
"""The doctor's verdict of a line -> acceptance's: a warning works, and its fix is told."""
COLOURS = {"passed": "green", "failed": "red", "not_possible": "yellow"}


def _node(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, int]:
    """``2/3``, the second of three, as numbers; (0, 0) where nothing was said."""
    if value is None:
        return 0, 0
    found = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", value)
    if found is None or int(found[1]) > int(found[2]) or int(found[2]) < 2:
        raise click.BadParameter(words("acceptance.bad_node", chosen_language("auto"), value=value), context, option)
    return int(found[1]), int(found[2])


@click.command("acceptance", cls=SpeakingCommand)
@click.argument("config", required=False, metavar="[CONFIG]", type=Named(path_type=Path))
@click.option("--timeout", type=SECONDS, default=DEFAULT_TIMEOUT_S, show_default=True)
@click.option("--user", metavar="NAME", default="")
@click.option("--metrics-port", type=click.IntRange(1, 65535))
@click.option("--node", metavar="K/N", callback=_node)
@click.option("--url", metavar="URL", default="")
@click.option("--tls-ca", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--tls-cert", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--tls-key", metavar="FILE", type=click.Path(exists=True, dir_okay=False))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--html", "html_file", type=click.Path(dir_okay=False, path_type=Path))
@lang_option
def command(
    *,
    config: Path | None,
    timeout: float,
    user: str,
    metrics_port: int | None,
    node: tuple[int, int],
    url: str,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    form: str,
    html_file: Path | None,
    lang: str,
) -> None:
    """Exit status: 0 nothing failed, 1 something did, 2 could not examine or write the page, 130 interrupted."""
    chosen = chosen_language(lang)
    if html_file is not None:
        with one_line_refusals("acceptance", chosen):
            plots.need_library()
            expect_folder(html_file)
    with one_line_refusals("acceptance", chosen):
        report = read_report(config)
    case = Trial(report, dict(os.environ), user=user, metrics_port=metrics_port, timeout_s=timeout, node=node[0],
                 nodes=node[1], url=url, tls=Tls(tls_ca or "", tls_cert or "", tls_key or ""))  # fmt: skip
    case.device = next(iter(case.devices), None)
    began = time.strftime("%Y-%m-%d %H:%M:%S %z")
    found = _examined(case, form, chosen)
    document = _document(found, case, began, chosen)
    click.echo(json.dumps(document, ensure_ascii=False, indent=2) if form == "json" else f"\n{document['summary']}")
    if html_file is not None:
        _write(html_file, acceptance_page.page(document, SECTIONS, list(plots.draw(case)), chosen), chosen)
    sys.exit(1 if document["result"] == "failed" else 0)


def _examined(case: Trial, form: str, lang: Language) -> Results:
    """Everything that was said; also an interrupted run removes what it has put."""
    results: Results = _all(case, lambda _: None)
    if form == "text":
        results = say(_all(case, lambda probe: say_title(probe, lang)), lang, lambda line: _mark(line, lang))
    try:
        return list(results)
    except KeyboardInterrupt:
        case.timeout_s = 0.0  # whatever still runs gives up
        end_all()
        left = [line.text(lang) for line in CLEANING.run(case)]
        click.echo("\n".join([words("acceptance.interrupted", lang), *left]), err=True)
        sys.exit(INTERRUPTED)


def _all(case: Trial, began: Callable[[Probe[Trial]], None]) -> Results:
    yield from examine(case, ACCEPTANCE, began)
    if case.keys:
        began(CLEANING)
        yield CLEANING, list(CLEANING.run(case))


def _mark(line: Line, lang: Language) -> tuple[str, str | None]:
    result = RESULTS[line.verdict]
    return words(f"acceptance.result.{result}", lang), COLOURS.get(result)


def _document(found: Results, case: Trial, began: str, lang: Language) -> dict[str, Any]:
    lines = [line for _, each in found for line in each]
    told = [{"result": RESULTS[each["verdict"]], **each} for each in objects(found, lang)]
    result = "failed" if is_trouble(lines) else "passed"
    return {
        "result": result,
        "summary": _summary(told, result, case, lang),
        "host": socket.gethostname(),
        "config": str(case.report.situation.config_path),
        "backend": case.backend,
        "version": __version__,
        "began": began,
        "seconds": round(time.monotonic() - case.began_s, 3),
        "measured": {"bytes_per_s": case.speeds, "lookup_ms": case.lookups, "answer_s": case.answers},
        "lines": told,
    }


def _summary(told: Sequence[dict[str, Any]], result: str, case: Trial, lang: Language) -> str:
    counts = Counter(line["result"] for line in told)
    return words(
        f"acceptance.summary.{result}",
        lang,
        passed=counts["passed"],
        remarks=sum(line["verdict"] == "warning" for line in told),
        failed=counts["failed"],
        not_possible=counts["not_possible"],
        seconds=f"{time.monotonic() - case.began_s:.0f}",
    )


def _write(file: Path, text: str, lang: Language) -> None:
    with one_line_refusals("acceptance", lang):
        write_whole(file, text.encode(errors="backslashreplace"))
