"""One examination: the files it is about, how long it may take, and what earlier probes found out for later ones."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mindie_kvpool_plugin.check.follow import follow
from mindie_kvpool_plugin.check.pipeline import CheckReport
from mindie_kvpool_plugin.check.pool_alone import backend_of
from mindie_kvpool_plugin.check.rules.view import View, section
from mindie_kvpool_plugin.check.situation import Disk
from mindie_kvpool_plugin.doctor.processes import MasterProcess
from mindie_kvpool_plugin.options.pool_file import PoolFile
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.admin import Segment


@dataclass(slots=True)
class Case:
    """What probes are given, and where they leave what others need.

    Attributes:
        report: what the check says about the file.
        env: the environment.
        user: the service's user, by name; "" for whoever runs this.
        metrics_port: of the master's HTTP server; None when it was not told.
        device: an NPU that is free for a trial; None when none was named.
        timeout_s: for everything together.
        root: where this machine's files are; a test has its own.
        began_s: monotonic time.
        pool_file: as start-up reads it; None until it was read.
        mooncake: its own keys likewise.
        process: the master, if it is a process of this machine that we can see.
        metrics: the master's figures.
        segments: memory of the pool; None when unknown.
        metrics_addresses: ``host:port`` at which processes of this pool file serve their metrics.
        client_ping_s: a question to the master, median; 0 until asked.
        bytes_per_s: how fast one object came back; 0 until tried.
    """

    report: CheckReport
    env: Mapping[str, str]
    user: str = ""
    metrics_port: int | None = None
    device: int | None = None
    timeout_s: float = 60.0
    root: Path = Path("/")
    began_s: float = field(default_factory=time.monotonic)
    pool_file: PoolFile | None = None
    mooncake: MooncakeOptions | None = None
    process: MasterProcess | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    segments: list[Segment] | None = None
    metrics_addresses: list[str] = field(default_factory=list)
    client_ping_s: float = 0.0
    bytes_per_s: float = 0.0
    _view: View | None = None

    @property
    def view(self) -> View:
        """The configuration by its sections; empty ones for a pool file without a configuration."""
        if self._view is None:
            root = {} if self.report.is_pool_file else self.report.document.value
            self._view = View(root, self.report.situation, follow(root, self.report.situation, Disk()))
        return self._view

    @property
    def pool_path(self) -> Path | None:
        """The pool file; None when the configuration names none."""
        if self.report.is_pool_file:
            return self.report.situation.config_path
        return self.report.pool.path if self.report.pool is not None else None

    @property
    def backend(self) -> str:
        """As the configuration names it; of a pool file alone, by its keys."""
        if self.report.is_pool_file:
            return backend_of(section(self.report.document.value))
        named = section(self.report.document.value, "BackendConfig", "kvPoolConfig").get("backend")
        return named if isinstance(named, str) else ""

    @property
    def devices(self) -> list[int]:
        """The NPUs of this machine's ranks, as the configuration lists them; none where it does not."""
        lists = self.view.backend.get("npuDeviceIds")
        inner = [each for each in lists if isinstance(each, list)] if isinstance(lists, list) else []
        return sorted({number for each in inner for number in each if isinstance(number, int) and number >= 0})

    @property
    def namespace(self) -> str:
        """The first part of every key."""
        options = self.pool_file.options if self.pool_file is not None else None
        return options.namespace if options is not None else "default"

    @property
    def is_time_up(self) -> bool:
        """Whether nothing more may be begun."""
        return time.monotonic() >= self.began_s + self.timeout_s

    def left_s(self, at_most: float) -> float:
        """Seconds that a probe may still take."""
        return max(0.1, min(at_most, self.began_s + self.timeout_s - time.monotonic()))
