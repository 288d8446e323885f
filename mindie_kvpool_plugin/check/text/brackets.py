"""The brackets that are open, and what the indentation says about where they should have been closed."""

from __future__ import annotations

from dataclasses import dataclass, field

from lark import Token

CLOSER = {"LBRACE": "RBRACE", "LBRACKET": "RBRACKET"}
TEXT = {"LBRACE": "{", "RBRACE": "}", "LBRACKET": "[", "RBRACKET": "]", "COLON": ":", "COMMA": ","}


@dataclass(slots=True)
class Opened:
    """An open bracket.

    Attributes:
        token: the bracket.
        name: the key whose value it begins; empty if there is none.
        indent: column at which its line begins, 0-based.
        members: column of its members that begin a line; None before the first.
    """

    token: Token
    name: str
    indent: int
    members: int | None = None

    @property
    def closer(self) -> str:
        """The kind of token that closes it."""
        return CLOSER[self.token.type]


@dataclass(slots=True)
class Brackets:
    """What is open, outermost first, in a text.

    Attributes:
        text: the text that positions count in.
        open: the brackets.
        is_odd: a bracket was closed at another column than its line begins at.
        num_closed: how many braces were closed.
    """

    text: str
    open: list[Opened] = field(default_factory=list)
    is_odd: bool = False
    num_closed: int = 0

    def push(self, token: Token, name: str) -> None:
        """A bracket opens."""
        self.open.append(Opened(token, name, self.indent(token)))

    def pop(self, token: Token) -> None:
        """The innermost bracket is closed."""
        opened = self.open.pop()
        self.num_closed += opened.closer == "RBRACE"
        is_on_one_line = (opened.token.line or 0) == (token.line or 0)
        is_in_text = token.start_pos != token.end_pos
        if is_in_text and not is_on_one_line and self.column(token) != opened.indent:
            self.is_odd = True

    def note_member(self, token: Token) -> None:
        """A key stands in the innermost bracket."""
        column = self.column(token)
        if self.open and self.open[-1].members is None and column is not None:
            self.open[-1].members = column

    def left_open_before_key(self, token: Token) -> int:
        """How many brackets must have been closed before a key at the column of ``token``; 0 if none."""
        column = self.column(token)
        if column is None:
            return 0
        for number, opened in enumerate(reversed(self.open)):
            if opened.token.type == "LBRACE" and opened.members == column:
                return number
            if opened.indent < column or (opened.token.type == "LBRACE" and opened.members is None):
                return 0
        return 0

    def left_open_before_closer(self, token: Token) -> int:
        """How many brackets must have been closed before the closing ``token``; 0 if none."""
        column = self.column(token)
        if column is None:
            return 0
        for number, opened in enumerate(reversed(self.open)):
            if opened.indent == column and opened.closer == token.type:
                return number
            if opened.indent <= column:
                return 0
        return 0

    def is_end_certain(self) -> bool:
        """Whether what is open at the end of the text is only not closed there, and nowhere before."""
        is_one_line = "\n" not in self.text.strip()
        return not self.is_odd and not (is_one_line and self.num_closed)

    def column(self, token: Token) -> int | None:
        """0-based column of a token that begins its line; None for others."""
        start = token.start_pos or 0
        begin = self.text.rfind("\n", 0, start) + 1
        return start - begin if not self.text[begin:start].strip() else None

    def indent(self, token: Token) -> int:
        """0-based column at which the line of a token begins."""
        start = token.start_pos or 0
        begin = self.text.rfind("\n", 0, start) + 1
        line = self.text[begin : start + 1]
        return len(line) - len(line.lstrip())

    def margin(self, opened: Opened) -> str:
        """The blanks in front of the line of an open bracket."""
        start = opened.token.start_pos or 0
        begin = self.text.rfind("\n", 0, start) + 1
        return self.text[begin : begin + opened.indent] if opened.indent < 200 else ""
