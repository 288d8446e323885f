"""A file's text, its value, and where everything in it is."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from mindie_kvpool_plugin.check.findings import Edit, Finding

# shown around a finding, characters
_EXCERPT = 160
# a character inside a string as it is written: itself, or an escape (a pair of them beyond the first plane)
_CHARACTER = re.compile(
    r"\\u[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.|.", re.DOTALL
)


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
        end: where the root value ends.
        tree: the nodes with their places, once somebody asked.
        is_parsed: the tree was asked for; it may still be None.
    """

    name: str
    text: str
    value: Any = None
    findings: list[Finding] = field(default_factory=list)
    is_valid: bool = False
    shift: int = 0
    end: int = 0
    tree: Any = None
    is_parsed: bool = False

    def root(self) -> Any:
        """The tree with positions; None when the file is too large for one."""
        if self.tree is None and not self.is_parsed and self.is_valid:
            self.is_parsed = True
            from mindie_kvpool_plugin.check.text.recovery import parse_valid  # noqa: PLC0415  # its import costs 50 ms

            self.tree = parse_valid(self.text[: self.end])
        return self.tree

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

    def inner_span(self, path: str, inner: tuple[int, int]) -> tuple[int, int] | None:
        """Offsets of a part of the text at a JSON Pointer; escapes count as the characters they stand for."""
        node = self.node(path)
        if node is None or self.text[node.start : node.start + 1] != '"':
            return None
        pieces = list(_CHARACTER.finditer(self.text, node.start + 1, max(node.end - 1, node.start + 1)))
        start, end = (min(offset, len(pieces)) for offset in inner)
        if not pieces:
            return None
        first = pieces[min(start, len(pieces) - 1)].start()
        return first, max(pieces[max(end - 1, 0)].end(), first + 1)

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
        span = self.inner_span(finding.path, finding.inner) if finding.inner is not None else None
        span = span or self.span(finding.path, of_key=finding.kind.at_key)
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
