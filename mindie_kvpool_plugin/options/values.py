"""One value of an option: as the record holds it, or what is wrong with it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias, get_args

from mindie_kvpool_plugin.options.problems import Kind
from mindie_kvpool_plugin.options.sizes import parse_size
from mindie_kvpool_plugin.options.typos import closest

# what a thread can wait for: threading.TIMEOUT_MAX is about nine times this
MAX_SECONDS = 1e9
MAX_INTEGER = 2**63 - 1

Checked: TypeAlias = "tuple[Any, tuple[Kind, str] | None]"
"""The value, and None or the kind of the mistake and what was expected."""


def checked(value: Any, hint: Any, about: Mapping[str, Any]) -> Checked:
    """The value as the record holds it, or what is wrong with it and what was expected."""
    if about.get("size"):
        return _size(value)
    if get_args(hint):
        return _choice(value, get_args(hint))
    if hint is str:
        return _text(value, about)
    if hint is bool:
        return value, None if isinstance(value, bool) else ("type", "true or false")
    return _number(value, hint, bool(about.get("may_be_zero")), about.get("at_most"))


def _size(value: Any) -> Checked:
    size = parse_size(value)
    if size is not None:
        return size, None
    return value, (_wrong_number(value, "form"), 'bytes as an integer or a text such as "4GB"')


def _choice(value: Any, choices: tuple[str, ...]) -> Checked:
    plain = value.strip().lower() if isinstance(value, str) else value
    if isinstance(plain, str) and plain in choices:
        return plain, None
    expected = f"one of: {', '.join(choices)}"
    close = closest(value, choices) if isinstance(value, str) else None
    if close is not None:
        expected += f'; did you mean "{close}"?'
    return value, ("choice" if isinstance(value, str) else "type", expected)


def _text(value: Any, about: Mapping[str, Any]) -> Checked:
    if not isinstance(value, str):
        return value, ("type", about.get("words", "a text that is not empty"))
    plain = value.strip()
    if "pattern" in about and not re.fullmatch(about["pattern"], plain):
        return value, ("form", about["words"])
    if not plain and not about.get("may_be_empty"):
        return value, ("form", "a text that is not empty")
    return plain, None


def _number(value: Any, hint: Any, may_be_zero: bool, at_most: int | None) -> Checked:
    limit = at_most or (MAX_INTEGER if hint is int else MAX_SECONDS)
    is_number = isinstance(value, (int, hint)) and not isinstance(value, bool)
    if is_number and (0 < value <= limit or (may_be_zero and value == 0)):
        return hint(value), None
    expected = "a positive integer" if hint is int else "a positive number"
    expected += " or 0" if may_be_zero else ""
    expected += f" up to {limit:g}" if isinstance(value, (int, float)) and value > limit else ""
    kind: Kind = "range" if _is_number(value) else "type"
    kind = _wrong_number(value, "type") if hint is int else kind
    return value, (kind, f"{expected} without a point" if kind == "point" else expected)


def _wrong_number(value: Any, text_kind: Kind) -> Kind:
    """Why something is not the integer wanted."""
    if isinstance(value, str):
        return text_kind
    if isinstance(value, float):
        return "point" if math.isfinite(value) and value.is_integer() else "type"
    return "range" if _is_number(value) else "type"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
