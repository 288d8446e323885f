"""What to say about a key that nobody reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Finding, Outcome, Severity, pointer
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
    params: dict[str, Any] = {"key": key[:60], "section": section.rpartition("/")[2] or "the file"}
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
    variant = "elsewhere" if key in owners else ""
    params |= {"owner": owners[key][0]} if key in owners else {}
    return codes.UNKNOWN_KEY.found(at, severity=severity, outcome=outcome, value=item, params=params, variant=variant)
