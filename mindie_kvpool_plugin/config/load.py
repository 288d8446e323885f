"""From bytes to a document: the host's JSON dialect, with a position for everything.

A valid file is read by the standard library's parser, at C speed.  Only a file it refuses, or
one too deep for it, goes through the tolerant parser of ``syntax.py``.  Positions come from the
same grammar and are made when the first finding asks for one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from mindie_kvpool_plugin.config.diagnostics import Edit, Finding, pointer

# the host's limit, bytes
MAX_BYTES = 10 * 1024 * 1024
# above this size duplicate keys are not looked for: one Python call per object would take seconds
MAX_WATCHED_CHARS = 1024 * 1024
# the tolerant parser is pure Python and names causes for people: a file larger than this has one cause
MAX_TOLERANT_CHARS = 1024 * 1024
_BLANKS = " \t\r\n"
# longer pointers are cut: nesting of thousands of levels would make them quadratic
MAX_PATH_CHARS = 1000
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# what the standard parser accepts and the host does not
_SUSPECT = re.compile(r"\\u[dD][89a-fA-F]|[0-9]{309}")
_EXPONENT = re.compile(r"[eE]\+?[0-9]{2,}")
KEY_CODES = frozenset({"HC-82", "SC-06", "SC-07", "JS-20"})
"""Findings about a key rather than its value."""

# shown around a finding, characters
_EXCERPT = 160


@dataclass(slots=True)
class Document:
    """A file's text, its value, and what was wrong with it.

    Attributes:
        name: the file as the user wrote it.
        text: without byte order mark; the text that offsets count in.
        value: the root value; of the repaired text when there were syntax errors; None when there is none.
        findings: syntax and file findings, placed.
        is_valid: whether the host would have parsed it.
        shift: characters in front of ``text`` in the file (a byte order mark).
    """

    name: str
    text: str
    value: Any = None
    findings: list[Finding] = field(default_factory=list)
    is_valid: bool = False
    shift: int = 0
    end: int = 0
    _root: Any = None
    _tried: bool = False

    def root(self) -> Any:
        """The tree with positions; None when the file is too large for one."""
        if self._root is None and not self._tried and self.is_valid:
            self._tried = True
            from mindie_kvpool_plugin.config.syntax import parse_valid  # noqa: PLC0415  # its import costs 50 ms

            self._root = parse_valid(self.text[: self.end])
        return self._root

    def node(self, path: str) -> Any:
        """The node at a JSON Pointer; None when there is none."""
        node = self.root()
        for part in _parts(path):
            node = node.child(part) if node is not None else None
        return node

    def span(self, path: str, *, of_key: bool = False) -> tuple[int, int] | None:
        """Offsets of the value at a JSON Pointer, of its key, or of the nearest thing that exists.

        For an object or a list that is its key, or its first bracket: underlining all of it says nothing.
        """
        node = self.root()
        if node is None:
            return None
        span = (node.start, min(node.start + 1, node.end))
        for part in _parts(path):
            child = node.child(part)
            if child is None:
                return span
            key = next(((a, b) for _, a, b, n in node.members or () if n is child), None)
            is_short = child.members is None and child.items is None
            if key is not None and (of_key or not is_short):
                span = key
            else:
                span = (child.start, child.end if is_short else child.start + 1)
            node = child
        return span

    def value_span(self, path: str) -> tuple[int, int] | None:
        """Offsets of the whole value at a JSON Pointer; None when there is none."""
        node = self.node(path)
        return (node.start, node.end) if node is not None else None

    def member_removal(self, path: str) -> Edit | None:
        """The edit that takes a member out of its object, with one comma and the line it leaves empty."""
        parent, name = self.node(path.rpartition("/")[0]), next(reversed(_parts(path)), "")
        members = parent.members if parent is not None else None
        index = next((i for i, member in enumerate(members or ()) if member[0] == name), None)
        if members is None or index is None:
            return None
        if index + 1 < len(members):  # up to the next key: the comma between goes too
            return Edit(members[index][1], members[index + 1][1], "")
        start = members[index - 1][3].end if index else parent.start + 1
        return Edit(start, members[index][3].end, "")

    def line_column(self, offset: int) -> tuple[int, int]:
        """1-based line and column of an offset; only a line feed ends a line."""
        return self.text.count("\n", 0, offset) + 1, offset - self.text.rfind("\n", 0, offset)

    def placed(self, finding: Finding, start: int, end: int) -> Finding:
        """``finding`` with line and column."""
        line, column = self.line_column(start)
        return replace(finding, line=line, column=column, length=max(1, min(end - start, _EXCERPT)))

    def locate(self, finding: Finding) -> Finding:
        """``finding`` with the position of its path, if there is one."""
        if finding.line is not None:
            return finding
        span = self.span(finding.path, of_key=finding.code in KEY_CODES)
        return self.placed(finding, *span) if span is not None else finding

    def excerpt(self, line: int, column: int) -> tuple[str, int]:
        """The text of a line, cut around the column, and the column in what is left."""
        start = 0
        for _ in range(line - 1):
            start = self.text.find("\n", start) + 1
        begin = start + max(0, column - 1 - _EXCERPT // 2)
        stop = self.text.find("\n", start, begin + _EXCERPT)
        text = self.text[begin : stop if stop >= 0 else begin + _EXCERPT]
        return "".join(c if c.isprintable() else " " for c in text.rstrip("\r")), column - (begin - start)


def _parts(path: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def load_bytes(data: bytes, name: str, *, bom_is_error: bool = False) -> Document:
    """Decode and parse.  Never raises, whatever the bytes."""
    if not data:
        return Document(name, "", findings=[Finding("FI-02", "error", "boot", line=1, column=1)])
    if len(data) > MAX_BYTES:
        finding = Finding("FI-03", "error", "boot", params={"size": len(data), "limit": MAX_BYTES}, line=1, column=1)
        return Document(name, "", findings=[finding])
    document = _decoded(data, name, bom_is_error=bom_is_error)
    _parse(document)
    return document


def _decoded(data: bytes, name: str, *, bom_is_error: bool) -> Document:
    if data.startswith(_UTF16):
        document = Document(name, data.decode("utf-16", "replace"))
        edit = Edit(0, 0, "")  # rewriting the file as UTF-8 is the repair
        document.findings.append(Finding("FI-05", "error", "boot", line=1, column=1, edits=(edit,)))
        return document
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        document = Document(name, text)
        before = data[: error.start].decode("utf-8", "replace")
        shown_bytes = " ".join(f"{byte:02X}" for byte in data[error.start : min(error.end, error.start + 4)])
        finding = Finding("FI-04", "error", "boot", value=shown_bytes, params={"offset": error.start})
        document.findings.append(document.placed(finding, len(before), len(before) + 1))
    else:
        document = Document(name, text)
    if document.text.startswith("\ufeff"):
        severity, outcome = ("error", "late") if bom_is_error else ("info", "advice")
        edit = Edit(-1, 0, "")
        document.findings.append(
            Finding("FI-06", severity, outcome, line=1, column=1, edits=(edit,))  # type: ignore[arg-type]
        )
        document.text = document.text[1:]
        document.shift = 1
    return document


class _NotStrictError(ValueError):
    """The standard parser met something it accepts and the host does not."""


def _parse(document: Document) -> None:
    text = document.text
    begin = len(text) - len(text.lstrip(_BLANKS))
    has_duplicates = False

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_duplicates
        made = dict(pairs)
        has_duplicates = has_duplicates or len(made) != len(pairs)
        return made

    watch = members if len(text) <= MAX_WATCHED_CHARS else None
    try:
        if _SUSPECT.search(text):
            raise _NotStrictError
        decoder = json.JSONDecoder(object_pairs_hook=watch, parse_constant=_refuse, parse_float=_float_reader(text))
        document.value, document.end = decoder.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        _parse_tolerantly(document, error)
        return
    document.is_valid = True
    _check_end(document)
    if has_duplicates:
        _report_duplicates(document)


def _refuse(constant: str) -> NoReturn:
    raise _NotStrictError(constant)


def _float_reader(text: str) -> Callable[[str], float] | None:
    """A reader that refuses infinity, only where an exponent could make one: it costs a call per number."""
    return _finite if _EXPONENT.search(text) else None


def _finite(text: str) -> float:
    number = float(text)
    if number in {float("inf"), float("-inf")}:
        raise _NotStrictError(text)
    return number


def _check_end(document: Document) -> None:
    """A complete value was read: is it an object, and is it all there is?"""
    rest = document.text[document.end :].lstrip(_BLANKS)
    if not isinstance(document.value, dict):
        # the broken-file parser says why: line numbers, missing braces, a list around it
        _parse_tolerantly(document, None)
        return
    if rest:
        start = len(document.text) - len(rest)
        # more than brackets may be a section that one brace too many cut off: that is for the user to decide
        edits = (Edit(document.end, len(document.text), "\n"),) if not rest.strip("]}, \t\r\n") else ()
        finding = Finding("JS-19", "error", "boot", value=rest[:40], edits=edits)
        document.findings.append(document.placed(finding, start, start + len(rest.split("\n", 1)[0])))


def _parse_tolerantly(document: Document, refusal: Exception | None) -> None:
    from mindie_kvpool_plugin.config.syntax import parse_broken  # noqa: PLC0415  # its import costs 50 ms

    parsed = parse_broken(document.text[:MAX_TOLERANT_CHARS], is_whole=len(document.text) <= MAX_TOLERANT_CHARS)
    document._root = parsed.root
    document._tried = True
    document.value = parsed.root.value if parsed.root is not None else None
    document.is_valid = parsed.complete and not parsed.findings and document.value is not None
    document.end = len(document.text)
    document.findings += [document.placed(finding, start, end) for finding, start, end in parsed.findings]
    if not parsed.findings and not document.is_valid:
        document.findings.append(_unexplained(document, refusal))
    if parsed.root is not None:
        _report_duplicates(document)


def _unexplained(document: Document, refusal: Exception | None) -> Finding:
    """The file is larger than the tolerant parser reads, and up to there it is good."""
    if isinstance(refusal, json.JSONDecodeError):
        position = min(refusal.pos, len(document.text))
        return document.placed(Finding("JS-26", "error", "boot"), position, position + 1)
    return Finding("FI-09", "warning", "advice", line=1, column=1)


def _report_duplicates(document: Document) -> None:
    """Every repeated key of an object; the host takes the last one without a word."""
    root = document.root()
    todo = [(root, "")] if root is not None else []
    while todo:
        node, path = todo.pop()
        seen: set[str] = set()
        for key, start, end, child in reversed(node.members or ()):
            child_path = path + pointer(key) if len(path) < MAX_PATH_CHARS else path
            if key in seen:
                finding = Finding("JS-20", "warning", "silent", path=child_path, value=key[:40])
                document.findings.append(document.placed(finding, start, end))
            seen.add(key)
            if child.members or child.items:
                todo.append((child, child_path))
        for index, item in enumerate(node.items or ()):
            if item.members or item.items:
                todo.append((item, f"{path}/{index}" if len(path) < MAX_PATH_CHARS else path))
