"""Masters that run on this machine, as ``/proc`` shows them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mindie_kvpool_plugin.host import process_stat
from mindie_kvpool_plugin.pools.mooncake.address import listening_ports
from mindie_kvpool_plugin.pools.mooncake.start import installed_wheels
from mindie_kvpool_plugin.services.master import PROGRAM
from mindie_kvpool_plugin.services.master_flags import given


@dataclass(frozen=True, slots=True)
class MasterProcess:
    """A running ``mooncake_master``.

    Attributes:
        pid: its process.
        flags: as it was started, of its configuration file and of the command line, which wins.
        ports: TCP ports it listens on; none if it is another user's.
        age_s: since it was started.
        version: of the wheel that its program lies in; "" if it lies in none.
    """

    pid: int
    flags: Mapping[str, str]
    ports: frozenset[int]
    age_s: float
    version: str

    def listens_on(self, port: int) -> bool:
        """Whether the port is its service's, as far as one can see."""
        return port in self.ports if self.ports else port == self.service_port

    @property
    def service_port(self) -> int | None:
        """Where clients reach it, if the flags say so."""
        named = self.flags.get("rpc_port") or self.flags.get("port", "50051")
        return int(named) if named.isdecimal() else None


def masters() -> Iterator[MasterProcess]:
    """Every master of this machine that this user may look at."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            command = _command(int(entry))
            if command and os.path.basename(command[0]) == PROGRAM:
                pid = int(entry)
                yield MasterProcess(pid, flags_of(command), listening_ports(pid), _age_s(pid), _version(pid))


def flags_of(command: Sequence[str]) -> dict[str, str]:
    """The flags of a command line, over those of the file that it names."""
    found = given(command[1:])
    return {**_file_flags(found.get("config_path", "")), **found}


def _file_flags(path: str) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(Path(path).read_text(encoding="utf-8")) if path.endswith(".json") else {}
        return {name: str(value) for name, value in content.items()} if isinstance(content, dict) else {}
    return {}


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    return []


def _age_s(pid: int) -> float:
    """Since the process was started; 0 of one that is gone."""
    found = process_stat.fields(pid)[process_stat.STARTED :]
    if not found:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(found[0]) / os.sysconf("SC_CLK_TCK"))


def _version(pid: int) -> str:
    """Of the wheel beside the program; it is not run to ask."""
    with contextlib.suppress(OSError):
        packages = Path(os.readlink(f"/proc/{pid}/exe")).parent.parent
        return next(iter(installed_wheels(str(packages)).values()), "")
    return ""
