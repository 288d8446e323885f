"""The check: load, schema, rules, report.  All findings in one run.

No stage hides another: what the load stage could repair goes on to the schema and the rules, and
host bugs that mask a fault are not copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.causes import without_followers
from mindie_kvpool_plugin.check.findings import SEVERITY_ORDER, Finding, Verdict, verdict
from mindie_kvpool_plugin.check.follow import Followed, OtherFile, follow
from mindie_kvpool_plugin.check.messages import Refused
from mindie_kvpool_plugin.check.pool_alone import is_pool_object, other_document, pool_file_findings
from mindie_kvpool_plugin.check.pool_options import pool_findings
from mindie_kvpool_plugin.check.rules import all_rules
from mindie_kvpool_plugin.check.rules.view import View
from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.check.schema.stage import check_schema
from mindie_kvpool_plugin.check.situation import Disk, Situation
from mindie_kvpool_plugin.check.text.document import Document
from mindie_kvpool_plugin.check.text.load import load_bytes

# a report with more findings helps nobody; the worst come first
MAX_FINDINGS = 500


@dataclass(slots=True)
class CheckReport:
    """What a check says.

    Attributes:
        document: the file, for excerpts and repairs.
        situation: what the check knew.
        findings: worst first, then by place.
        pool: the pool file, if one was read.
        is_pool_file: the file itself is one, checked without a configuration.
        counts: errors and warnings, those counted that follow from others and are not told.
    """

    document: Document
    situation: Situation
    findings: list[Finding]
    pool: OtherFile | None = None
    is_pool_file: bool = False
    counts: tuple[int, int] = (0, 0)

    @property
    def verdict(self) -> Verdict:
        """The worst severity."""
        return verdict(self.findings)


def check_bytes(data: bytes, name: str, situation: Situation, disk: Disk | None = None) -> CheckReport:
    """Check a configuration given as bytes.  Never raises, whatever the bytes.

    Args:
        data: the file's content.
        name: the file as the user wrote it.
        situation: flags, environment, and where the file lies.
        disk: looks at paths; a test hands in its own.
    """
    disk = disk or Disk()
    other = other_document(data, name)
    document = other or load_bytes(data, name, size=_size(data, situation, disk))
    findings = list(document.findings)
    followed, counts = Followed(disk), None
    is_pool_file = other is not None or is_pool_object(document.value)
    if is_pool_file:
        findings = _distinct(pool_file_findings(document, situation, disk))
    elif isinstance(document.value, dict):
        followed = follow(document.value, situation, followed.disk)
        judge = partial(_judged, situation=situation, followed=followed)
        found = judge(document.value)
        counts = _counts([*findings, *found])
        findings = without_followers(found, findings, document.value, judge)
    ordered = sorted(_placed(findings, document), key=_order)[:MAX_FINDINGS]
    return CheckReport(document, situation, ordered, followed.pool, is_pool_file, counts or _counts(findings))


def _judged(root: Any, situation: Situation, followed: Followed) -> list[Finding]:
    """What schema and rules say about a configuration."""
    found = check_schema(root, profiles.config_schema(situation.host_version))
    found += all_rules(View(root, situation, followed))
    return _distinct([*found, *_distinct(pool_findings(root, followed.pool))])


def _size(data: bytes, situation: Situation, disk: Disk) -> int:
    """Bytes of the whole file: of a large one only the beginning was read."""
    path = situation.config_path
    return max(len(data), disk.facts(path).size if path is not None else 0)


def _counts(findings: Iterable[Finding]) -> tuple[int, int]:
    found = Counter(finding.severity for finding in findings for _ in range(1 + finding.alike))
    return found["error"], found["warning"]


def _distinct(findings: Iterable[Finding]) -> list[Finding]:
    """Without repeats: where the type is wrong, range and choices say nothing new."""
    found = list(findings)
    if any(f.kind.is_other_kind for f in found):
        return [f for f in found if f.kind.is_other_kind or f.line is not None]
    wrong_type = {(f.path, f.place) for f in found if f.kind is codes.WRONG_TYPE}
    explained = {(f.path, f.place) for f in found if f.kind.explains_key}

    def is_new(finding: Finding) -> bool:
        place = (finding.path, finding.place)
        if finding.kind.needs_type:
            return place not in wrong_type
        return finding.kind not in _UNKNOWN or place not in explained

    return [finding for finding in found if is_new(finding)]


_UNKNOWN = (codes.UNKNOWN_KEY, codes.MISSPELT_KEY)


def _placed(findings: list[Finding], document: Document) -> list[Finding]:
    """With positions, and without findings about a value that the load stage had to make up."""
    worst_first = sorted(findings, key=lambda finding: SEVERITY_ORDER[finding.severity])
    placed = [document.locate(finding) for finding in worst_first[: 2 * MAX_FINDINGS]]
    broken = [(f.line, f.column or 0) for f in placed if f.kind.has_stand_in]
    return [f for f in placed if not f.kind.about_value or not _covers(f, broken)]


def _covers(finding: Finding, places: list[tuple[int | None, int]]) -> bool:
    start = finding.column or 0
    return any(line == finding.line and start <= column < start + finding.length for line, column in places)


def _order(finding: Finding) -> tuple[int, int, int, str]:
    return SEVERITY_ORDER[finding.severity], finding.line or 0, finding.column or 0, finding.code


def check_file(path: Path, situation: Situation) -> CheckReport:
    """Check a file on disk.

    Raises:
        OSError: it cannot be read.
    """
    return check_bytes(read_limited(path), str(path), situation)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        Refused: it holds none.
        OSError: it cannot be read.
    """
    document = load_bytes(read_limited(path), str(path))
    if not document.is_valid or not isinstance(document.value, dict):
        line, column = next(((each.line, each.column) for each in document.findings if each.line), (1, 1))
        raise Refused("target.no_object", file=path, line=line, column=column)
    return document.value


def read_limited(path: Path) -> bytes:
    """The file's bytes, one more than the host's limit at most: enough to see that it is too large.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(10 * 1024 * 1024 + 1)
