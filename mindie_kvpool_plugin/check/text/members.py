"""The members of an object that can be read in a damaged text, whatever stands around them."""

from __future__ import annotations

import re
from collections import Counter

_STRING = r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrtu])*"'
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.+-])"
_MEMBER = re.compile(rf"({_STRING})[ \t]*:[ \t]*({_STRING}|{_NUMBER}|true|false|null)")
_WHOLE = re.compile(rf"^[ \t]*{_MEMBER.pattern}[ \t]*,?[ \t]*\r?$", re.MULTILINE)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def members(text: str) -> Counter[tuple[str, str]]:
    """Key and plain value, as they are written, wherever they stand."""
    return Counter((match[1], match[2]) for match in _MEMBER.finditer(text))


def whole_members(text: str) -> Counter[tuple[str, str]]:
    """Those that are a line of their own, outside comments."""
    return Counter((match[1], match[2]) for match in _WHOLE.finditer(_COMMENT.sub("", text)))
