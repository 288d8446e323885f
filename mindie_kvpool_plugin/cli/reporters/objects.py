"""The report as one JSON object, for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from mindie_kvpool_plugin.check.findings import Finding, shown, verdict
from mindie_kvpool_plugin.check.messages import Language, hint, message
from mindie_kvpool_plugin.check.pipeline import CheckReport
from mindie_kvpool_plugin.check.repair import is_repairable
from mindie_kvpool_plugin.check.sources import told
from mindie_kvpool_plugin.cli.reporters.spots import all_findings, spot

# larger integers lose digits in most JSON readers
_MAX_SAFE_INTEGER = 2**53


def json_report(results: Sequence[CheckReport], lang: Language) -> str:
    """The verdict over all files and over each, and one list of findings, each with its file."""
    report = {
        "verdict": verdict(finding for _, finding in all_findings(results)),
        "files": [
            {"file": each.document.name, "host_version": each.situation.host_version, "verdict": each.verdict}
            for each in results
        ],
        "findings": [_finding(finding, result, lang) for result, finding in all_findings(results)],
    }
    return json.dumps(report, ensure_ascii=False, indent=2)


def _finding(finding: Finding, result: CheckReport, lang: Language) -> dict[str, Any]:
    place = spot(finding, result)
    return {
        "code": finding.code,
        "severity": finding.severity,
        "outcome": finding.outcome,
        "file": place.file,
        "path": place.path,
        "line": place.line,
        "column": place.column,
        "end_line": place.end_line,
        "end_column": place.end_column,
        "value": _plain(finding.value),
        "message": message(finding, lang),
        "hint": hint(finding, lang),
        "fixable": is_repairable(finding),
        "source": told(finding.kind.source, lang),
    }


def _plain(value: Any) -> Any:
    """A value every JSON reader takes: containers and huge numbers become short texts."""
    if isinstance(value, str):
        return value[:200].encode("utf-8", "replace").decode("utf-8")
    is_plain = value is None or isinstance(value, bool)
    is_number = isinstance(value, (int, float)) and abs(value) < _MAX_SAFE_INTEGER
    return value if is_plain or is_number else shown(value)
