"""A pool file checked by itself, without the configuration that names it.

The rules are asked with the smallest configuration that would name the file; of what they find, only
what they find in the file counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check.findings import Finding
from mindie_kvpool_plugin.check.follow import Followed, OtherFile
from mindie_kvpool_plugin.check.formats import other_format
from mindie_kvpool_plugin.check.pool_options import is_harmless, option_findings
from mindie_kvpool_plugin.check.rules import all_rules
from mindie_kvpool_plugin.check.rules.view import View
from mindie_kvpool_plugin.check.situation import Disk, Situation
from mindie_kvpool_plugin.check.text.document import Document
from mindie_kvpool_plugin.options.memcache import key_value_lines
from mindie_kvpool_plugin.options.pool_file import SECTION

_MEMCACHE_KEY = "ock.mmc."
_POOL_KEYS = frozenset({SECTION, "master_server_address", "metadata_server", "global_segment_size", "local_hostname"})
_SECTIONS = frozenset({"ServerConfig", "BackendConfig", "LogConfig"})
_POOL_LINE = re.compile(rf"^\s*(?:{'|'.join(sorted(_POOL_KEYS))})\s*[:=]", re.MULTILINE)
# more than enough to know a file that is not JSON
_HEAD_BYTES = 1024 * 1024
# of the rules about the file as such
_ABOUT_THE_FILE = "HC-03"


def is_pool_object(value: Any) -> bool:
    """Whether a file's value is a pool file: a key only those have, and no section of config.json."""
    return isinstance(value, dict) and not _SECTIONS & value.keys() and (
        bool(_POOL_KEYS & value.keys()) or any(str(key).startswith(_MEMCACHE_KEY) for key in value)
    )  # fmt: skip


def backend_of(value: Mapping[str, Any]) -> str:
    """The backend whose pool file this is, by its keys."""
    is_memcache = "config_path" in value or any(str(key).startswith(_MEMCACHE_KEY) for key in value)
    return "memcache" if is_memcache else "mooncake"


def other_document(data: bytes, name: str) -> Document | None:
    """A pool file that is not JSON; None when the bytes are something else.

    MemCache's own file of ``key = value`` lines has a value; one in YAML or as an ini file has none.
    """
    if data.lstrip()[:1] == b"{":
        return None
    text = data[:_HEAD_BYTES].decode("utf-8", "replace")
    if _MEMCACHE_KEY in text:
        return Document(name, text, value=key_value_lines(text))
    return Document(name, text) if other_format(text) and _POOL_LINE.search(text) else None


def pool_file_findings(document: Document, situation: Situation, disk: Disk) -> list[Finding]:
    """Findings about the file, at their places in it."""
    path = situation.config_path or Path(document.name)
    pool = OtherFile(path, disk.facts(path), document, document.value)
    pool.format = other_format(document.text) if document.value is None else ""
    root = _naming(pool)
    found = [finding for finding in document.findings if not is_harmless(finding, document.value)]
    if not pool.format:
        backend = root["BackendConfig"]["kvPoolConfig"]["backend"]
        found += map(document.locate, option_findings(document.value, backend))
    ruled = all_rules(View(root, situation, Followed(disk, pool=pool)))
    found += [_at_home(each) for each in ruled if each.place is not None or each.code == _ABOUT_THE_FILE]
    return [replace(each, outcome="late") if each.severity == "error" else each for each in found]


def _naming(pool: OtherFile) -> dict[str, Any]:
    """The smallest configuration that names the file."""
    value = pool.value or {}
    switch = {"backend": backend_of(value), "configPath": str(pool.path)}
    words = "prefix_cache,kv_pool" if SECTION in value else "prefix_cache"
    model = {"plugin_params": f'{{"plugin_type":"{words}"}}'}
    return {"BackendConfig": {"kvPoolConfig": switch, "ModelDeployConfig": {"ModelConfig": [model]}}}


def _at_home(finding: Finding) -> Finding:
    """The finding where it is, not where a configuration names the file."""
    place = finding.place
    if place is None:
        return replace(finding, path="")
    line, column = place.line, place.column
    return replace(finding, path=place.pointer, line=line, column=column, length=place.length, place=None)
