"""Annotations of a change on a code host: GitHub's workflow commands, GitLab's code quality report."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mindie_kvpool_plugin.check.findings import Finding
from mindie_kvpool_plugin.check.messages import Language, hint, message, words
from mindie_kvpool_plugin.check.pipeline import CheckReport
from mindie_kvpool_plugin.cli.reporters.spots import Spot, all_findings, for_code_hosts, spot

_GITHUB_LEVELS = {"error": "error", "warning": "warning", "info": "notice"}
_GITLAB_LEVELS = {"error": "critical", "warning": "minor", "info": "info"}


def github_report(results: Sequence[CheckReport], lang: Language) -> str:
    """One workflow command for each finding, which GitHub shows at its line."""
    return "\n".join(_command(finding, spot(finding, result), lang) for result, finding in all_findings(results))


def gitlab_report(results: Sequence[CheckReport], lang: Language) -> str:
    """A list of issues; GitLab follows one from commit to commit by its fingerprint, so that has no line."""
    seen: Counter[str] = Counter()
    issues = []
    for result, finding in all_findings(results):
        place = spot(finding, result)
        same = f"{for_code_hosts(place.file)}\0{finding.code}\0{place.path}\0{finding.variant}"
        seen[same] += 1
        fingerprint = hashlib.sha256(f"{same}\0{seen[same]}".encode("utf-8", "replace")).hexdigest()
        issues.append(_issue(finding, place, fingerprint, lang))
    return json.dumps(issues, ensure_ascii=False, indent=2)


def _told(finding: Finding, lang: Language) -> str:
    told = f"{message(finding, lang)}\n{words('report.hint', lang)}: {hint(finding, lang)}"
    return told if finding.severity == "info" else f"{told}\n{words(f'outcome.{finding.outcome}', lang)}"


def _command(finding: Finding, place: Spot, lang: Language) -> str:
    where = {"line": place.line, "col": place.column, "endLine": place.end_line, "endColumn": place.end_column}
    properties: dict[str, Any] = {"file": for_code_hosts(place.file)}
    properties |= {name: value for name, value in where.items() if value is not None}
    properties["title"] = f"{finding.code} {words(f'{finding.code}.title', lang)}"
    listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{_GITHUB_LEVELS[finding.severity]} {listed}::{_data(_told(finding, lang))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _issue(finding: Finding, place: Spot, fingerprint: str, lang: Language) -> dict[str, Any]:
    return {
        "description": f"{finding.code}: {message(finding, lang)}; {hint(finding, lang)}",
        "check_name": finding.code,
        "fingerprint": fingerprint,
        "severity": _GITLAB_LEVELS[finding.severity],
        "location": {
            "path": for_code_hosts(place.file),
            "lines": {"begin": place.line or 1, "end": place.end_line or place.line or 1},
        },
    }
