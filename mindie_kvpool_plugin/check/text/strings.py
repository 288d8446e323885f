"""Strings: what may be wrong inside one, and what is meant by one that lost a quote.

Pure text in; the repaired token goes on to the parser, so that the tree holds what ``--fix`` will write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from lark import Token

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Edit
from mindie_kvpool_plugin.check.text.tell import Tell

# a double holds at least so many digits without becoming infinite
MAX_PLAIN_DIGITS = 300
_GOOD_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})')
_INSIDE = re.compile(r"(?P<control>[\x00-\x1f])|\\(?:u[0-9A-Fa-f]{4}|.)|\\")
# TAB is written as an escape; NUL is in a file by accident and goes; others are for the user to judge
_CONTROLS = {"\t": "\\t", "\0": ""}
# "key: 1025,  "key: [[0, 1]],  a key whose closing quote is missing, with what follows it on its line
_KEY_NOT_CLOSED = re.compile(r'"([A-Za-z_$][\w.-]*)[ \t]*:[ \t]*(?:-?[0-9]+|true|false|null|[\[\]{}, \t])*$')
_VALUE = re.compile(
    r"(?P<NUMBER>-?[0-9]+)|(?P<LITERAL>true|false|null)|(?P<COMMA>,)"
    r"|(?P<LBRACE>\{)|(?P<RBRACE>\})|(?P<LBRACKET>\[)|(?P<RBRACKET>\])"
)
_OPENER = {"]": "[", "}": "{"}
# what may stand behind a string that lost its closing quote at the end of its line
_TAIL = re.compile(r"[\]}]*[ \t,]*$")


def checked(token: Token, report: Tell) -> Token:
    """A token that is lexed as JSON, without what may still be wrong inside: control characters, escapes, overflow."""
    raw, start = str(token), token.start_pos or 0
    if token.type == "NUMBER":
        if ("e" in raw or "E" in raw or len(raw) > MAX_PLAIN_DIGITS) and _overflows(raw):
            report(codes.HUGE_NUMBER, start, token.end_pos or start, value=raw[:40])
        return token
    if token.type != "STRING" or (raw.isprintable() and "\\" not in raw):
        return token
    parts, done = [], 0
    for edit in _inner_edits(raw, start, report):
        parts += [raw[done : edit.start - start], edit.text]
        done = edit.end - start
    for match in re.finditer(r"(?:\\u[dD][0-9A-Fa-f]{3})+", raw):
        if not _pairs(match.group()):
            report(codes.HALF_A_PAIR, start + match.start(), start + match.end(), value=match.group()[:24])
    return token if not parts else Token.new_borrow_pos("STRING", "".join([*parts, raw[done:]]), token)


def _inner_edits(raw: str, start: int, report: Tell) -> Iterator[Edit]:
    for match in _INSIDE.finditer(raw):
        text, at, end = match.group(), start + match.start(), start + match.end()
        if match["control"]:
            fix = _CONTROLS.get(text)
            edits = (Edit(at, end, fix),) if fix is not None else ()
            variant = "nul" if text == "\0" else ""
            report(codes.BROKEN_STRING, at, end, value=f"U+{ord(text):04X}", edits=edits, variant=variant)
            yield from edits
        elif not _GOOD_ESCAPE.fullmatch(text):
            edit = Edit(at, end, "'" if text == "\\'" else "\\" + text)
            report(codes.BAD_ESCAPE, at, at + 2, value=text, edits=(edit,))
            yield edit


def open_string(token: Token, text: str, report: Tell) -> Iterator[Token]:
    """A string without its closing quote on this line, and the comma that ends it.

    The quote is put where it belongs if that is certain: behind a key, or at the end of the line.
    """
    raw, start, end = str(token), token.start_pos or 0, token.end_pos or 0
    key = _KEY_NOT_CLOSED.match(raw)
    if key is not None:
        yield from _open_key(token, key, report)
        return
    before = text[text.rfind("\n", 0, start) + 1 : start]
    body = raw[: _body_end(raw, before)]
    is_value = len(body) > 1 or before.rstrip().endswith(":")
    edits = (Edit(start + len(body), start + len(body), '"'),) if is_value and _is_one_value(body) else ()
    report(codes.BROKEN_STRING, start, end, value=raw[:40], variant="open" if is_value else "stray", edits=edits)
    if is_value:
        yield part(token, "STRING", body + '"' if edits else json.dumps(body[1:], ensure_ascii=False), 0, len(body))
    for match in _VALUE.finditer(raw, len(body)):
        yield part(token, match.lastgroup or "", match.group(), match.start(), match.end())


def _body_end(raw: str, before: str) -> int:
    """Where the text ends: before a comma, and before brackets that close what was opened on the same line."""
    match = _TAIL.search(raw, 1)
    tail = match.group() if match is not None else ""
    closes = all(before.count(_OPENER[each]) - before.count(each) == tail.count(each) for each in set(tail) & set("]}"))
    is_whole = raw.count("{") == raw.count("}") and raw.count("[") == raw.count("]")
    return len(raw) - len(tail) if closes and not is_whole else len(raw.rstrip(" \t,"))


def _open_key(token: Token, key: re.Match[str], report: Tell) -> Iterator[Token]:
    raw, at = str(token), (token.start_pos or 0) + key.end(1)
    edit = Edit(at, at, '"')
    report(codes.BROKEN_STRING, token.start_pos or 0, at, value=key[0][: key.end(1)], variant="open", edits=(edit,))
    colon = raw.index(":", key.end(1))
    yield part(token, "STRING", f'"{key[1]}"', 0, key.end(1))
    yield part(token, "COLON", ":", colon, colon + 1)
    for match in _VALUE.finditer(raw, colon + 1):
        yield part(token, match.lastgroup or "", match.group(), match.start(), match.end())


def part(token: Token, kind: str, text: str, start: int, end: int) -> Token:
    """A token of its own for a piece of ``token``, from ``start`` to ``end`` of its text."""
    at = token.start_pos or 0
    column = (token.column or 1) + start
    return Token(kind, text, start_pos=at + start, end_pos=at + end, line=token.line, column=column)


def _is_one_value(body: str) -> bool:
    """Whether the rest of a line, from its quote on, is one text, so that the quote is missing at its end."""
    is_balanced = body.count("{") == body.count("}") and body.count("[") == body.count("]")
    is_whole_escape = not (len(body) - len(body.rstrip("\\"))) % 2
    has_key = re.search(r"[,:] *\w+ *:", body.replace('\\"', ""))
    return is_whole_escape and (is_balanced or body[-1] not in "}]") and has_key is None


def _pairs(escapes: str) -> bool:
    units = [int(unit, 16) for unit in re.findall(r"\\u(.{4})", escapes)]
    text = b"".join(unit.to_bytes(2, "big") for unit in units)
    try:
        text.decode("utf-16-be")
    except UnicodeDecodeError:
        return False
    return True


def _overflows(raw: str) -> bool:
    try:
        return abs(float(raw)) == float("inf")
    except ValueError:
        return True
