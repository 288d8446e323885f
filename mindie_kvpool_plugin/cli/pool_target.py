"""From a command's argument CONFIG to the pool file that is meant: one by itself, or the one a config.json names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check.follow import KV_POOL, follow
from mindie_kvpool_plugin.check.messages import Refused, system_reason
from mindie_kvpool_plugin.check.pipeline import read_limited
from mindie_kvpool_plugin.check.pool_alone import backend_of, is_pool_object
from mindie_kvpool_plugin.check.situation import Disk, Situation, find_home
from mindie_kvpool_plugin.cli.targets import find_targets
from mindie_kvpool_plugin.options.pool_file import PoolFile, build, parse, read_pool_file
from mindie_kvpool_plugin.options.records import MooncakeOptions


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """What CONFIG leads to.

    Attributes:
        pool_file: as the running plugin reads it.
        backend: "mooncake" or "memcache", as ``kvPoolConfig`` or the file's own keys say.
        config: the config.json that names it; None for a pool file by itself.
    """

    pool_file: PoolFile
    backend: str
    config: Path | None = None

    def mooncake(self) -> MooncakeOptions:
        """Mooncake's own keys.

        Raises:
            Refused: the pool is another one's.
            ConfigError: an option cannot work.
        """
        path = str(self.pool_file.path)
        if self.backend != "mooncake":
            raise Refused("target.other_backend", file=path, backend=self.backend)
        return build(MooncakeOptions, self.pool_file.backend_keys, path, strict=False)


def find_pool(argument: str, env: Mapping[str, str]) -> PoolTarget:
    """The pool file meant by CONFIG: a pool file, a config.json that names one, or a folder that holds either.

    Raises:
        Refused: nothing, several, or something else lies there.
        ConfigError: the pool file cannot be read.
    """
    if not os.path.isdir(argument):
        return _in_file(Path(argument), env)
    targets = [_in_file(Path(name), env) for name in find_targets([argument])]
    found = {os.path.realpath(each.pool_file.path): each for each in targets}
    if len(found) != 1:
        raise Refused("target.several" if found else "target.none", folder=argument, files=", ".join(sorted(found)))
    return next(iter(found.values()))


def _in_file(path: Path, env: Mapping[str, str]) -> PoolTarget:
    try:
        data = read_limited(path)
    except OSError as error:
        raise Refused("target.unreadable", file=str(path), reason=system_reason(error)) from error
    if b"ock.mmc." in data and data.lstrip()[:1] != b"{":
        raise Refused("target.other_backend", file=str(path), backend="memcache")
    try:
        value = parse(data)
    except (ValueError, RecursionError) as error:
        raise Refused("target.no_json", file=str(path)) from error
    if is_pool_object(value):
        return PoolTarget(read_pool_file(str(path)), backend_of(value))
    return _named_by(value, path, env)


def _named_by(root: Any, path: Path, env: Mapping[str, str]) -> PoolTarget:
    situation = Situation(env=env, config_path=path, home=find_home(env, path))
    pool = follow(root, situation, Disk()).pool
    if pool is None:
        raise Refused("target.names_none", file=str(path))
    if not pool.facts.is_file:
        raise Refused("target.missing", file=str(path), pool=str(pool.path))
    switch = root[KV_POOL[0]][KV_POOL[1]]
    return PoolTarget(read_pool_file(str(pool.path)), str(switch["backend"]), path)
