"""What the doctor says: lines with a verdict, a stable id, and the values that their sentences need.

The sentences are ``doctor.<id>`` and, where there is something to do, ``doctor.<id>.fix`` of the catalogs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mindie_kvpool_plugin.check.findings import Finding
from mindie_kvpool_plugin.check.messages import Language, has_text, hint, message, words
from mindie_kvpool_plugin.errors import KvPoolError

Verdict = Literal["good", "trouble", "warning", "absent", "note", "skipped"]
"""Absent: not here, and not needed here.  Note: worth knowing.  Skipped: what it needs is in trouble."""

_MAX_ERROR_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Line:
    """One result.

    Attributes:
        id: stable name, such as "master.refused"; equal ids have equal verdicts.
        verdict: of this line.
        params: values of the placeholders; another line's text is inserted, and an error of ours whole, in English as
            start-up says it.
        finding: the check's finding that it repeats; its sentences are told then.
        text_key, fix_key: of the catalog, where several ids share a text; "" for its own.
    """

    id: str
    verdict: Verdict
    params: Mapping[str, Any] = field(default_factory=dict)
    finding: Finding | None = None
    text_key: str = ""
    fix_key: str = ""

    def text(self, lang: Language) -> str:
        """What was seen."""
        if self.finding is not None:
            return f"{self.params.get('place', '')}{self.finding.code}: {message(self.finding, lang)}"
        return _filled(self.text_key or f"doctor.{self.id}", self.params, lang)

    def fix(self, lang: Language) -> str:
        """What to do; "" where there is nothing."""
        if self.finding is not None:
            return hint(self.finding, lang)
        key = self.fix_key or f"{self.text_key or f'doctor.{self.id}'}.fix"
        return _filled(key, self.params, lang) if has_text(key, lang) else ""


def good(name: str, /, **params: Any) -> Line:
    """As it should be."""
    return Line(name, "good", params)


def trouble(name: str, /, **params: Any) -> Line:
    """The pool will not work, or not for long."""
    return Line(name, "trouble", params)


def warning(name: str, /, **params: Any) -> Line:
    """It works, and something about it should be changed."""
    return Line(name, "warning", params)


def absent(name: str, /, **params: Any) -> Line:
    """Not here, and not needed here."""
    return Line(name, "absent", params)


def note(name: str, /, **params: Any) -> Line:
    """Worth knowing."""
    return Line(name, "note", params)


def skipped(probe: str, reason: str, **params: Any) -> Line:
    """Not tried; ``reason`` names the text that says why."""
    return Line(f"{probe}.not_tried", "skipped", params, text_key=f"doctor.not_tried.{reason}")


def of_probe(probe: str, what: str, **params: Any) -> Line:
    """A probe itself is the trouble: it "failed" or was "too_slow"."""
    return Line(f"{probe}.{what}", "trouble", params, text_key=f"doctor.{what}")


def is_trouble(lines: Iterable[Line]) -> bool:
    """Whether any of them is trouble."""
    return any(line.verdict == "trouble" for line in lines)


def _filled(key: str, params: Mapping[str, Any], lang: Language) -> str:
    """The text; a whole error may be longer than the catalog lets a value be."""
    if "cause" in params:
        params = {**params, "cause": words(f"doctor.title.{params['cause']}", lang)}
    params = {name: value.text(lang) if isinstance(value, Line) else value for name, value in params.items()}
    errors = {name: value for name, value in params.items() if isinstance(value, KvPoolError)}
    text = words(key, lang, **{name: value for name, value in params.items() if name not in errors})
    for name, error in errors.items():
        plain = "".join(char for char in str(error)[:_MAX_ERROR_CHARS] if char.isprintable())
        text = text.replace(f"{{{name}}}", plain)
    return text


def as_object(line: Line, lang: Language) -> dict[str, Any]:
    """The line for programs."""
    values = {
        name: value if isinstance(value, (int, float, bool)) else str(value) for name, value in line.params.items()
    }
    found = {"id": line.id, "verdict": line.verdict, "text": line.text(lang), "fix": line.fix(lang), "values": values}
    if line.finding is not None:
        found["code"] = line.finding.code
    return found
