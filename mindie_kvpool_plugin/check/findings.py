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
Fix = Literal["rename", "remove", "number"]

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
class Phrase:
    """A placeholder's value that is said in the user's language: a key of the catalogs."""

    key: str


THE_FILE = Phrase("findings.the_file")
"""Where a key's or a section's name would stand, if it were in one."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Where a finding is when that is not the checked file itself (pool file, rank table)."""

    file: str
    line: int | None = None
    column: int | None = None
    excerpt: str = ""
    pointer: str = ""
    length: int = 1


@dataclass(frozen=True, slots=True)
class Code:
    """What is known about a kind of finding besides its texts.

    Attributes:
        id: stable name, also the argument of ``explain``.
        severity, outcome: of the usual case.
        source: where it is written down, as ``sources`` reads it: documents and sections.
        wrong, right: the smallest example of each.
        fix: what ``--fix`` does at the place of such a finding that has no edits of its own: gives a key the likely
            name, removes it, or writes the number meant.
        at_key: it is about a key, not about its value.
        about_value: it says nothing where the value is a stand-in for something unreadable.
        needs_type: it says nothing new where the type is wrong already.
        has_stand_in: a value had to be made up where it was found.
        explains_key: it says more about a key than that it is unknown.
        is_other_kind: the file is of another kind: nothing in it is to be judged.
        unsettles: where no repair is certain, what stands behind it may be elsewhere than it seems.
        is_joint: it is about brackets or commas, which suffer where something was left out.
        is_hopeless: nobody can repair such a file.
    """

    id: str
    severity: Severity
    outcome: Outcome
    source: str
    wrong: str
    right: str
    fix: Fix | None = None
    at_key: bool = False
    about_value: bool = False
    needs_type: bool = False
    has_stand_in: bool = False
    explains_key: bool = False
    is_other_kind: bool = False
    unsettles: bool = False
    is_joint: bool = False
    is_hopeless: bool = False

    def found(
        self, path: str = "", *, severity: Severity | None = None, outcome: Outcome | None = None, **details: Any
    ) -> Finding:
        """A finding of this kind; ``details`` are further fields of it."""
        return Finding(self, severity or self.severity, outcome or self.outcome, path, **details)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the user should know.

    Attributes:
        kind: what is known about its code.
        severity: error, warning or info.
        outcome: when the fault shows: at boot, late (after the weights), while running, as wrong
            output, silently never, or not at all (advice).
        path: JSON Pointer into config.json.
        value: the value found there; None when the key is absent.
        params: values for the message's placeholders.
        variant: which of the code's messages.
        line, column: 1-based; None when the position is not known.
        length: characters to underline.
        place: set when the fault is in another file; ``path`` then names the key that refers to it.
        edits: what ``--fix`` would do; empty when the repair needs a decision.
        inner: offsets inside the text at ``path`` that it is about, where that is only a part of it.
        alike: how many more of the same kind it stands for.
        followers: how many more findings follow from it.
    """

    kind: Code
    severity: Severity
    outcome: Outcome
    path: str = ""
    value: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    line: int | None = None
    column: int | None = None
    length: int = 1
    place: Elsewhere | None = None
    edits: tuple[Edit, ...] = ()
    inner: tuple[int, int] | None = None
    alike: int = 0
    followers: int = 0

    @property
    def code(self) -> str:
        """Stable name of its kind."""
        return self.kind.id

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
