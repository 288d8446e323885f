"""What to say about a key that nobody reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    severity: Severity = "error" if is_forbidden else "warning"
    outcome: Outcome = "late" if is_forbidden else "silent"
    if is_comment(key):
        return Finding("SC-06", "info", "silent", at, item, params, variant="comment", source="0")
    close = closest(key, [name for name in known if not known[name].get("deprecated")])
    if close is not None:
        variant = "both" if close in values else ""
        return Finding("HC-82", severity, outcome, at, item, params | {"close": close}, variant, "HC-82")
    if key in owners:
        params |= {"owner": owners[key][0]}
        return Finding("SC-06", severity, outcome, at, item, params, variant="elsewhere", source="0, 2")
    return Finding("SC-06", severity, outcome, at, item, params, source="0")
