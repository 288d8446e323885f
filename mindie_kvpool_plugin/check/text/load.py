"""From bytes to a document: the host's JSON dialect, with a position for everything.

A valid file is read by the standard library's parser, at C speed.  Only a file it refuses, or
one too deep for it, goes through the tolerant parser of ``recovery.py``.  Positions come from the
same grammar and are made when the first finding asks for one.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from typing import Any, NoReturn

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Edit, Finding, pointer
from mindie_kvpool_plugin.check.text.document import Document

# the host's limit, bytes
MAX_BYTES = 10 * 1024 * 1024
# above this size duplicate keys are not looked for: one Python call per object would take seconds
MAX_WATCHED_CHARS = 1024 * 1024
# the tolerant parser is pure Python and names causes for people: a file larger than this has one cause
MAX_TOLERANT_CHARS = 1024 * 1024
# in a longer beginning with a larger share of control characters nobody typed the text
_EXAMINED_BYTES = 4096
MAX_CONTROLS = 8
MAX_CONTROL_SHARE = 0.02
_CONTROLS = bytes(range(9)) + bytes(range(14, 32)) + b"\x7f"
# so many repairable mistakes of a kind are told one by one, more as one
MAX_ALIKE = 3
_BLANKS = " \t\r\n"
# longer pointers are cut: nesting of thousands of levels would make them quadratic
MAX_PATH_CHARS = 1000
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# what the standard parser accepts and the host does not
_SUSPECT = re.compile(r"\\u[dD][89a-fA-F]|[0-9]{309}")
_EXPONENT = re.compile(r"[eE]\+?[0-9]{2,}")
# deeper texts are left to the tolerant parser, which counts levels: where Python's own gives up depends on its version
MAX_STANDARD_DEPTH = 900
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def load_bytes(data: bytes, name: str, *, bom_is_error: bool = False, size: int = 0) -> Document:
    """Decode and parse.  Never raises, whatever the bytes; ``size`` is the file's, if more than was read."""
    if not data:
        return Document(name, "", findings=[codes.EMPTY_FILE.found(line=1, column=1)])
    if len(data) > MAX_BYTES:
        finding = codes.FILE_TOO_LARGE.found(
            params={"size": max(size, len(data)), "limit": MAX_BYTES}, line=1, column=1
        )
        return Document(name, "", findings=[finding])
    if _is_binary(data):
        return Document(name, "", findings=[codes.NOT_TEXT.found(line=1, column=1)])
    document = _decoded(data, name, bom_is_error=bom_is_error)
    _parse(document)
    return document


def _is_binary(data: bytes) -> bool:
    """Whether the beginning holds more control characters than a few slips of an editor leave."""
    head = data[:_EXAMINED_BYTES]
    controls = len(head) - len(head.translate(None, _CONTROLS))
    return not head.startswith(_UTF16) and controls > max(MAX_CONTROLS, MAX_CONTROL_SHARE * len(head))


def _decoded(data: bytes, name: str, *, bom_is_error: bool) -> Document:
    if data.startswith(_UTF16):
        document = Document(name, data.decode("utf-16", "replace"))
        edit = Edit(0, 0, "")  # rewriting the file as UTF-8 is the repair
        document.findings.append(codes.UTF16.found(line=1, column=1, edits=(edit,)))
        return document
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", "replace")
        document = Document(name, text)
        before = data[: error.start].decode("utf-8", "replace")
        shown_bytes = " ".join(f"{byte:02X}" for byte in data[error.start : min(error.end, error.start + 4)])
        finding = codes.NOT_UTF8.found(value=shown_bytes, params={"offset": error.start})
        document.findings.append(document.placed(finding, len(before), len(before) + 1))
    else:
        document = Document(name, text)
    if document.text.startswith("\ufeff"):
        found = codes.BYTE_ORDER_MARK.found(line=1, column=1, edits=(Edit(-1, 0, ""),))
        document.findings.append(replace(found, severity="error", outcome="late") if bom_is_error else found)
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
        if _SUSPECT.search(text) or _is_deep(text):
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


def _is_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_STANDARD_DEPTH:
        return False
    brackets = _BRACKET.findall(_STRING.sub("", text))
    return max(accumulate(1 if each in "[{" else -1 for each in brackets), default=0) > MAX_STANDARD_DEPTH


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
        edits = (Edit(document.end, len(document.text), "\n"),) if not rest.strip("]}, \t\r\n\0") else ()
        finding = codes.TEXT_BEHIND.found(value=rest[:40], edits=edits)
        document.findings.append(document.placed(finding, start, start + len(rest.split("\n", 1)[0])))


def _parse_tolerantly(document: Document, refusal: Exception | None) -> None:
    from mindie_kvpool_plugin.check.text.recovery import parse_broken  # noqa: PLC0415  # its import costs 50 ms

    parsed = parse_broken(document.text[:MAX_TOLERANT_CHARS], is_whole=len(document.text) <= MAX_TOLERANT_CHARS)
    document.tree = parsed.root
    document.is_parsed = True
    document.value = parsed.root.value if parsed.root is not None else None
    document.is_valid = parsed.complete and not parsed.findings and document.value is not None
    document.end = len(document.text)
    document.findings += _without_repeats([document.placed(found, a, b) for found, a, b in parsed.findings])
    if not parsed.findings and not document.is_valid:
        document.findings.append(_unexplained(document, refusal))
    if parsed.root is not None:
        _report_duplicates(document)


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    """A slip of the same kind all over the file is one finding: the first, with the repairs of all."""
    kinds: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        kinds.setdefault(_kind_of(finding), []).append(finding)
    told = []
    for finding in findings:
        alike = kinds[_kind_of(finding)]
        if len(alike) <= (1 if finding.kind is codes.ELLIPSIS else MAX_ALIKE) or finding.kind in _ONE_BY_ONE:
            told.append(finding)
        elif finding is alike[0]:
            edits = tuple(edit for each in alike for edit in each.edits)
            told.append(replace(finding, edits=edits, alike=len(alike) - 1))
    return told


def _kind_of(finding: Finding) -> tuple[str, str]:
    return finding.message_id, "" if finding.edits else str(finding.value)


_ONE_BY_ONE = (codes.NOT_CLOSED, codes.WRONG_BRACKET)


def _unexplained(document: Document, refusal: Exception | None) -> Finding:
    """The file is larger than the tolerant parser reads, and up to there it is good."""
    if isinstance(refusal, json.JSONDecodeError):
        position = min(refusal.pos, len(document.text))
        return document.placed(codes.NOT_JSON.found(), position, position + 1)
    return codes.NOT_EXAMINED.found(line=1, column=1)


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
                finding = codes.DUPLICATE_KEY.found(child_path, value=key[:40])
                document.findings.append(document.placed(finding, start, end))
            seen.add(key)
            if child.members or child.items:
                todo.append((child, child_path))
        for index, item in enumerate(node.items or ()):
            if item.members or item.items:
                todo.append((item, f"{path}/{index}" if len(path) < MAX_PATH_CHARS else path))
