"""The JSON grammar, and beside it every token people put there by mistake.

Lark does the lexing and the LALR parsing.  Both keep positions and neither recurses, so neither
nesting nor size can break them.  A second set of terminals (full-width colon, curly quotes,
comments ...) is lexed but belongs to no rule: ``recovery.py`` names and repairs such tokens before
they reach the parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lark import Lark, Token, Transformer

GRAMMAR = r"""
start: _value
_value: object | array | scalar
scalar: STRING | NUMBER | LITERAL
object: LBRACE [pair (COMMA pair)*] RBRACE
pair: STRING COLON _value
array: LBRACKET [_value (COMMA _value)*] RBRACKET

LBRACE: "{"
RBRACE: "}"
LBRACKET: "["
RBRACKET: "]"
COLON: ":"
COMMA: ","
STRING.5: /"[^"\\\r\n]*(?:\\[^\r\n][^"\\\r\n]*)*"/
NUMBER.4: /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.+-])/
LITERAL.4: /(?:true|false|null)(?!\w)/

BLANK: /[ \t\r\n]+/
%ignore BLANK
"""

MISTAKES = r"""
INNER_QUOTES.8: /"\{\s*"[A-Za-z_][^\r\n]{0,600}?\}"(?=\s*(?:[,}\r\n]|$))/
MIXED_QUOTES.7: /"[^"“”\\\r\n]*[“”](?=\s*(?:[:,}\]\r\n]|$))/
QUOTED_TWICE.9: /""[^"\s,:{}\[\]\\][^"\r\n\\]*""(?=[ \t]*(?:[:,}\]\r\n]|$))/
HALF_KEY.8: /"[A-Za-z_$][\w.\-]*[ \t]*:[ \t]*(?=\[[ \t\[]*"|"(?:[^"\\\r\n]|\\[^\r\n])*"[ \t]*(?:[,}\]\r\n]|$))/
HALF_STRING.3: /[\w\/.$][^"\r\n,{}\[\]:\s]*(?::[^"\r\n,{}\[\]:\s]+)*"(?=[ \t]*(?:[:,}\]\r\n]|$))/
OPEN_STRING.1: /"[^"\\\r\n]*(?:\\[^\r\n][^"\\\r\n]*)*\\?/
CURLY_STRING.5: /[“”„‟＂〝″][^“”„‟＂〞″"\r\n]*[“”„‟＂〞″"]/
SINGLE_STRING.5: /['‘’＇](?:[^'‘’＇\\\r\n]|\\[^\r\n]){0,400}['‘’＇]/
COMMENT.6: /\/\/[^\r\n]*|\/\*(?:[^*]|\*(?!\/))*(?:\*\/)?|\#[^\r\n]*/
ELLIPSIS.6: /\.{3,}|…+/
WIDE_COLON: /[：﹕︓=]>?/
WIDE_COMMA: /[，、；﹐;]/
WIDE_BRACKET: /[｛｝［］【】]/
ODD_BLANK: /[\u00a0\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f\u2060\u3000\ufeff\u0085\v\f]+/
NUL: /\x00+/
BULLET: /[•●▪◦‣⁃■□○◆◇►▶][ \t]*/
WIDE_NUMBER.5: /[+\-－＋]?[0-9０-９.．]*[０-９][0-9０-９.．]*/
BAD_NUMBER.2: /[+-]?\.?[0-9][\w.]*(?:(?<=[eE])[+-][\w.]*)?/
WORD.2: /[^\W\d](?:[\w.\-\/$\\]|:\/\/)*/
OTHER.-9: /[\s\S]/
"""

_EXTRA = (
    "INNER_QUOTES",
    "QUOTED_TWICE",
    "HALF_KEY",
    "HALF_STRING",
    "MIXED_QUOTES",
    "OPEN_STRING",
    "CURLY_STRING",
    "SINGLE_STRING",
    "COMMENT",
    "ELLIPSIS",
    "WIDE_COLON",
    "WIDE_COMMA",
    "WIDE_BRACKET",
    "ODD_BLANK",
    "NUL",
    "BULLET",
    "WIDE_NUMBER",
    "BAD_NUMBER",
    "WORD",
    "OTHER",
)


@dataclass(slots=True, eq=False)
class Node:
    """A value with its place in the text.

    Attributes:
        value: plain Python value, children included.
        start, end: offsets of the value.
        members: for an object: (key, key's start, key's end, value node), duplicates included.
        items: for an array: value nodes.
    """

    value: Any
    start: int
    end: int
    members: list[tuple[str, int, int, Node]] | None = None
    items: list[Node] | None = None

    def child(self, part: str) -> Node | None:
        """The member or item that ``part`` of a JSON Pointer names; the last of duplicates, as the host does."""
        if self.members is not None:
            return next((node for key, _, _, node in reversed(self.members) if key == part), None)
        if self.items is not None and part.isdecimal() and len(part) < 10 and int(part) < len(self.items):
            return self.items[int(part)]
        return None


class _Nodes(Transformer[Token, Node]):
    """Builds nodes while the parser reduces, bottom up: no recursion over the finished tree."""

    def start(self, children: list[Node]) -> Node:
        return children[0]

    def scalar(self, children: list[Token]) -> Node:
        token = children[0]
        return Node(scalar_value(token), token.start_pos or 0, token.end_pos or 0)

    def pair(self, children: list[Any]) -> tuple[str, int, int, Node]:
        key, _, value = children
        return str(scalar_value(key)), key.start_pos or 0, key.end_pos or 0, value

    def object(self, children: list[Any]) -> Node:
        members = [child for child in children if isinstance(child, tuple)]
        value = {key: node.value for key, _, _, node in members}
        return Node(value, children[0].start_pos, children[-1].end_pos, members=members)

    def array(self, children: list[Any]) -> Node:
        items = [child for child in children if isinstance(child, Node)]
        return Node([node.value for node in items], children[0].start_pos, children[-1].end_pos, items=items)


class _Postlex:
    """Keeps terminals that no rule mentions."""

    always_accept = _EXTRA

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        return stream


@lru_cache(maxsize=2)
def parser(*, tolerant: bool) -> Lark:
    """The strict parser, for positions in a valid file, or the tolerant one, for naming mistakes.

    Built on first use: a valid file without findings needs neither.
    """
    return Lark(
        GRAMMAR + (MISTAKES if tolerant else ""),
        parser="lalr",
        lexer="basic",
        transformer=_Nodes(),
        postlex=_Postlex() if tolerant else None,
        maybe_placeholders=False,
    )


def scalar_value(token: Token) -> Any:
    """The Python value of a STRING, NUMBER or LITERAL token, as forgiving as possible."""
    text = str(token)
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        # half an escape, or an integer of thousands of digits
        value = text[1:-1] if text.startswith('"') else float("inf")
    # half of a surrogate pair can neither be printed nor hashed into a schema
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else value
