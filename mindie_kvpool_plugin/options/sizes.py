"""Sizes in bytes, as a user writes them: an integer, or a text such as "4GB"."""

from __future__ import annotations

import re
from typing import Any

UNITS = {"": 1, "b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}
# in a form that Python and JSON Schema (ECMA 262) read alike, case spelled out
PATTERN = r"^\s*[0-9]+(?:\.[0-9]+)?\s*(?:[tTgGmMkK]?[bB])?\s*$"
# what C++ takes for a size; floating-point arithmetic ends somewhere, too
MAX_BYTES = 2**63 - 1

_TEXT = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([tgmk]?b)?\s*", re.IGNORECASE | re.ASCII)


def parse_size(value: Any) -> int | None:
    """Bytes from an integer or a text (units B, KB, MB, GB, TB; powers of 1024); None for anything else.

    A fraction of a byte is cut.  Negative numbers and those above ``MAX_BYTES`` are no sizes.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value <= MAX_BYTES else None
    match = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    size = int(float(match[1]) * UNITS[(match[2] or "").lower()])
    return size if size <= MAX_BYTES else None


def size_text(size_bytes: int) -> str:
    """A size as a pool file has it: whole GB, or MB, of which a rest is cut."""
    whole, rest = divmod(size_bytes, UNITS["gb"])
    return f"{size_bytes // UNITS['mb']}MB" if rest else f"{whole}GB"
