"""Single tokens people write by mistake: what each is, and the JSON token meant by it.

Pure text in, tokens out; where a token may stand is the business of ``recovery.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Protocol

from lark import Token

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Code, Edit

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false", "NULL": "null"}
_NO_JSON = {"NaN", "nan", "Infinity", "inf", "undefined", "nil"}
_WIDE_BRACKETS = {"｛": "{", "｝": "}", "［": "[", "］": "]", "【": "[", "】": "]"}
_BRACKET_TYPES = {"{": "LBRACE", "}": "RBRACE", "[": "LBRACKET", "]": "RBRACKET"}
# a double holds at least so many digits without becoming infinite
MAX_PLAIN_DIGITS = 300
# a number at the start of a line that no comma follows
_LINE_START_NUMBER = re.compile(r"^[ \t]*([0-9]{1,5})(?=[ \t\r]|$|[\"{}\[\]])", re.MULTILINE)
# two may be data
MIN_GUTTER_LINES = 3
_GOOD_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})')


class Tell(Protocol):
    """How a mistake is told: code, offsets, and what the message needs."""

    def __call__(  # noqa: D102
        self,
        code: Code,
        start: int,
        end: int,
        *,
        edits: tuple[Edit, ...] = (),
        variant: str = "",
        value: Any = None,
        **params: Any,
    ) -> None: ...


def repaired_tokens(stream: Iterator[Token], text: str, report: Tell, limit: int) -> Iterator[Token]:
    """JSON tokens only: mistaken ones are reported and replaced, or dropped.

    Ends with a STOP token when ``limit`` tokens were read.
    """
    for number, token in enumerate(stream):
        if number >= limit:
            yield Token("STOP", "")
            return
        meant = _meant(token, text, report)
        if meant is not None:
            yield meant


def gutter_numbers(text: str) -> list[tuple[int, int]]:
    """Offsets of the line numbers a web page printed in its margin: 1, 2, 3 ... at the start of lines."""
    spans, expected = [], None
    for match in _LINE_START_NUMBER.finditer(text):
        number = int(match[1])
        if expected is None and number not in {0, 1}:
            continue
        if expected is None or number == expected:
            spans.append(match.span(1))
            expected = number + 1
    return spans if len(spans) >= MIN_GUTTER_LINES else []


def blanked(text: str, spans: list[tuple[int, int]]) -> str:
    """``text`` with blanks at ``spans``, so that all other offsets stay."""
    parts, done = [], 0
    for start, end in spans:
        parts += [text[done:start], " " * (end - start)]
        done = end
    return "".join([*parts, text[done:]])


def gutter_edit(text: str, start: int, end: int) -> Edit:
    """Remove a line number, and its line when nothing else stands there."""
    return _whole(start, end, text)


def _meant(token: Token, text: str, report: Tell) -> Token | None:  # noqa: PLR0911
    kind, raw, start, end = token.type, str(token), token.start_pos or 0, token.end_pos or 0
    if kind in {"LBRACE", "RBRACE", "LBRACKET", "RBRACKET", "COLON", "COMMA", "STRING", "NUMBER", "LITERAL"}:
        return token
    if kind == "WIDE_COLON":
        report(codes.WIDE_PUNCTUATION, start, end, value=raw, meant=":", edits=(Edit(start, end, ":"),))
        return _as("COLON", ":", token)
    if kind == "WIDE_COMMA":
        report(codes.WIDE_PUNCTUATION, start, end, value=raw, meant=",", edits=(Edit(start, end, ","),))
        return _as("COMMA", ",", token)
    if kind == "WIDE_BRACKET":
        meant = _WIDE_BRACKETS[raw]
        report(codes.WIDE_PUNCTUATION, start, end, value=raw, meant=meant, edits=(Edit(start, end, meant),))
        return _as(_BRACKET_TYPES[meant], meant, token)
    if kind in {"CURLY_STRING", "MIXED_QUOTES", "SINGLE_STRING"}:
        code = codes.SINGLE_QUOTES if raw[0] in "'＇" and raw[-1] in "'＇" else codes.CURLY_QUOTES
        quoted = '"' + raw[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'
        report(code, start, end, value=raw[:40], edits=(Edit(start, end, quoted),))
        return _as("STRING", quoted, token)
    if kind == "INNER_QUOTES":
        quoted = json.dumps(raw[1:-1].replace('\\"', '"'), ensure_ascii=False)
        report(codes.INNER_QUOTES, start, end, value=raw[:40], edits=(Edit(start, end, quoted),))
        return _as("STRING", quoted, token)
    if kind == "COMMENT":
        report(codes.COMMENT, start, end, value=raw[:40], edits=(_whole(start, end, text),))
        return None
    if kind == "ELLIPSIS":
        report(codes.ELLIPSIS, start, end, value=raw[:10], edits=(_whole(start, end, text),))
        return None
    if kind == "ODD_BLANK":
        report(
            codes.ODD_BLANK,
            start,
            end,
            value=" ".join(f"U+{ord(c):04X}" for c in raw[:4]),
            edits=(Edit(start, end, " "),),
        )
        return None
    if kind == "OPEN_STRING":
        return _open_string(token, report)
    if kind == "BAD_NUMBER":
        report(codes.BAD_NUMBER, start, end, value=raw[:40], edits=_number_edit(raw, start, end))
        return _as("NUMBER", "0", token)
    if kind == "WORD":
        return _word(token, text, report)
    report(codes.MISPLACED, start, end, value=_printable(raw))
    return None


def _word(token: Token, text: str, report: Tell) -> Token:
    raw, start, end = str(token), token.start_pos or 0, token.end_pos or 0
    if raw in _PYTHON_WORDS:
        meant = _PYTHON_WORDS[raw]
        report(codes.FOREIGN_WORD, start, end, value=raw, meant=meant, edits=(Edit(start, end, meant),))
        return _as("LITERAL", meant, token)
    if raw in _NO_JSON:
        report(codes.FOREIGN_WORD, start, end, value=raw, variant="none")
        return _as("LITERAL", "null", token)
    is_key = re.match(r"\s*[:：]", text[end : end + 80]) is not None
    quoted = json.dumps(raw, ensure_ascii=False)
    edits = (Edit(start, end, quoted),) if is_key else ()
    report(codes.NO_QUOTES, start, end, value=raw[:40], edits=edits)
    return _as("STRING", quoted, token)


def _open_string(token: Token, report: Tell) -> Token:
    """A string without its closing quote on this line; a comma at the end is taken as the separator."""
    raw, start, end = str(token), token.start_pos or 0, token.end_pos or 0
    report(codes.BROKEN_STRING, start, end, value=raw[:40], variant="open")
    body = raw[1:].rstrip().rstrip("\\").rstrip(",")
    return _as("STRING", json.dumps(body, ensure_ascii=False), token)


def check_token(token: Token, report: Tell) -> None:
    """What a token that is lexed as JSON may still do wrong inside: control characters, escapes, overflow."""
    raw, start = str(token), token.start_pos or 0
    if token.type == "NUMBER":
        if ("e" in raw or "E" in raw or len(raw) > MAX_PLAIN_DIGITS) and _overflows(raw):
            report(codes.HUGE_NUMBER, start, token.end_pos or start, value=raw[:40])
        return
    if token.type != "STRING" or (raw.isprintable() and "\\" not in raw):
        return
    for match in re.finditer(r"[\x00-\x1f]", raw):
        char = match.group()
        fix = {"\t": "\\t"}.get(char)
        edits = (Edit(start + match.start(), start + match.end(), fix),) if fix else ()
        report(codes.BROKEN_STRING, start + match.start(), start + match.end(), value=_printable(char), edits=edits)
    for match in re.finditer(r"\\(?:u[0-9A-Fa-f]{4}|.)", raw):
        if not _GOOD_ESCAPE.fullmatch(match.group()):
            at = start + match.start()
            fix = "'" if match.group() == "\\'" else "\\" + match.group()
            report(codes.BAD_ESCAPE, at, at + 2, value=match.group(), edits=(Edit(at, start + match.end(), fix),))
    for match in re.finditer(r"(?:\\u[dD][0-9A-Fa-f]{3})+", raw):
        if not _pairs(match.group()):
            report(codes.HALF_A_PAIR, start + match.start(), start + match.end(), value=match.group()[:24])


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


def _number_edit(raw: str, start: int, end: int) -> tuple[Edit, ...]:
    """The decimal number meant, where only one can be meant: +5, 007, .5, 5."""
    if re.fullmatch(r"\+?0*\d+", raw):
        return (Edit(start, end, str(int(raw[:4000]))),) if len(raw) < 20 else ()
    if re.fullmatch(r"[+-]?\.\d+", raw):
        return (Edit(start, end, raw.replace("+", "").replace(".", "0.")),)
    if re.fullmatch(r"\d+\.", raw):
        return (Edit(start, end, raw[:-1]),)
    return ()


def _whole(start: int, end: int, text: str) -> Edit:
    """Remove a comment, and its line too when nothing else stands there."""
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    stop = len(text) if stop < 0 else stop
    if not text[begin:start].strip() and not text[end:stop].strip() and stop < len(text):
        return Edit(begin, stop + 1, "")
    while start > begin and text[start - 1] in " \t":
        start -= 1
    return Edit(start, end, "")


def _as(kind: str, text: str, token: Token) -> Token:
    return Token.new_borrow_pos(kind, text, token)


def _printable(raw: str) -> str:
    return raw if raw.isprintable() else " ".join(f"U+{ord(c):04X}" for c in raw[:8])
