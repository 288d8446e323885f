"""Where a finding is, whichever file that is: what every report needs to know of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mindie_kvpool_plugin.check.findings import Finding
from mindie_kvpool_plugin.check.pipeline import CheckReport
from mindie_kvpool_plugin.check.text.document import Document

STANDARD_INPUT = "<stdin>"
"""The name of what was read from standard input."""
STANDARD_OUTPUT = "-"
"""The name of a file to write that is none."""


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of a finding in the file it is about.

    Attributes:
        file: as the user wrote it, or as the configuration names it.
        path: JSON Pointer in that file.
        line, column: 1-based, in characters; None when it is about the file as a whole.
        end_line, end_column: behind the last character; None with them.
        document: the file's text; None when it was not read.
    """

    file: str
    path: str
    line: int | None = None
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    document: Document | None = None


def all_findings(results: Sequence[CheckReport]) -> Iterator[tuple[CheckReport, Finding]]:
    """Every finding with the report it is from."""
    yield from ((result, finding) for result in results for finding in result.findings)


def spot(finding: Finding, result: CheckReport) -> Spot:
    """Where ``finding`` is: in the checked file, or in the pool file that it names."""
    place = finding.place
    if place is None:
        return _ending(
            result.document.name, finding.path, finding.line, finding.column, finding.length, result.document
        )
    document = result.pool.document if result.pool is not None else None
    return _ending(place.file, place.pointer, place.line, place.column, place.length, document)


def for_code_hosts(file: str) -> str:
    """A file's name as code hosts want it: from the folder they run in, with forward slashes."""
    here = os.path.join(os.getcwd(), "")
    name = os.path.normpath(file).removeprefix(here)
    return name.replace(os.sep, "/")


def _ending(file: str, path: str, line: int | None, column: int | None, length: int, document: Document | None) -> Spot:
    if line is None or document is None:
        return Spot(file, path, line, column, line, column, document)
    column = column or 1
    start = _offset(document.text, line) + column - 1
    marked = document.text[start : start + length]
    breaks = marked.count("\n")
    end_column = len(marked) - marked.rfind("\n") if breaks else column + len(marked)
    return Spot(file, path, line, column, line + breaks, end_column, document)


def _offset(text: str, line: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start
