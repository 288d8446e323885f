"""plugin_params is JSON written as text inside JSON: where in that text a fault is, and what was meant by it.

The text is read with the same tolerant reader as the file around it, so that a lost brace or a full-width
comma is named inside the string too.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Finding
from mindie_kvpool_plugin.check.rules.plugins import KNOWN_WORDS
from mindie_kvpool_plugin.options import typos

# the rules about form and words; the others take what is written at its word
_ABOUT_THE_TEXT = ("HC-06", "HC-08", "HC-09")
# the worker refuses a text of more than a quarter of this
MAX_CHARS = 4096
_KIND = "plugin_type"
_SEPARATORS = re.compile(r"[,，、;；|+]")


def pointed(finding: Finding, text: Any) -> Finding:
    """A finding about plugin_params with its place inside ``text``, and with the text that was meant."""
    if finding.code not in _ABOUT_THE_TEXT or not isinstance(text, str) or len(text) > MAX_CHARS:
        return finding
    instead = meant(text)
    params = {**finding.params, "instead": instead} if instead is not None else finding.params
    if finding.message_id == "HC-08.json":
        cause, inner = _cause(text)
        if cause is not None:
            return replace(finding, variant="at", params={**params, "cause": cause}, inner=inner)
    return replace(finding, params=params, inner=_place(finding, text))


def _place(finding: Finding, text: str) -> tuple[int, int] | None:
    """Offsets of the word or key it is about."""
    if finding.variant == "twice":
        match = re.search(r'\\+"', text)
        return match.span() if match else None
    word = str(finding.params.get("close" if finding.code == "HC-08" else "word") or "")
    behind = text.find(_KIND) + len(_KIND) if _KIND in text else 0
    start = text.find(word, behind)
    return (start, start + len(word)) if word and start >= 0 else None


@lru_cache(maxsize=16)
def _read(text: str) -> tuple[Any, tuple[tuple[Finding, int, int], ...]]:
    """Value and mistakes of the text, by the tolerant reader."""
    from mindie_kvpool_plugin.check.text.recovery import parse_broken  # noqa: PLC0415  # its import costs 50 ms

    parsed = parse_broken(text)
    return (parsed.root.value if parsed.root is not None else None), tuple(parsed.findings)


def _cause(text: str) -> tuple[Finding | None, tuple[int, int] | None]:
    """The first mistake, shown where its repair goes."""
    _, mistakes = _read(text)
    if not mistakes:
        return None, None
    # a bracket that is not closed may follow from any of the others
    cause, start, end = min(mistakes, key=lambda each: (each[0].kind is codes.NOT_CLOSED, each[1]))
    if cause.edits and cause.edits[0].start >= end:
        start = max(cause.edits[0].start - 1, 0)
        end = start + 1
    return cause, (start, end)


def meant(text: str) -> str | None:
    """The text with its slips repaired, as compact JSON; None when nothing can be made of it."""
    try:
        content = json.loads(text, parse_constant=lambda name: None, parse_float=_finite)
    except (ValueError, RecursionError):
        content, _ = _read(text.replace("\\", "") if '\\"' in text else text)
    if not isinstance(content, dict):
        return None
    close = typos.closest(_KIND, content) if _KIND not in content else None
    if close is not None:
        content = {_KIND if key == close else key: value for key, value in content.items()}
    if isinstance(content.get(_KIND), str):
        content = {**content, _KIND: ",".join(_words(content[_KIND]))}
    compact = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return compact.encode("utf-8", "replace").decode()


def _finite(number: str) -> float | None:
    return value if math.isfinite(value := float(number)) else None


def _words(kind: str) -> list[str]:
    words = (word.strip().lower() for word in _SEPARATORS.split(kind))
    return [word if word in KNOWN_WORDS else typos.closest(word, KNOWN_WORDS) or word for word in words if word]
