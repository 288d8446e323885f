"""From arguments to the files that are checked: files as they are named, directories by what is in them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from mindie_kvpool_plugin.check.messages import Refused, system_reason, words
from mindie_kvpool_plugin.check.pipeline import read_limited
from mindie_kvpool_plugin.check.pool_alone import is_pool_object
from mindie_kvpool_plugin.check.text.load import MAX_BYTES
from mindie_kvpool_plugin.cli.speaking import chosen_language


class Named(click.Path):
    """A path that a command is about; an unset variable of the shell names none, where ``Path("")`` is the folder.

    Whether it can be read is found out by reading it.
    """

    def __init__(self, path_type: type[Any]) -> None:
        super().__init__(readable=False, path_type=path_type)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click does."""
        if not str(value):
            self.fail(words("target.unnamed", chosen_language("auto")), param, ctx)
        return super().convert(value, param, ctx)


_SECTIONS = ("ServerConfig", "BackendConfig")
# what a broken file must hold to be taken for one of ours
_SECTION = re.compile(rb'"(?:ServerConfig|BackendConfig)"')
_TRACES = re.compile(rb'"(?:ServerConfig|BackendConfig|kvPoolConfig|master_server_address|kv_pool)"')


def find_targets(arguments: Iterable[str]) -> list[str]:
    """The files to check, each once, in the order named; those of a directory sorted.

    Raises:
        Refused: a directory cannot be read.
    """
    found = [name for argument in arguments for name in _files(argument)]
    return list(dict.fromkeys(found))


def find_config(argument: Path) -> Path:
    """The file meant by a command's CONFIG: it, or what a folder holds: its configuration, or else its pool file.

    Raises:
        Refused: nothing or several lie there, or it cannot be read.
    """
    files = [Path(name) for name in find_targets([str(argument)])]
    configs = [path for path in files if os.path.isdir(argument) and _SECTION.search(_bytes(path))] or files
    if len(configs) != 1:
        named = ", ".join(map(str, configs))
        raise Refused("target.several_files" if configs else "target.none", folder=argument, files=named)
    _bytes(configs[0])
    return configs[0]


def _bytes(path: Path) -> bytes:
    try:
        return read_limited(path)
    except OSError as error:
        raise Refused("target.unreadable", file=path, reason=system_reason(error)) from error


def _files(argument: str) -> Iterable[str]:
    return _inside(argument) if os.path.isdir(argument) else [argument]


def _inside(folder: str) -> Iterator[str]:
    """Configurations and pool files below ``folder``, known by their content; hidden folders are left out."""

    def refuse(error: OSError) -> None:
        if error.filename == folder:
            raise Refused("target.unreadable", file=folder, reason=system_reason(error))

    for above, folders, names in os.walk(folder, onerror=refuse):
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
