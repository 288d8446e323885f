"""What a check knows beside the file: host version, environment, flags, and the machine it runs on."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mindie_kvpool_plugin.check.schema.profiles import DEFAULT_HOST_VERSION

# the host treats longer environment values as unset
MAX_ENV_BYTES = 256


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything a rule may ask for beside the configuration.

    Attributes:
        host_version: a key of ``schemas.HOST_VERSIONS``.
        env: the service's environment; None when it is not to be judged.
        is_env_known: the environment is the service's own, so a variable that is not there is unset.
        dies: NPU dies in the pool, all servers together; None when not told.
        scale_out: the pool may grow while it runs.
        follow: read the files that the configuration refers to.
        config_path: where the configuration lies; None for standard input.
        home: the MindIE-LLM installation; None when this machine has none that we can see.
        weight_config: ``config.json`` of the weights, given by hand.
        pool_file: the pool file, given by hand.
    """

    host_version: str = DEFAULT_HOST_VERSION
    env: Mapping[str, str] | None = None
    is_env_known: bool = False
    dies: int | None = None
    scale_out: bool = False
    follow: bool = True
    config_path: Path | None = None
    home: Path | None = None
    weight_config: Path | None = None
    pool_file: Path | None = None

    @property
    def on_server(self) -> bool:
        """Whether this machine is where the service starts, so that a missing file is a fault."""
        return self.home is not None

    def variable(self, name: str) -> str:
        """An environment variable as the host's C++ part sees it: empty when unset, not judged, or too long."""
        value = (self.env or {}).get(name, "")
        return value if len(value.encode("utf-8", "replace")) <= MAX_ENV_BYTES else ""


def find_home(env: Mapping[str, str] | None, config_path: Path | None) -> Path | None:
    """The installation: as the environment says, else the folder above ``conf/`` that holds the package."""
    for name in ("MINDIE_LLM_HOME_PATH", "MIES_INSTALL_PATH"):
        named = (env or {}).get(name, "")
        if (
            named
            and Path(named).is_dir()
            and (name != "MINDIE_LLM_HOME_PATH" or (Path(named) / "__init__.py").exists())
        ):
            return Path(named)
    if config_path is not None:
        folder = config_path.absolute().parent
        if folder.name == "conf" and (folder.parent / "__init__.py").is_file():
            return folder.parent
    return None


def default_config(env: Mapping[str, str] | None) -> Path | None:
    """Where the host would look for config.json when it is given no argument; None without an installation."""
    named = Situation(env=env).variable("MIES_CONFIG_JSON_PATH")
    if named:
        return Path(named)
    home = find_home(env, None)
    return home / "conf" / "config.json" if home is not None else None


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What the file system says about a path; all False when it cannot be reached."""

    exists: bool = False
    is_file: bool = False
    is_dir: bool = False
    is_link: bool = False
    is_readable: bool = False
    mode: int = 0
    owner: int = -1
    group: int = -1
    size: int = 0
    real_path: str = ""


@dataclass(slots=True)
class Disk:
    """Looks at paths, remembers what it saw; a test hands in the answers instead."""

    seen: dict[str, FileFacts] = field(default_factory=dict)

    def facts(self, path: str | Path) -> FileFacts:
        """Facts of one path; never raises."""
        key = str(path)
        if key not in self.seen:
            self.seen[key] = _look(key)
        return self.seen[key]


def _look(path: str) -> FileFacts:
    try:
        status = os.stat(path)
        is_link = os.path.islink(path)
    except (OSError, ValueError):
        return FileFacts()
    return FileFacts(
        exists=True,
        is_file=stat.S_ISREG(status.st_mode),
        is_dir=stat.S_ISDIR(status.st_mode),
        is_link=is_link,
        is_readable=os.access(path, os.R_OK),
        mode=stat.S_IMODE(status.st_mode),
        owner=status.st_uid,
        group=status.st_gid,
        size=status.st_size,
        real_path=os.path.realpath(path),
    )
