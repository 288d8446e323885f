"""Single tokens people write by mistake: what each is, and the JSON token meant by it.

Pure text in, tokens out; where a token may stand is the business of ``recovery.py``.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator

from lark import Token

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Code, Edit
from mindie_kvpool_plugin.check.text.paste import whole_line
from mindie_kvpool_plugin.check.text.strings import checked, open_string, part
from mindie_kvpool_plugin.check.text.tell import Tell

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false", "NULL": "null"}
_NO_JSON = {"NaN", "nan", "Infinity", "inf", "undefined", "nil"}
_WIDE_BRACKETS = {"｛": "{", "｝": "}", "［": "[", "］": "]", "【": "[", "】": "]"}
_TYPES = {"{": "LBRACE", "}": "RBRACE", "[": "LBRACKET", "]": "RBRACKET", ":": "COLON", ",": "COMMA"}
_JSON = {*_TYPES.values(), "STRING", "NUMBER", "LITERAL"}
_DROPPED = {
    "COMMENT": (codes.COMMENT, ""),
    "ELLIPSIS": (codes.ELLIPSIS, ""),
    "ODD_BLANK": (codes.ODD_BLANK, ""),
    "NUL": (codes.ODD_BLANK, "nul"),
    "BULLET": (codes.MISPLACED, "bullet"),
}
# no number of a configuration has more
MAX_NUMBER_CHARS = 20


def repaired_tokens(stream: Iterator[Token], text: str, report: Tell, limit: int) -> Iterator[Token]:
    """JSON tokens only: mistaken ones are reported and replaced, or dropped.

    Ends with a STOP token when ``limit`` tokens were read.
    """
    for number, token in enumerate(stream):
        if number >= limit:
            yield Token("STOP", "")
            return
        if token.type == "OPEN_STRING":
            yield from open_string(token, text, report)
        elif token.type == "HALF_KEY":
            yield from _half_key(token, report)
        else:
            meant = _meant(token, text, report)
            if meant is not None:
                yield checked(meant, report)


def _meant(token: Token, text: str, report: Tell) -> Token | None:  # noqa: PLR0911
    kind, raw, start, end = token.type, str(token), token.start_pos or 0, token.end_pos or 0
    if kind in _JSON:
        return token
    if kind in _DROPPED:
        _report_dropped(token, text, report)
        return None
    if kind in {"WIDE_COLON", "WIDE_COMMA", "WIDE_BRACKET"}:
        meant = {"WIDE_COLON": ":", "WIDE_COMMA": ","}.get(kind) or _WIDE_BRACKETS[raw]
        report(codes.WIDE_PUNCTUATION, start, end, value=raw, meant=meant, edits=(Edit(start, end, meant),))
        return _as(_TYPES[meant], meant, token)
    if kind in {"CURLY_STRING", "MIXED_QUOTES", "SINGLE_STRING"}:
        code = codes.SINGLE_QUOTES if raw[0] in "'＇" and raw[-1] in "'＇" else codes.CURLY_QUOTES
        return _requoted(code, raw[1:-1].replace("\\'", "'").replace('"', '\\"'), token, report)
    if kind == "INNER_QUOTES":
        return _requoted(codes.INNER_QUOTES, json.dumps(raw[1:-1].replace('\\"', '"'), ensure_ascii=False)[1:-1],
                         token, report)  # fmt: skip
    if kind == "QUOTED_TWICE":
        return _requoted(codes.INNER_QUOTES, raw[2:-2], token, report, variant="twice")
    if kind == "HALF_STRING":
        edit = Edit(start, start, '"')
        report(codes.BROKEN_STRING, start, end, value=raw[:40], variant="begin", edits=(edit,))
        return _as("STRING", '"' + raw, token)
    if kind in {"WIDE_NUMBER", "BAD_NUMBER"}:
        return _number(token, report)
    if kind == "WORD":
        return _word(token, text, report)
    report(codes.MISPLACED, start, end, value=_printable(raw))
    return None


def _requoted(code: Code, inner: str, token: Token, report: Tell, variant: str = "") -> Token:
    quoted, start, end = f'"{inner}"', token.start_pos or 0, token.end_pos or 0
    report(code, start, end, value=str(token)[:40], variant=variant, edits=(Edit(start, end, quoted),))
    return _as("STRING", quoted, token)


def _report_dropped(token: Token, text: str, report: Tell) -> None:
    """Tokens that stand for nothing: comments, dots, odd blanks."""
    code, variant = _DROPPED[token.type]
    raw, start, end = str(token), token.start_pos or 0, token.end_pos or 0
    value = " ".join(f"U+{ord(c):04X}" for c in raw[:4]) if code is codes.ODD_BLANK else raw[:40].rstrip()
    if code in {codes.COMMENT, codes.ELLIPSIS}:
        edit = whole_line(text, start, end)
    else:
        edit = Edit(start, end, " " if token.type == "ODD_BLANK" else "")
    is_open = raw.startswith("/*") and not raw.endswith("*/")  # all that follows would go
    report(code, start, end, value=value, variant=variant, edits=() if is_open else (edit,))


def _half_key(token: Token, report: Tell) -> Iterator[Token]:
    """A key without its closing quote, and the colon behind it."""
    raw, start = str(token), token.start_pos or 0
    colon = raw.rindex(":")
    key = raw[:colon].rstrip()
    edit = Edit(start + len(key), start + len(key), '"')
    report(codes.BROKEN_STRING, start, start + len(key), value=key[:40], variant="open", edits=(edit,))
    yield part(token, "STRING", key + '"', 0, len(key))
    yield part(token, "COLON", ":", colon, colon + 1)


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


def _number(token: Token, report: Tell) -> Token:
    """The decimal number meant, where only one can be: ４, +5, 007, 0x10, .5 and 5."""
    raw, start, end = str(token), token.start_pos or 0, token.end_pos or 0
    meant = _decimal(unicodedata.normalize("NFKC", raw)) if len(raw) < MAX_NUMBER_CHARS else ""
    edits = (Edit(start, end, meant),) if meant else ()
    variant = "meant" if meant else ""
    report(codes.BAD_NUMBER, start, end, value=raw[:40], meant=meant, variant=variant, edits=edits)
    return _as("NUMBER", meant or "0", token)


def _decimal(raw: str) -> str:
    if re.fullmatch(r"\+?0*\d+", raw):
        return str(int(raw))
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", raw):
        return str(int(raw, 16))
    if re.fullmatch(r"[+-]?\.\d+", raw):
        return raw.replace("+", "").replace(".", "0.")
    if re.fullmatch(r"\d+\.", raw):
        return raw[:-1]
    return raw if re.fullmatch(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", raw) else ""


def _as(kind: str, text: str, token: Token) -> Token:
    return Token.new_borrow_pos(kind, text, token)


def _printable(raw: str) -> str:
    return raw if raw.isprintable() else " ".join(f"U+{ord(c):04X}" for c in raw[:8])
