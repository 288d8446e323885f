"""Reports for people: with the line and a caret below it, or one line for each finding."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

import click

from mindie_kvpool_plugin.check.findings import Finding
from mindie_kvpool_plugin.check.messages import Language, hint, message, words
from mindie_kvpool_plugin.check.pipeline import CheckReport
from mindie_kvpool_plugin.check.repair import is_repairable
from mindie_kvpool_plugin.cli.reporters.spots import Spot, all_findings, spot

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


def text_report(results: Sequence[CheckReport], lang: Language) -> str:
    """The report for a terminal; click removes the colours elsewhere."""
    lines = [line for result in results for line in _file_lines(result, lang)]
    if any(finding.severity != "info" for _, finding in all_findings(results)):
        lines.append(words("report.explain", lang))
    return "\n".join(lines)


def quiet_report(results: Sequence[CheckReport], lang: Language) -> str:
    """The findings alone."""
    lines = [
        line for result, finding in all_findings(results) for line in _finding_lines(finding, result, lang)
    ]  # fmt: skip
    return "\n".join(lines)


def concise_report(results: Sequence[CheckReport], lang: Language) -> str:
    """One line for each finding; nothing when there is none."""
    return "\n".join(_headline(finding, spot(finding, result), lang) for result, finding in all_findings(results))


def _file_lines(result: CheckReport, lang: Language) -> list[str]:
    lines = [line for finding in result.findings for line in _finding_lines(finding, result, lang)]
    lines += [""] if lines and lines[-1] else []
    counts = Counter(finding.severity for finding in result.findings)
    summary = words(
        "report.summary", lang, errors=counts["error"], warnings=counts["warning"], infos=counts["info"]
    )  # fmt: skip
    colour = _COLOURS.get(result.verdict, "green")
    status = words("report.ok", lang) if result.verdict == "ok" else words(f"severity.{result.verdict}", lang)
    name, version = result.document.name, result.situation.host_version
    lines.append(f"{name} (MindIE-LLM {version}): {click.style(status, fg=colour, bold=True)}, {summary}")
    fixable = sum(1 for finding in result.findings if is_repairable(finding))
    return [*lines, words("report.fixable", lang, count=fixable)] if fixable else lines


def _headline(finding: Finding, place: Spot, lang: Language) -> str:
    where = f"{place.file}:{place.line}:{place.column}" if place.line else place.file
    severity = click.style(words(f"severity.{finding.severity}", lang), fg=_COLOURS[finding.severity], bold=True)
    return f"{where}: {severity} {finding.code}: {message(finding, lang)}"


def _finding_lines(finding: Finding, result: CheckReport, lang: Language) -> list[str]:
    place = spot(finding, result)
    lines = [_headline(finding, place, lang)]
    if finding.severity != "info":
        lines += _excerpt(place)
        lines.append(f"    {words('report.hint', lang)}: {hint(finding, lang)}")
        lines += [f"    {words(f'outcome.{finding.outcome}', lang)}", ""]
    return lines


def _excerpt(place: Spot) -> list[str]:
    """The offending line with a caret below it."""
    if place.document is None or place.line is None or place.column is None or not place.document.text:
        return []
    text, column = place.document.excerpt(place.line, place.column)
    number = f"{place.line} | "
    is_one_line = place.end_line == place.line and place.end_column is not None
    length = place.end_column - place.column if is_one_line and place.end_column is not None else len(text)
    before, marked = text[: column - 1], text[column - 1 : column - 1 + length]
    caret = " " * (len(number) + _width(before)) + "^" * max(1, _width(marked))
    return [f"    {number}{text}", f"    {caret}"]


def _width(text: str) -> int:
    """Columns a terminal needs: East Asian wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
