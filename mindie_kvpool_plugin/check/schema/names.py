"""What to say about a key that nobody reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import THE_FILE, Finding, Outcome, Phrase, Severity, pointer
from mindie_kvpool_plugin.options.pool_file import is_comment
from mindie_kvpool_plugin.options.typos import closest


def unknown_key(
    key: str,
    known: Mapping[str, Mapping[str, Any]],
    section: str,
    values: Mapping[str, Any],
    *,
    owners: Mapping[str, list[str]],
    is_forbidden: bool,
) -> Finding:
    """A finding about ``key``: a note, a slip of the keyboard, at home elsewhere, or simply unknown.

    Args:
        key: the key.
        known: keys the section reads, with their schemas.
        section: JSON Pointer of the section.
        values: the section.
        owners: key -> sections of the file that read it.
        is_forbidden: the section refuses what it does not know.
    """
    at, item = section + pointer(key), values[key]
    params: dict[str, Any] = {"key": key[:60], "section": section_name(section)}
    severity: Severity | None = "error" if is_forbidden else None
    outcome: Outcome | None = "late" if is_forbidden else None
    if is_comment(key):
        return codes.UNKNOWN_KEY.found(at, severity="info", value=item, params=params, variant="comment")
    close = closest(key, [name for name in known if not known[name].get("deprecated")])
    if close is not None:
        variant = "both" if close in values else ""
        params |= {"close": close}
        return codes.MISSPELT_KEY.found(
            at, severity=severity, outcome=outcome, value=item, params=params, variant=variant
        )
    if is_forbidden:
        variant = "moved" if key in owners else "refused"
        params |= {"known": ", ".join(known)}
    else:
        variant = "elsewhere" if key in owners else ""
    params |= {"owner": owners[key][0]} if key in owners else {}
    return codes.UNKNOWN_KEY.found(at, severity=severity, outcome=outcome, value=item, params=params, variant=variant)


def section_name(section: str) -> str | Phrase:
    """What a section is called in a sentence: its key, with the number of the entry for one of a list."""
    *above, name = ["", *section.split("/")[1:]]
    if name.isdecimal() and above[-1:] != [""]:
        return f"{above[-1]}[{name}]"
    return name or THE_FILE


def dead_key(key: str, known: Mapping[str, Mapping[str, Any]], section: str, values: Mapping[str, Any]) -> Finding:
    """A finding about a key of older versions: with a look-alike that is read, that one was meant."""
    at, item = section + pointer(key), values[key]
    close = closest(key, [name for name in known if not known[name].get("deprecated")])
    if close is None:
        return codes.DEAD_KEY.found(at, value=item, params={"key": key, "why": known[key]["description"]})
    params = {"key": key, "section": section_name(section), "close": close}
    return codes.MISSPELT_KEY.found(at, value=item, params=params, variant="both" if close in values else "")
