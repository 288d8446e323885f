"""SARIF 2.1.0, for code hosts and editors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.check.findings import Code, Edit, Finding
from mindie_kvpool_plugin.check.messages import Language, hint, message, words
from mindie_kvpool_plugin.check.pipeline import CheckReport
from mindie_kvpool_plugin.check.repair import edits_of
from mindie_kvpool_plugin.check.sources import address
from mindie_kvpool_plugin.check.text.document import Document
from mindie_kvpool_plugin.cli.reporters.spots import STANDARD_INPUT, Spot, all_findings, for_code_hosts, spot

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif_report(results: Sequence[CheckReport], lang: Language) -> str:
    """A log with one run over all files."""
    found = list(all_findings(results))
    kinds = {finding.code: finding.kind for _, finding in found}
    driver = {
        "name": "mindie-kvpool",
        "version": __version__,
        "rules": [_rule(kinds[code], lang) for code in sorted(kinds)],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, result, lang) for result, finding in found],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, ensure_ascii=False, indent=2)


def _rule(kind: Code, lang: Language) -> dict[str, Any]:
    return {
        "id": kind.id,
        "shortDescription": {"text": words(f"{kind.id}.title", lang)},
        "fullDescription": {"text": words(f"{kind.id}.why", lang)},
        "help": {"text": f"mindie-kvpool explain {kind.id}"},
        "helpUri": address(kind.source),
        "defaultConfiguration": {"level": _LEVELS[kind.severity]},
    }


def _result(finding: Finding, result: CheckReport, lang: Language) -> dict[str, Any]:
    place = spot(finding, result)
    told = {
        "ruleId": finding.code,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{message(finding, lang)}. {hint(finding, lang)}"},
        "locations": [{"physicalLocation": _location(place)}],
        "properties": {"outcome": finding.outcome, "path": place.path},
    }
    edits = edits_of(finding, result.document)
    if edits:
        told["fixes"] = [_fix(edits, result.document, hint(finding, lang))]
    return told


def _location(place: Spot) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _artifact(place.file)}
    if place.line is not None:
        region = {"startLine": place.line, "startColumn": place.column or 1}
        end = {"endLine": place.end_line, "endColumn": place.end_column}
        physical["region"] = region | {key: value for key, value in end.items() if value is not None}
    return physical


def _artifact(file: str) -> dict[str, Any]:
    """A valid URI whatever the name: relative names stay relative, what is no letter of a URI is escaped."""
    if file == STANDARD_INPUT:
        return {"uri": "stdin", "description": {"text": "standard input"}}
    name = for_code_hosts(file)
    return {"uri": Path(name).as_uri() if Path(name).is_absolute() else quote(name, errors="replace")}


def _fix(edits: Iterable[Edit], document: Document, description: str) -> dict[str, Any]:
    change = {
        "artifactLocation": _artifact(document.name),
        "replacements": [_replacement(edit, document) for edit in edits],
    }
    return {"description": {"text": description}, "artifactChanges": [change]}


def _replacement(edit: Edit, document: Document) -> dict[str, Any]:
    line, column = document.line_column(edit.start)
    end_line, end_column = document.line_column(edit.end)
    deleted = {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}
    return {"deletedRegion": deleted, "insertedContent": {"text": edit.text}}
