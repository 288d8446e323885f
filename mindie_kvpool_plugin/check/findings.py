"""What the check says: findings, where they are, and the verdict over all of them.

A finding carries a code and the values its sentence needs, never the sentence itself: the
reporter takes that from the message catalog of the user's language.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
Outcome = Literal["boot", "late", "run", "wrong", "silent", "advice"]
Verdict = Literal["ok", "warning", "error"]

SEVERITY_ORDER: dict[str, int] = {"error": 0, "warning": 1, "info": 2}

# longer values are cut in messages and reports: a finding names the value, it does not repeat the file
SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace ``text[start:end]`` of the checked file by ``text``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a finding is when that is not the checked file itself (pool file, rank table)."""

    file: str
    line: int | None = None
    column: int | None = None
    excerpt: str = ""
    pointer: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the user should know.

    Attributes:
        code: stable name, also the argument of ``explain``.
        severity: error, warning or info.
        outcome: when the fault shows: at boot, late (after the weights), while running, as wrong
            output, silently never, or not at all (advice).
        path: JSON Pointer into config.json.
        value: the value found there; None when the key is absent.
        params: values for the message's placeholders.
        variant: which of the code's messages.
        source: where the rule is written down.
        line, column: 1-based; None when the position is not known.
        length: characters to underline.
        place: set when the fault is in another file; ``path`` then names the key that refers to it.
        edits: what ``--fix`` would do; empty when the repair needs a decision.
        advice: the repair is right but changes meaning for the reader; shown, applied last.
    """

    code: str
    severity: Severity
    outcome: Outcome
    path: str = ""
    value: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    source: str = ""
    line: int | None = None
    column: int | None = None
    length: int = 1
    place: Place | None = None
    edits: tuple[Edit, ...] = ()

    @property
    def message_id(self) -> str:
        """Key of the finding's texts in the catalog."""
        return f"{self.code}.{self.variant}" if self.variant else self.code


def verdict(findings: Iterable[Finding]) -> Verdict:
    """The worst severity; info counts as ok."""
    severities = {finding.severity for finding in findings}
    if "error" in severities:
        return "error"
    return "warning" if "warning" in severities else "ok"


def shown(value: Any) -> str:
    """``value`` as short JSON text for a message; containers deeper than one level are only hinted at."""
    if isinstance(value, dict):
        text = json.dumps({str(k): _flat(v) for k, v in list(value.items())[:8]}, ensure_ascii=False)
    elif isinstance(value, list):
        text = json.dumps([_flat(v) for v in value[:16]], ensure_ascii=False)
    else:
        text = _scalar(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def _flat(value: Any) -> Any:
    if isinstance(value, dict):
        return "{...}" if value else {}
    if isinstance(value, list):
        return [v for v in value[:16] if isinstance(v, (int, float, str))] if len(value) <= 16 else "[...]"
    return value


def _scalar(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1024:
        return "a number of several hundred digits"
    if isinstance(value, str):
        # lone surrogates cannot be printed
        value = value[: 4 * SHOWN_CHARS].encode("utf-8", "replace").decode("utf-8")
    return json.dumps(value, ensure_ascii=False, default=str)


def pointer(*parts: str | int) -> str:
    """JSON Pointer of a path (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
