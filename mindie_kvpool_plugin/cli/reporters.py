"""How findings are said: text for people, JSON for programs, SARIF for code hosts."""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from typing import Any

import click

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.check.findings import Finding, shown
from mindie_kvpool_plugin.check.messages import Language, hint, message, words
from mindie_kvpool_plugin.check.pipeline import CheckReport
from mindie_kvpool_plugin.check.repair import is_repairable

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
_SARIF_LEVELS = {"error": "error", "warning": "warning", "info": "note"}
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# larger integers lose digits in most JSON readers
_MAX_SAFE_INTEGER = 2**53


def text_report(result: CheckReport, lang: Language) -> str:
    """The report for a terminal; click removes the colours elsewhere."""
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
    if fixable:
        lines.append(words("report.fixable", lang, count=fixable))
    if counts["error"] or counts["warning"]:
        lines.append(words("report.explain", lang))
    return "\n".join(lines)


def _finding_lines(finding: Finding, result: CheckReport, lang: Language) -> list[str]:
    where = f"{result.document.name}:{finding.line}:{finding.column}" if finding.line else result.document.name
    severity = click.style(words(f"severity.{finding.severity}", lang), fg=_COLOURS[finding.severity], bold=True)
    lines = [f"{where}: {severity} {finding.code}: {message(finding, lang)}"]
    if finding.severity != "info":
        lines += _excerpt(finding, result)
        lines.append(f"    {words('report.hint', lang)}: {hint(finding, lang)}")
        lines += [f"    {words(f'outcome.{finding.outcome}', lang)}", ""]
    return lines


def _excerpt(finding: Finding, result: CheckReport) -> list[str]:
    """The offending line with a caret below it."""
    place = finding.place
    if place is not None:
        return [f"    {place.line} | {place.excerpt}"] if place.line is not None else []
    if finding.line is None or finding.column is None or not result.document.text:
        return []
    text, column = result.document.excerpt(finding.line, finding.column)
    number = f"{finding.line} | "
    before, marked = text[: column - 1], text[column - 1 : column - 1 + finding.length]
    caret = " " * (len(number) + _width(before)) + "^" * max(1, _width(marked))
    return [f"    {number}{text}", f"    {caret}"]


def _width(text: str) -> int:
    """Columns a terminal needs: East Asian wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def json_report(result: CheckReport, lang: Language) -> str:
    """One JSON object."""
    report = {
        "file": result.document.name,
        "host_version": result.situation.host_version,
        "verdict": result.verdict,
        "findings": [_json_finding(finding, lang) for finding in result.findings],
    }
    return json.dumps(report, ensure_ascii=False, indent=2)


def _json_finding(finding: Finding, lang: Language) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity,
        "outcome": finding.outcome,
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "value": _json_value(finding.value),
        "message": message(finding, lang),
        "hint": hint(finding, lang),
        "source": finding.kind.source,
    }


def _json_value(value: Any) -> Any:
    """A value every JSON reader takes: containers and huge numbers become short texts."""
    if isinstance(value, str):
        return value[:200].encode("utf-8", "replace").decode("utf-8")
    is_plain = value is None or isinstance(value, bool)
    is_number = isinstance(value, (int, float)) and abs(value) < _MAX_SAFE_INTEGER
    return value if is_plain or is_number else shown(value)


def sarif_report(result: CheckReport, lang: Language) -> str:
    """A SARIF 2.1.0 log with one run."""
    codes = sorted({finding.code for finding in result.findings})
    driver = {
        "name": "mindie-kvpool",
        "version": __version__,
        "rules": [
            {
                "id": code,
                "shortDescription": {"text": words(f"{code}.title", lang)},
                "fullDescription": {"text": words(f"{code}.why", lang)},
            }
            for code in codes
        ],
    }
    results = [_sarif_result(finding, result, lang) for finding in result.findings]
    log = {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, ensure_ascii=False, indent=2)


def _sarif_result(finding: Finding, result: CheckReport, lang: Language) -> dict[str, Any]:
    place = finding.place
    in_other = place is not None and place.line is not None
    line = place.line if place is not None and in_other else finding.line
    column = place.column if place is not None and in_other else finding.column
    uri = place.file if place is not None and in_other else result.document.name
    physical: dict[str, Any] = {"artifactLocation": {"uri": uri.replace("\\", "/")}}
    if line is not None:
        physical["region"] = {"startLine": line, "startColumn": column or 1}
    return {
        "ruleId": finding.code,
        "level": _SARIF_LEVELS[finding.severity],
        "message": {"text": f"{message(finding, lang)}. {hint(finding, lang)}"},
        "locations": [{"physicalLocation": physical}],
        "properties": {"outcome": finding.outcome, "path": finding.path},
    }


REPORTERS = {"text": text_report, "json": json_report, "sarif": sarif_report}
"""Format name -> reporter."""
