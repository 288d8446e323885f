"""Cross-field rules the JSON schema cannot state, one file per topic.

One function per rule, named after what must hold, yielding findings with a stable code, the JSON
path and what the message needs.  A rule reads no file content and never stops the others.
"""

from __future__ import annotations

from mindie_kvpool_plugin.check.codes import STAGE_CODES
from mindie_kvpool_plugin.check.findings import Code, Finding
from mindie_kvpool_plugin.check.rules import (
    asynchronous,
    certificates,
    file,
    memcache,
    memory,
    model,
    nodes,
    parallel,
    plugin_fields,
    plugin_pairs,
    plugin_params,
    pool,
    pool_addresses,
    pool_file,
    schedule,
    server,
    support,
    weights,
)
from mindie_kvpool_plugin.check.rules.registry import RULES, run_rules
from mindie_kvpool_plugin.check.rules.view import View

TOPICS = (
    file,
    pool,
    pool_file,
    pool_addresses,
    memcache,
    plugin_params,
    plugin_fields,
    plugin_pairs,
    support,
    asynchronous,
    weights,
    model,
    memory,
    parallel,
    nodes,
    schedule,
    server,
    certificates,
)
"""The modules whose import registers the rules, in the order they are asked."""

__all__ = ["RULES", "TOPICS", "all_codes", "all_rules"]


def all_rules(view: View) -> list[Finding]:
    """All findings of all rules."""
    return run_rules(view)


def all_codes() -> dict[str, Code]:
    """Every code the check can report, for ``explain``."""
    return {kind.id: kind for kind in (*STAGE_CODES, *(each.kind for each in RULES))}
