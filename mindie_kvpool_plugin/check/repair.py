"""``--fix``: what can be repaired without asking, and nothing else.

Every repair is an edit of a few characters at the place of a finding, so formatting and order of
the rest stay as they are.  Syntax first; names and numbers once the text is JSON.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from dataclasses import dataclass

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Edit, Finding
from mindie_kvpool_plugin.check.pipeline import check_bytes
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.check.text.document import Document
from mindie_kvpool_plugin.check.text.load import load_bytes

# one repair can uncover the next: a gutter number gone, a missing comma shows
MAX_ROUNDS = 6
# repaired by writing the file anew, not by edits
_ENCODING = (codes.UTF16, codes.BYTE_ORDER_MARK)


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


def repair(data: bytes, name: str, situation: Situation) -> Repair:
    """Repair what is unambiguous.  Never raises; unchanged bytes when there is nothing to do."""
    document = load_bytes(data, name)
    before, text, done = document.text, document.text, list[str]()
    prefix = codecs.BOM_UTF8 if document.shift else b""
    if any(finding.kind.is_hopeless for finding in document.findings):
        return Repair(before, before, data, ())
    done += [finding.code for finding in document.findings if finding.kind is codes.UTF16]
    for _ in range(MAX_ROUNDS):
        edits, found = _syntax_edits(document)
        if not edits:
            edits, found = _name_edits(document, situation)
        changed = apply_edits(text, edits)
        if changed == text:
            break
        text = changed
        done += found
        document = load_bytes(text.encode("utf-8", "replace"), name)
    if text == before and not done:
        return Repair(before, before, data, ())
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
    """Apply edits from the end to the start; one that overlaps another is left for the next round."""
    limit = len(text) + 1
    line_end = "\r\n" if "\r\n" in text else "\n"
    for edit in sorted(edits, key=lambda each: (each.start, each.end), reverse=True):
        if edit.end <= limit:
            text = text[: edit.start] + edit.text.replace("\n", line_end) + text[edit.end :]
            limit = edit.start
    return text


def _syntax_edits(document: Document) -> tuple[list[Edit], list[str]]:
    repairable = [f for f in document.findings if f.edits and f.kind not in _ENCODING]
    if not repairable or document.value is None:
        return [], []
    return [edit for f in repairable for edit in f.edits], [f.code for f in repairable]


def _name_edits(document: Document, situation: Situation) -> tuple[list[Edit], list[str]]:
    if not document.is_valid or not isinstance(document.value, dict):
        return [], []
    result = check_bytes(document.text.encode("utf-8"), document.name, situation)
    edits, repaired = [], []
    for finding in result.findings:
        edit = _name_edit(finding, document)
        if edit is not None:
            edits.append(edit)
            repaired.append(finding.code)
    return edits, repaired


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
