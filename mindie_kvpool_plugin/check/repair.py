"""``--fix``: what can be repaired without asking, and nothing else.

Every repair is an edit of a few characters at the place of a finding, so formatting and order of
the rest stay as they are.  The work goes in rounds.  A round is accepted only if the text then reads
as exactly the value that was foreseen, nothing more and nothing less, if every member that stood on a
line of its own is still one, and if there are fewer errors than before; edits that fail together are
tried one by one.  So no valid value can be lost, and a second run finds nothing left to do.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin.check import codes, meaning
from mindie_kvpool_plugin.check.findings import Edit, Finding
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.pool_alone import other_document
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.check.text.document import Document
from mindie_kvpool_plugin.check.text.load import load_bytes
from mindie_kvpool_plugin.check.text.members import members, whole_members

# every round leaves fewer errors, and there are at most some 60: the bound is for what nobody foresaw
MAX_ROUNDS = 100
# a larger text is repaired at one go or not at all: each attempt reads it anew
MAX_CHARS_ONE_BY_ONE = 30_000
# repaired by writing the file anew, not by edits
_ENCODING = (codes.UTF16, codes.BYTE_ORDER_MARK)

Measure = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Repair:
    """A repaired text.

    Attributes:
        before, after: the texts, without byte order mark.
        data: the bytes to write.
        codes: what was repaired, in order, without repeats.
    """

    before: str
    after: str
    data: bytes
    codes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A text on its way: as it reads now, how bad it is (the smaller the better), and what was repaired."""

    document: Document
    measure: Measure
    codes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Proposal:
    """The edits of one finding; ``change`` does to a value what they do to the text."""

    finding: Finding
    edits: tuple[Edit, ...]
    change: Callable[[Any, Finding], None] | None = None


def repair(data: bytes, name: str, situation: Situation) -> Repair:
    """Repair what is unambiguous.  Never raises; unchanged bytes when there is nothing to do."""
    document = other_document(data, name) or load_bytes(data, name)
    before = document.text
    prefix = codecs.BOM_UTF8 if document.shift else b""
    if any(finding.kind.is_hopeless for finding in document.findings):
        return Repair(before, before, data, ())
    done = [finding.code for finding in document.findings if finding.kind is codes.UTF16]
    for _ in range(MAX_ROUNDS):
        better = _syntax_round(document, situation) or _name_round(document, situation)
        if better is None:
            break
        document = better.document
        done += better.codes
    if not done:
        return Repair(before, before, data, ())
    text = document.text
    return Repair(before, text, prefix + text.encode("utf-8", "replace"), tuple(dict.fromkeys(done)))


def is_repairable(finding: Finding) -> bool:
    """Whether ``--fix`` would do something about a finding."""
    if finding.place is not None or finding.severity == "info":
        return False
    return bool(finding.edits) or (not finding.variant and finding.kind.fix is not None)


