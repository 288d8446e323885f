"""From arguments to the files that are checked: files as they are named, directories by what is in them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mindie_kvpool_plugin.check.pool_alone import is_pool_object
from mindie_kvpool_plugin.check.text.load import MAX_BYTES

_SECTIONS = ("ServerConfig", "BackendConfig")
# what a broken file must hold to be taken for one of ours
_TRACES = re.compile(rb'"(?:ServerConfig|BackendConfig|kvPoolConfig|master_server_address|kv_pool)"')


def find_targets(arguments: Iterable[str]) -> list[str]:
    """The files to check, each once, in the order named; those of a directory sorted."""
    found = [name for argument in arguments for name in _files(argument)]
    return list(dict.fromkeys(found))


def _files(argument: str) -> Iterable[str]:
    return _inside(argument) if Path(argument).is_dir() else [argument]


def _inside(folder: str) -> Iterator[str]:
    """Configurations and pool files below ``folder``, known by their content; hidden folders are left out."""
    for above, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [os.path.normpath(os.path.join(above, name)) for name in sorted(names) if name.endswith(".json")]
        yield from (path for path in paths if _is_ours(Path(path)))


def _is_ours(path: Path) -> bool:
    try:
        # a pipe would be waited for
        data = path.read_bytes() if path.is_file() and path.stat().st_size <= MAX_BYTES else b""
    except OSError:
        return False
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return bool(_TRACES.search(data))
    return isinstance(value, dict) and (any(section in value for section in _SECTIONS) or is_pool_object(value))
