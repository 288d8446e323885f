"""The pool file by the plugin's own reading: each problem of it, and what deserves a look, as findings.

``options.pool_file.judge`` is what start-up raises from; so what is refused there is an error here, and
the other way round.  Without a ``kv_pool`` section the host's own client reads the same keys.  MemCache's
own file, which that client takes for a pool file, is judged by a schema: nothing of ours reads its keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Elsewhere, Finding, pointer
from mindie_kvpool_plugin.check.follow import OtherFile
from mindie_kvpool_plugin.check.rules.view import section, text
from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.check.schema.names import unknown_key
from mindie_kvpool_plugin.check.schema.records import property_schema
from mindie_kvpool_plugin.check.schema.stage import check_schema, expectation
from mindie_kvpool_plugin.check.text.document import Document
from mindie_kvpool_plugin.options.pool_file import RECORDS, SECTION, judge
from mindie_kvpool_plugin.options.problems import Problem
from mindie_kvpool_plugin.options.records import KvPoolOptions, all_options

BACKENDS = ("mooncake", "memcache")
# objects with more keys than this are not looked through for typing mistakes one by one
MAX_KEYS = 100
# demanded by the host's own client, which is in charge without the section
HOST_DEMANDS = "metadata_server"

_CODES = {
    "type": codes.WRONG_TYPE,
    "range": codes.OUT_OF_RANGE,
    "choice": codes.NO_CHOICE,
    "form": codes.WRONG_FORM,
    "point": codes.NOT_AN_INTEGER,
    "missing": codes.MISSING_KEY,
}


def pool_findings(root: Any, pool: OtherFile | None) -> list[Finding]:
    """Syntax and options of the pool file, told at the key that names it."""
    backend = text(section(root, "BackendConfig", "kvPoolConfig"), "backend")
    if pool is None or pool.document is None or pool.format or backend not in BACKENDS:
        return []
    document, value = pool.document, pool.value
    found = [_in_pool(finding, document) for finding in document.findings if not is_harmless(finding, value)]
    if isinstance(value, dict) and (document.value is None or isinstance(document.value, dict)):
        judged = option_findings(value, backend)
        found += [_in_pool(document.locate(finding), document) for finding in judged]
    return found


def option_findings(content: Mapping[str, Any], backend: str) -> list[Finding]:
    """Findings about the file's options; paths count from the top of the file."""
    found = [_told(problem, content, backend) for problem in judge(content, backend) if problem.kind in _CODES]
    if backend == "memcache" and SECTION not in content:
        found += map(_as_note, check_schema(dict(content), profiles.load("memcache_local"), outcome="late"))
    else:
        owners = {name: [SECTION] for name in properties(SECTION)}
        found += _about_keys(content, properties(backend) | {SECTION: {}}, "", owners)
        if SECTION not in content and HOST_DEMANDS not in content:
            found.append(_missing(HOST_DEMANDS, "", properties(backend)[HOST_DEMANDS]))
    options = content.get(SECTION)
    if isinstance(options, dict):
        owners = {name: ["the top level"] for name in properties(backend)}
        found += _about_keys(options, properties(SECTION), pointer(SECTION), owners)
    return found


@lru_cache(maxsize=4)
def properties(name: str) -> dict[str, profiles.Schema]:
    """Options of a backend, or of the section, as the schemas say them."""
    record = KvPoolOptions if name == SECTION else RECORDS[name]
    return {option: property_schema(option, hint, field) for option, hint, field in all_options(record)}


def _told(problem: Problem, content: Mapping[str, Any], backend: str) -> Finding:
    name, above = problem.path[-1], pointer(*problem.path[:-1])
    if problem.path == (SECTION,):
        schema: profiles.Schema = {"type": "object"}
    else:
        schema = properties(SECTION if above else backend)[name]
    if problem.kind == "missing":
        return _missing(name, above, schema)
    params: dict[str, Any] = {"key": name, "expected": expectation(schema), "what": problem.what, "fix": problem.fix}
    found = _CODES[problem.kind].found
    return found(above + pointer(name), outcome="late", value=problem.value, params=params, variant="told")


def _missing(name: str, above: str, schema: profiles.Schema) -> Finding:
    default = schema.get("default")
    params = {"key": name, "expected": "-", "default": json.dumps(default)}
    variant = "" if default is None else "default"
    return codes.MISSING_KEY.found(above + pointer(name), outcome="late", params=params, variant=variant)


def _about_keys(
    values: Mapping[str, Any], known: Mapping[str, profiles.Schema], above: str, owners: Mapping[str, list[str]]
) -> Iterator[Finding]:
    """Unknown names, and numbers above what is advised."""
    for number, (name, value) in enumerate(values.items()):
        if name not in known:
            if number < MAX_KEYS and name != "$schema":
                yield unknown_key(name, known, above, values, owners=owners, is_forbidden=bool(above))
        elif isinstance(value, int) and value > known[name].get("maximum", value):
            params = {"key": name, "expected": expectation(known[name])}
            yield codes.OUT_OF_RANGE.found(
                above + pointer(name), severity="warning", outcome="run", value=value, params=params
            )


def _as_note(finding: Finding) -> Finding:
    # MemCache has many more keys than we know: an unknown one is only worth a note
    return replace(finding, severity="info") if finding.kind is codes.UNKNOWN_KEY else finding


def is_harmless(finding: Finding, value: Any) -> bool:
    """A byte order mark, where the plugin reads the file: it does not mind, the host's own client does."""
    return finding.kind is codes.BYTE_ORDER_MARK and isinstance(value, dict) and SECTION in value


def _in_pool(finding: Finding, document: Document) -> Finding:
    excerpt = document.excerpt(finding.line, finding.column or 1)[0] if finding.line is not None else ""
    place = Elsewhere(document.name, finding.line, finding.column, excerpt, finding.path, finding.length)
    outcome = "late" if finding.severity == "error" else finding.outcome
    path = "/BackendConfig/kvPoolConfig/configPath"
    return replace(finding, path=path, line=None, column=None, place=place, outcome=outcome, edits=())