def edits_of(finding: Finding, document: Document) -> tuple[Edit, ...]:
    """What ``--fix`` would do about a finding of ``document``; () when it needs a decision, or a new encoding."""
    if finding.kind in _ENCODING or not is_repairable(finding):
        return ()
    edit = None if finding.edits else _name_edit(finding, document)
    return (edit,) if edit is not None else finding.edits


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits; of two that overlap the later one counts, and those at one place go in the order given."""
    line_end = "\r\n" if "\r\n" in text else "\n"
    parts, limit = [], len(text)
    for edit in [*sorted(edits, key=lambda each: (each.start, each.end))][::-1]:
        if edit.end <= limit:
            parts += [text[edit.end : limit], edit.text.replace("\n", line_end)]
            limit = edit.start
    return text[:limit] + "".join(reversed(parts))


def _syntax_round(document: Document, situation: Situation) -> _Attempt | None:
    """The text with syntax repaired; None when nothing can be."""
    found = [f for f in document.findings if f.edits and f.kind not in _ENCODING]
    if not found or document.value is None or _is_snippet(document, situation):
        return None
    now = _Attempt(document, _syntax_measure(document))
    return _round(now, [_Proposal(finding, finding.edits) for finding in found], _syntax_measure)


def _is_snippet(document: Document, situation: Situation) -> bool:
    """Whether the text has dots for something that nobody but its author can put there."""
    if all(finding.kind is not codes.ELLIPSIS for finding in document.findings):
        return False
    report = check_bytes(document.text.encode("utf-8", "replace"), document.name, situation)
    return any(finding.kind is codes.ELLIPSIS and not finding.edits for finding in report.findings)


def _name_round(document: Document, situation: Situation) -> _Attempt | None:
    """The text with names and numbers repaired; None when nothing can be."""
    if not document.is_valid or not isinstance(document.value, dict):
        return None

    def measure(attempt: Document) -> Measure:
        return check_bytes(attempt.text.encode("utf-8", "replace"), attempt.name, situation).counts

    report = check_bytes(document.text.encode("utf-8", "replace"), document.name, situation)
    proposals = [each for finding in report.findings if (each := _name_proposal(finding, document)) is not None]
    try:
        return _round(_Attempt(document, report.counts), proposals, measure) if proposals else None
    except RecursionError:  # nested deeper than any configuration
        return None


def _syntax_measure(document: Document) -> Measure:
    return sum(1 + f.alike for f in document.findings if f.severity == "error" and f.kind not in _ENCODING), 0


def _round(now: _Attempt, proposals: list[_Proposal], measure: Callable[[Document], Measure]) -> _Attempt | None:
    """All proposals at once, or else those that are good one after the other."""
    best = _tried(now, now, proposals, measure)
    if best is not None or len(proposals) == 1 or len(now.document.text) > MAX_CHARS_ONE_BY_ONE:
        return best
    accepted: list[_Proposal] = []
    for proposal in proposals:
        attempt = _tried(now, best or now, [*accepted, proposal], measure)
        if attempt is not None:
            accepted, best = [*accepted, proposal], attempt
    return best


def _tried(
    now: _Attempt, best: _Attempt, proposals: list[_Proposal], measure: Callable[[Document], Measure]
) -> _Attempt | None:
    """``now`` with proposals applied, if that reads as foreseen and is better than ``best``."""
    text = apply_edits(now.document.text, [edit for each in proposals for edit in each.edits])
    document = load_bytes(text.encode("utf-8", "replace"), now.document.name)
    if document.text != text or not meaning.is_same(document.value, _foreseen(now.document.value, proposals)):
        return None
    if not now.document.is_valid and whole_members(now.document.text) - members(text):
        return None
    found = measure(document)
    codes_done = tuple(each.finding.code for each in proposals)
    return _Attempt(document, found, codes_done) if found < best.measure else None


def _foreseen(value: Any, proposals: list[_Proposal]) -> Any:
    """What the text should read as once the proposals are applied."""
    changes = [each for each in proposals if each.change is not None]
    changed = deepcopy(value) if changes else value
    for each in sorted(changes, key=lambda each: each.finding.path.count("/"), reverse=True):
        if each.change is not None:
            each.change(changed, each.finding)
    return changed


def _name_proposal(finding: Finding, document: Document) -> _Proposal | None:
    edit = _name_edit(finding, document)
    return _Proposal(finding, (edit,), meaning.change) if edit is not None else None


def _name_edit(finding: Finding, document: Document) -> Edit | None:
    if finding.place is not None or finding.variant:
        return None
    if finding.kind.fix == "rename":
        close = finding.params.get("close") or finding.params.get("meant")
        span = document.span(finding.path, of_key=True)
        is_free = not _has_sibling(finding.path, str(close), document)
        return Edit(*span, json.dumps(close)) if span is not None and is_free else None
    if finding.kind.fix == "number":
        span = document.value_span(finding.path)
        return Edit(*span, str(finding.params["meant"])) if span is not None else None
    if finding.kind.fix == "remove":
        return document.member_removal(finding.path)
    return None


def _has_sibling(path: str, name: str, document: Document) -> bool:
    parent = document.node(path.rsplit("/", 1)[0])
    return parent is None or parent.child(name) is not None
