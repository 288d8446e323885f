"""What came along when a configuration was copied: line numbers, fences, sentences, both sides of a merge.

Each is found before anything is lexed, told as one finding, and blanked, so that all offsets stay.
"""

from __future__ import annotations

import itertools
import re

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Edit, Finding

Span = tuple[int, int]
Found = tuple[Finding, int, int]

# a number at the start of a line that no comma follows
_LINE_START_NUMBER = re.compile(r"^[ \t]*([0-9]{1,5})(?=[ \t\r]|$|[\"{}\[\]])", re.MULTILINE)
# two may be data
MIN_GUTTER_LINES = 3
# and so may a column of numbers inside the file: a margin has one on nearly every line
MIN_GUTTER_SHARE = 0.8
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*\w*[ \t]*\r?$", re.MULTILINE)
_MARKER = re.compile(r"^(?:<{7}|\|{7}|={7}|>{7})(?: [^\n]*)?\r?$", re.MULTILINE)
_NO_WORDS = r"{}\[\]\"'“”‘’＂"
_SENTENCE = re.compile(rf"(?=[^\n]*[^\W\d_]{{2}})[^\s{_NO_WORDS}\d/#.…•<][^{_NO_WORDS}]*(?=^[ \t]*\{{)", re.MULTILINE)


def cleaned(text: str) -> tuple[str, list[Found]]:
    """``text`` with blanks where something came along, and what that was."""
    found: list[Found] = []
    for look in (_merge, _fences, _sentences, _gutter):
        spans, finding = look(text)
        if finding is not None:
            found.append((finding, *spans[0]))
            text = blanked(text, spans)
    return text, found


def blanked(text: str, spans: list[Span]) -> str:
    """``text`` with blanks at ``spans``; line ends stay."""
    parts, done = [], 0
    for start, end in spans:
        parts += [text[done:start], re.sub(r"[^\r\n]", " ", text[start:end])]
        done = end
    return "".join([*parts, text[done:]])


def whole_line(text: str, start: int, end: int) -> Edit:
    """Remove a piece, and its line too when nothing else stands there."""
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    if not text[begin:start].strip() and not text[end:stop].strip() and stop < len(text):
        return Edit(begin, stop + 1, "")
    while start > begin and text[start - 1] in " \t":
        start -= 1
    return Edit(start, end, "")


def _gutter(text: str) -> tuple[list[Span], Finding | None]:
    """The line numbers a web page printed in its margin: 1, 2, 3 ... at the start of lines, or above the text."""
    spans, expected = list[Span](), None
    for match in _LINE_START_NUMBER.finditer(text):
        number = int(match[1])
        if expected is None and number not in {0, 1}:
            continue
        if expected is None or number == expected:
            spans.append(match.span(1))
            expected = number + 1
    if len(spans) < MIN_GUTTER_LINES or not (_is_above(text, spans) or _is_beside(text, spans)):
        return [], None
    first, last = text[slice(*spans[0])], text[slice(*spans[-1])]
    edits = tuple(whole_line(text, *span) for span in spans)
    return spans, codes.LINE_NUMBER.found(
        value=first, params={"first": first, "last": last}, variant="gutter", edits=edits
    )


def _is_above(text: str, spans: list[Span]) -> bool:
    return not re.sub(r"[\d\s]", "", text[: spans[-1][1]])


def _is_beside(text: str, spans: list[Span]) -> bool:
    lines = [line for line in text.split("\n") if line.strip()]
    return not text[: spans[0][0]].strip() and len(spans) >= MIN_GUTTER_SHARE * len(lines)


def _merge(text: str) -> tuple[list[Span], Finding | None]:
    """Both sides of a merge that was not finished: which one counts is for the user to say; the first is read."""
    markers = list(_MARKER.finditer(text))
    kinds = [match.group()[0] for match in markers]
    if "<" not in kinds or not {"=", ">"} & set(kinds):
        return [], None
    spans = [match.span() for match in markers if match.group()[0] == "<"]
    for opener, closer in itertools.pairwise(markers):
        if opener.group()[0] in "|=" or closer.group()[0] == ">":
            spans.append((opener.start(), closer.end()))
    lines = ", ".join(str(text.count("\n", 0, match.start()) + 1) for match in markers[:12])
    return _joined(spans), codes.MERGE_CONFLICT.found(value=markers[0].group()[:40].strip(), params={"lines": lines})


def _joined(spans: list[Span]) -> list[Span]:
    """Spans in order, those that overlap made one."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _fences(text: str) -> tuple[list[Span], Finding | None]:
    """A block of a document with its fences, and the text around it."""
    marks = [match.span() for match in _FENCE.finditer(text)]
    if not marks:
        return [], None
    edges = [0, *(edge for mark in marks for edge in mark), len(text)]
    parts = list(zip(edges[::2], edges[1::2], strict=True))
    block = max(parts, key=lambda part: (text[slice(*part)].count("{") > 0, part[1] - part[0]))
    around = [span for span in ((0, block[0]), (block[1], len(text))) if text[slice(*span)].strip()]
    has_more = any(mark in text[slice(*span)] for span in around for mark in '{["')
    edits = () if has_more else tuple(_trimmed(text, *span) for span in around)
    fence = text[slice(*marks[0])].strip()
    return around or marks, codes.PASTED_AROUND.found(value=fence, variant="fence", edits=edits)


def _sentences(text: str) -> tuple[list[Span], Finding | None]:
    """Words in front of the first line that begins with a brace."""
    match = _SENTENCE.match(text, len(text) - len(text.lstrip()))
    if match is None:
        return [], None
    edit = Edit(match.start(), match.end(), "")
    return [match.span()], codes.PASTED_AROUND.found(value=match.group().strip()[:40], edits=(edit,))


def _trimmed(text: str, start: int, end: int) -> Edit:
    """Remove a part with the line end between it and what stays."""
    if start == 0:
        while end < len(text) and text[end] in "\r\n":
            end += 1
        return Edit(start, end, "")
    return Edit(start, end, "\n" if not text[:start].endswith("\n") else "")
