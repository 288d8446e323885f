"""Every syntax error of a file in one run: named, placed, and repaired so that reading can go on.

The tokens come from lark's lexer and go to lark's LALR parser one at a time.  Before a token is
handed over, this file looks at what the parser can take; a token that does not fit is a finding
with a cause, and the smallest repair lets the parser continue.  The repairs are also what
``--fix`` applies, so what was reported is what is repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

from lark import Token
from lark.exceptions import LarkError

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Code, Edit, Finding
from mindie_kvpool_plugin.check.text import paste
from mindie_kvpool_plugin.check.text.brackets import CLOSER, TEXT, Brackets, Opened
from mindie_kvpool_plugin.check.text.grammar import Node, parser
from mindie_kvpool_plugin.check.text.tokens import repaired_tokens

# about half a second of pure-Python parsing; a service config has some 600 tokens
MAX_TOKENS = 60_000
# after so many errors the file is no JSON at all and more lines help nobody
MAX_ERRORS = 60
# the host's own parser recurses and dies without a message somewhere above this depth
MAX_DEPTH = 8_000

_ABOUT_BRACKETS = (codes.NOT_CLOSED, codes.WRONG_BRACKET, codes.TEXT_BEHIND)
_VALUES = frozenset({"STRING", "NUMBER", "LITERAL", "LBRACE", "LBRACKET"})


@dataclass(slots=True)
class Parsed:
    """What a text turned out to be.

    Attributes:
        root: the tree, of the repaired text if there were errors; None when nothing could be made of it.
        findings: syntax errors, without line and column: ``load.py`` adds those.
        spans: offsets of each finding.
        complete: False when the budget of tokens or errors ended the reading early.
    """

    root: Node | None
    findings: list[tuple[Finding, int, int]] = field(default_factory=list)
    complete: bool = True


class _StopReadingError(Exception):
    """Reading ends here; the reason is already a finding."""


def parse_valid(text: str) -> Node | None:
    """The tree of a text known to be valid JSON; None beyond the token budget."""
    if text.count(",") + text.count(":") > MAX_TOKENS:
        return None
    lark = parser(tolerant=False)
    steps = lark.parse_interactive("")
    try:
        for number, token in enumerate(lark.lex(text)):
            if number > MAX_TOKENS:
                return None
            steps.feed_token(token)
        return cast(Node, steps.feed_eof())
    except LarkError:
        return None


def parse_broken(text: str, *, is_whole: bool = True) -> Parsed:
    """The tree of a text that is not valid JSON, with everything that had to be repaired.

    Where brackets do not match, the indentation is asked, and the reading with fewer errors is taken.

    Args:
        text: the file, or as much of it as is worth examining.
        is_whole: False when more follows: what is open at the end is then no fault.
    """
    blanked, pasted = paste.cleaned(text)
    found = _Recovery(blanked, by_indent=False).run(is_whole=is_whole)
    if any(finding.kind in _ABOUT_BRACKETS for finding, _, _ in found.findings):
        by_indent = _Recovery(blanked, by_indent=True).run(is_whole=is_whole)
        if by_indent.complete and len(by_indent.findings) <= len(found.findings):
            found = by_indent
    found.findings[:0] = pasted
    return found


class _Recovery:
    """One pass over the tokens.

    State: the parser's own stack, the brackets that are open (with the text before them, to name
    them), the last token handed over, and a comma held back until what follows it is known.
    """

    def __init__(self, text: str, *, by_indent: bool) -> None:
        self.text = text
        self.by_indent = by_indent
        self.found = Parsed(root=None)
        lark = parser(tolerant=True)
        self.stream: Iterator[Token] = lark.lex(text)
        self.steps = lark.parse_interactive("")
        self.brackets = Brackets(text)
        self.last: Token | None = None
        self.last_key = ""
        self.comma: Token | None = None
        self.done = False
        self.doubtful: set[int] = set()
        self.num_counted = 0

    @property
    def open(self) -> list[Opened]:
        return self.brackets.open

    def run(self, *, is_whole: bool) -> Parsed:
        """Feed everything, close what is open."""
        try:
            for token in repaired_tokens(self.stream, self.text, self._report, MAX_TOKENS):
                if token.type == "STOP":
                    self.found.complete = False
                    break
                if self.done:
                    self._report(codes.TEXT_BEHIND, token.start_pos or 0, len(self.text), value=str(token)[:40])
                    break
                self._feed(token)
            if is_whole and self.found.complete:
                self._close_all()
        except (_StopReadingError, LarkError):
            self.found.complete = False
        return self.found

    # -- one token ---------------------------------------------------------------------------

    def _feed(self, token: Token) -> None:
        kind = token.type
        if self.last is None and not self.open and kind != "LBRACE":
            self._before_root(token)
            return
        if kind == "COMMA" and self.comma is None and self._can("COMMA"):
            self.comma = token
            return
        if kind == "STRING" and self._colon_follows(token):
            self._before_key(token)
        elif self.by_indent and kind in {"RBRACE", "RBRACKET"}:
            self._close_left_open(self.brackets.left_open_before_closer(token), token)
        if self.comma is not None and not self._settle_comma(token):
            return
        for _ in range(6):  # each round repairs one thing in front of the token
            if self._can(kind):
                self._hand_over(token)
                return
            if not self._make_room(token):
                return

    def _before_key(self, token: Token) -> None:
        """Brackets that must have been closed, or opened, before a key can stand here."""
        if self.last is not None and self.last.type in {"COLON", "LBRACKET"} and self._is_opener_missing(token):
            self._open_missing(token)
        elif self.by_indent and self.last is not None and self.brackets.left_open_before_key(token):
            self._close_left_open(self.brackets.left_open_before_key(token), token)
        else:
            while self._is_member_in_array():
                self._close_missing()

    def _before_root(self, token: Token) -> None:
        if token.type == "NUMBER" and str(token).isdigit() and self._first_on_line(token):
            self._report_token(codes.LINE_NUMBER, token, delete=True)
        elif token.type == "STRING" and self._colon_follows(token):
            # members without the brace around them: read on as if it were there
            self._insert(codes.WRONG_BRACKET, "LBRACE", token, variant="start")
            self._feed(token)
        elif token.type == "LBRACKET" or "{" not in self.text[token.start_pos :]:
            self._report_token(codes.NO_OBJECT, token)
            raise _StopReadingError
        else:
            self._report_token(codes.MISPLACED, token)

    def _settle_comma(self, token: Token) -> bool:
        """Hand the held comma over, or drop it in front of a closer or another comma."""
        comma = cast(Token, self.comma)
        if token.type in {"RBRACE", "RBRACKET"}:
            self._report_token(codes.TRAILING_COMMA, comma, delete=True)
            self.comma = None
            return True
        if token.type == "COMMA":
            self._report_token(codes.EXTRA_COMMA, token, delete=True)
            return False
        self.comma = None
        self._hand_over(comma)
        return True

    def _make_room(self, token: Token) -> bool:
        """Repair in front of ``token``.  True: try it again; False: it is dropped."""
        kind = token.type
        if self._can("COLON"):
            return self._at_colon(token)
        if self._can("NUMBER"):
            return self._at_value(token)
        if self._can("COMMA"):
            return self._at_comma(token)
        return self._at_key(token) if kind != "COMMA" else self._drop(codes.EXTRA_COMMA, token)

    def _at_colon(self, token: Token) -> bool:
        if token.type in _VALUES and not (token.type == "STRING" and self._colon_follows(token)):
            self._insert(codes.MISSING_COLON, "COLON", token, key=self.last_key)
            return True
        # "key", or "key"}: neither colon nor value
        self._feed_virtual("COLON", token)
        self._feed_virtual("LITERAL", token, "null")
        self._report_token(codes.MISSING_VALUE, token, key=self.last_key)
        return token.type != "COLON"

    def _at_value(self, token: Token) -> bool:
        if token.type in {"COMMA", "RBRACE"} and self.last is not None and self.last.type == "COLON":
            self._report_token(codes.MISSING_VALUE, token, key=self.last_key)
            self._feed_virtual("LITERAL", token, "null")
            return True
        if token.type == "COMMA":
            return self._drop(codes.EXTRA_COMMA, token)
        if token.type == "COLON":
            is_doubled = self.last is not None and self.last.type == "COLON"
            return self._drop(codes.MISPLACED, token, delete=is_doubled)
        return self._close_other(token)

    def _at_comma(self, token: Token) -> bool:
        """After a complete value: a comma or the right closer is due."""
        if token.type in {"RBRACE", "RBRACKET"}:
            return self._close_other(token)
        if token.type == "COLON":
            return self._drop(codes.MISPLACED, token)
        if self.open[-1].token.type == "LBRACE" and not (token.type == "STRING" and self._colon_follows(token)):
            return self._drop_number(token) if token.type == "NUMBER" else self._drop(codes.MISPLACED, token)
        self._insert(codes.MISSING_COMMA, "COMMA", token)
        return True

    def _drop_number(self, token: Token) -> bool:
        """A number where a key belongs: in front of one, at the start of a line, it came from a margin."""
        is_margin = str(token).isdigit() and self._first_on_line(token) and self._key_follows(token)
        return self._drop(codes.LINE_NUMBER if is_margin else codes.MISPLACED, token, delete=is_margin)

    def _at_key(self, token: Token) -> bool:
        if token.type in {"RBRACE", "RBRACKET"}:
            return self._close_other(token)
        if token.type == "NUMBER" and str(token).isdigit() and not self._colon_follows(token):
            return self._drop_number(token)
        if token.type in {"NUMBER", "LITERAL"}:
            self._report_token(codes.NO_QUOTES, token, edits=(Edit(*_span(token), f'"{token}"'),))
            self._hand_over(Token.new_borrow_pos("STRING", f'"{token}"', token))
            return False
        if token.type in {"LBRACE", "LBRACKET"}:
            self._report_token(codes.MISPLACED, token)
            self._feed_virtual("STRING", token, '""')
            self._feed_virtual("COLON", token)
            return True
        return self._drop(codes.MISPLACED, token)

    # -- brackets ----------------------------------------------------------------------------

    def _close_other(self, token: Token) -> bool:
        """A closer that does not match the innermost opener."""
        if not self.open:
            return self._drop(codes.WRONG_BRACKET, token, variant="extra")
        inner = self.open[-1]
        if inner.closer == token.type:
            return self._drop(codes.MISPLACED, token)
        if len(self.open) > 1 and self.open[-2].closer == token.type:
            self._close_missing()
            return True
        if token.type == "RBRACKET" and not self._first_on_line(token) and inner.token.line != token.line:
            return self._drop(codes.WRONG_BRACKET, token, variant="extra")  # its opener is missing, further up its line
        right = TEXT[inner.closer]
        self._report_token(codes.WRONG_BRACKET, token, edits=(Edit(*_span(token), right),), expected=right)
        self._hand_over(Token.new_borrow_pos(inner.closer, right, token))
        return False

    def _close_missing(self, *, comma: str = "") -> None:
        """Close the innermost bracket behind what stands in it, with a comma if the next key needs one."""
        opened, last = self.open[-1], cast(Token, self.last)
        after = last.end_pos or 0
        is_on_one_line = (opened.token.line or 0) == (last.line or 0)
        margin = "" if is_on_one_line else "\n" + self.brackets.margin(opened)
        edit = Edit(after, after, margin + TEXT[opened.closer] + comma)
        shown_at = max(after - 1, 0)
        self._report(codes.NOT_CLOSED, shown_at, after, edits=(edit,), **self._opener(opened))
        self._feed_behind(opened.closer, last)

    def _close_left_open(self, count: int, token: Token) -> None:
        """Close ``count`` brackets in front of ``token``; a comma that is there already comes behind them."""
        needs_comma = self.comma is None and token.type == "STRING"
        for number in range(count, 0, -1):
            self._close_missing(comma="," if needs_comma and number == 1 else "")
        if count and needs_comma:
            self._feed_virtual("COMMA", token)

    def _is_opener_missing(self, token: Token) -> bool:
        """Whether a key begins a list, or another key's value and is indented for that: its brace is missing."""
        last = cast(Token, self.last)
        column = self.brackets.column(token)
        return last.type == "LBRACKET" or (column is not None and column > self.brackets.indent(last))

    def _open_missing(self, token: Token) -> None:
        last = cast(Token, self.last)
        at = last.end_pos or 0
        edit = Edit(at, at, " {" if last.type == "COLON" else "{")
        name = self.last_key if last.type == "COLON" else self.open[-1].name
        self._report(codes.WRONG_BRACKET, max(at - 1, 0), at, variant="opener", edits=(edit,), key=name)
        self._feed_virtual("LBRACE", last)

    def _is_member_in_array(self) -> bool:
        """Whether a key met now would stand in a list: the list was not closed."""
        is_in_list = bool(self.open) and self.open[-1].token.type == "LBRACKET"
        return is_in_list and self.last is not None and self.last.type != "LBRACKET"

    def _close_all(self) -> None:
        if self.done:
            return
        if self.last is None:
            if not self.found.findings:
                self._report(codes.NO_OBJECT, 0, 1, variant="nothing")
            return
        end = Token("RBRACE", "", start_pos=len(self.text), end_pos=len(self.text))
        if self.comma is not None:
            self._report_token(codes.TRAILING_COMMA, self.comma, delete=True)
            self.comma = None
        if self._can("COLON"):
            self._at_colon(end)
        elif self._can("NUMBER") and self.last.type == "COLON":
            self._report(codes.MISSING_VALUE, *_span(self.last), key=self.last_key)
            self._feed_virtual("LITERAL", end, "null")
        at, is_certain = len(self.text.rstrip()), self.brackets.is_end_certain() or _is_made_up(self.open)
        while self.open and self.found.complete:
            opened = self.open[-1]
            edit = Edit(at, at, "\n" + self.brackets.margin(opened) + TEXT[opened.closer])
            edits = (edit,) if is_certain else ()
            if _is_made_up([opened]):
                self._complete_frame(edits)
            else:
                self._report_token(codes.NOT_CLOSED, opened.token, edits=edits, **self._opener(opened))
            self._feed_virtual(opened.closer, end)

    def _complete_frame(self, edits: tuple[Edit, ...]) -> None:
        """The brace that closes one that is missing too is the same fault."""
        for number, (finding, start, end) in enumerate(self.found.findings):
            if finding.message_id in {"JS-11.start", "JS-11.opener"} and finding.edits:
                whole = finding.edits + edits if edits else ()
                del self.found.findings[number]  # to the end: its brace comes behind all others
                self.found.findings.append((replace(finding, edits=whole), start, end))
                return

    def _opener(self, opened: Opened) -> dict[str, Any]:
        return {
            "bracket": TEXT[opened.token.type],
            "closer": TEXT[opened.closer],
            "opened": opened.token.line,
            "name": opened.name,
            "variant": "" if opened.name else "unnamed",
        }

    # -- small steps -------------------------------------------------------------------------

    def _can(self, kind: str) -> bool:
        # LALR merges the contexts a value may stand in, so whether a closer fits is ours to know
        if kind in {"RBRACE", "RBRACKET"} and not (self.open and self.open[-1].closer == kind):
            return False
        return kind in self.steps.choices()

    def _hand_over(self, token: Token) -> None:
        self.steps.feed_token(token)
        kind = token.type
        if kind in CLOSER:
            self.brackets.push(token, self.last_key if self.last is not None and self.last.type == "COLON" else "")
            if len(self.open) > MAX_DEPTH:
                self._report_token(codes.TOO_DEEP, token, depth=MAX_DEPTH)
                raise _StopReadingError
        elif kind in {"RBRACE", "RBRACKET"}:
            self.brackets.pop(token)
            self.done = not self.open
            if self.done:
                self.found.root = cast(Node, self.steps.feed_eof())
        elif kind == "STRING":
            self.last_key = str(token)[1:-1][:40]
            if self._colon_follows(token):
                self.brackets.note_member(token)
        self.last = token

    def _feed_virtual(self, kind: str, where: Token, text: str = "") -> None:
        at = where.start_pos or 0
        token = Token(kind, text or TEXT[kind], start_pos=at, end_pos=at, line=where.line, column=where.column)
        self._hand_over(token)

    def _feed_behind(self, kind: str, last: Token) -> None:
        """A token that is missing right behind another one."""
        at = last.end_pos or 0
        self._hand_over(Token(kind, TEXT[kind], start_pos=at, end_pos=at, line=last.line, column=last.column))

    def _insert(self, code: Code, kind: str, token: Token, variant: str = "", **params: Any) -> None:
        """Something is missing between the last token and this one."""
        after = (self.last.end_pos or 0) if self.last is not None else (token.start_pos or 0)
        edit = Edit(after, after, TEXT[kind] + (" " if kind == "COLON" else ""))
        is_certain = not self.doubtful & {token.start_pos or 0, (self.last.start_pos or 0) if self.last else -1}
        # shown where the fix goes: the end of what came before, not the innocent token after it
        shown_at = max(after - 1, 0) if self.last is not None else after
        edits = (edit,) if is_certain else ()
        self._report(code, shown_at, after, variant=variant, edits=edits, next=str(token)[:30], **params)
        self._feed_virtual(kind, token)

    def _drop(self, code: Code, token: Token, *, delete: bool = False, variant: str = "") -> bool:
        self._withdraw_edits(token)
        self._report_token(code, token, delete=delete or code == codes.EXTRA_COMMA, variant=variant)
        return False

    def _withdraw_edits(self, token: Token) -> None:
        """A token that is not used is not made nicer."""
        begin, end = _span(token)
        self.found.findings = [
            (replace(f, edits=()) if f.edits and begin <= start < end else f, start, stop)
            for f, start, stop in self.found.findings
        ]

    def _first_on_line(self, token: Token) -> bool:
        start = token.start_pos or 0
        begin = self.text.rfind("\n", 0, start) + 1
        return not self.text[begin:start].strip()

    def _colon_follows(self, token: Token) -> bool:
        return re.match(r"\s*[:：]", self.text[token.end_pos : (token.end_pos or 0) + 80]) is not None

    def _key_follows(self, token: Token) -> bool:
        return re.match(r'[ \t]*"[^"\r\n]*"\s*[:：]', self.text[token.end_pos : (token.end_pos or 0) + 200]) is not None

    def _report_token(
        self, code: Code, token: Token, *, delete: bool = False, edits: tuple[Edit, ...] = (), **params: Any
    ) -> None:
        if delete:
            edits = (Edit(*_span(token), ""),)
        variant = params.pop("variant", "")
        self._report(code, *_span(token), edits=edits, variant=variant, value=str(token)[:40], **params)

    def _report(
        self,
        code: Code,
        start: int,
        end: int,
        *,
        edits: tuple[Edit, ...] = (),
        variant: str = "",
        value: Any = None,
        **params: Any,
    ) -> None:
        finding = code.found(value=value, params=params, variant=variant, edits=edits)
        self.found.findings.append((finding, start, end))
        if code.has_stand_in and not edits:
            self.doubtful.add(start)
        self.num_counted += not edits  # what can be repaired tells a person less than what cannot
        if self.num_counted >= MAX_ERRORS:
            raise _StopReadingError


def _is_made_up(opened: list[Opened]) -> bool:
    """Whether all that is open is one bracket that is not in the text."""
    return len(opened) == 1 and opened[0].token.start_pos == opened[0].token.end_pos


def _span(token: Token) -> tuple[int, int]:
    return token.start_pos or 0, token.end_pos or 0
