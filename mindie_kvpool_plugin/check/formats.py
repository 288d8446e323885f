"""What a text is that should be JSON and is something else altogether."""

from __future__ import annotations

import re
from typing import Literal

Format = Literal["", "YAML", "INI"]

# more lines say nothing new
MAX_LINES = 200

_COMMENTS = ("#", ";")
_SECTION = re.compile(r"\[[A-Za-z_][\w .-]*\]")
_YAML_LINE = re.compile(r"\s*(?:- )?\s*[A-Za-z_][\w.-]*:(?:\s|$)|\s*- ")
_INI_LINE = re.compile(r"\s*[A-Za-z_][\w.-]*\s*=")


def other_format(text: str) -> Format:
    """YAML or an ini file; "" for everything that begins like JSON or is neither."""
    lines = [line for line in text.splitlines()[:MAX_LINES] if line.strip() and not line.lstrip().startswith(_COMMENTS)]
    if not lines or lines[0].lstrip()[0] in '{"':
        return ""
    if lines[0].startswith("---"):
        return "YAML"
    if _SECTION.fullmatch(lines[0].strip()):
        return "INI"
    if 2 * sum(_YAML_LINE.match(line) is not None for line in lines) > len(lines):
        return "YAML"
    return "INI" if 2 * sum(_INI_LINE.match(line) is not None for line in lines) > len(lines) else ""
