"""What a process tells unasked: lines in the log, and its metrics over HTTP or as files.

Observer's thread, but for ``abandon``.  What cannot be had (the library, a port, a folder) is said once, and the
service goes on without.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.observability.part import Part
from mindie_kvpool_plugin.observability.report import Reporter

if TYPE_CHECKING:
    from mindie_kvpool_plugin.observability.exposition import MetricsFile, MetricsServer

FILE_INTERVAL_S = 15.0
"""Prometheus asks no more often by default."""

WATCH_S = 5.0
"""Between two looks of a part that watches for something; where none does, the thread sleeps on."""

SCHEDULER_PORTS_AFTER = 16
"""Ports of workers come first: a server has up to 16 devices."""


class Telling:
    """What one process tells.

    Args:
        parts: what is observed.

    Attributes:
        address: where metrics are served, if they are; a file's path, if they are written.
    """

    def __init__(self, parts: Callable[[], tuple[Part, ...]]) -> None:
        self.address: str | None = None
        self._parts = parts
        self._reporters: dict[Part, Reporter] = {}
        self._server: MetricsServer | None = None
        self._file: MetricsFile | None = None
        self._file_due_s = 0.0
        self._has_begun = False

    def tell(self) -> None:
        """Whatever is due now."""
        now_s = time.monotonic()
        parts = self._parts()
        self._begin(parts)
        self._reporters = {part: self._reporters.get(part) or Reporter(part, now_s) for part in parts}
        for reporter in self._reporters.values():
            if reporter.due_s <= now_s and (line := reporter.line(now_s)) is not None:
                logger.info("%s", line)
        if self._file is not None and self._file_due_s <= now_s:
            self._file_due_s = now_s + FILE_INTERVAL_S
            self._write(self._file)
        for part in parts:
            part.look()

    def sleep_s(self) -> float | None:
        """Seconds until something is due; None: nothing ever is."""
        due = [reporter.due_s for reporter in self._reporters.values()]
        if self._file is not None:
            due.append(self._file_due_s)
        if any(part.watch is not None for part in self._parts()):
            due.append(time.monotonic() + WATCH_S)
        next_s = min(due, default=float("inf"))
        return None if next_s == float("inf") else max(0.0, next_s - time.monotonic())

    def close(self) -> None:
        """Tell no more, and leave nothing."""
        if self._server is not None:
            self._server.close()
        if self._file is not None:
            self._file.remove()

    def abandon(self) -> None:
        """In a forked child: what is told is told by the parent."""
        if self._server is not None:
            self._server.abandon()

    def _begin(self, parts: tuple[Part, ...]) -> None:
        """With the first part that wants its metrics exposed; the others of its process follow it."""
        part = next((part for part in parts if part.settings.metrics != "off"), None)
        if part is None or self._has_begun:
            return
        self._has_begun = True
        how = part.settings.metrics
        try:
            from mindie_kvpool_plugin.observability import exposition  # noqa: PLC0415 - the library only if asked for
        except ImportError as error:
            logger.warning(
                "no metrics: kv_pool.metrics is %s and needs the Python package prometheus_client (%s); "
                'pip install "mindie-kvpool-plugin[ops]"',
                how,
                error,
            )
            return
        if how == "file":
            self._file = exposition.MetricsFile(part.settings.folder, self._parts)
            return
        host, port = part.settings.host, wanted_port(part)
        try:
            self._server = exposition.MetricsServer(host, port, self._parts)
        except OSError as error:
            logger.warning(
                "no metrics: cannot listen on kv_pool.metrics_host %s from port %d on: %s", host, port, error.strerror
            )
            return
        self.address = self._server.address
        logger.info("metrics are served at http://%s/metrics", self.address)

    def _write(self, file: MetricsFile) -> None:
        try:
            file.write()
        except OSError as error:
            self._file = None
            logger.warning("no metrics: cannot write %s (kv_pool.metrics_dir): %s", file.path, error.strerror)
            return
        if self.address is None:
            self.address = str(file.path)
            logger.info("metrics are written to %s every %.0f s", self.address, FILE_INTERVAL_S)


def wanted_port(part: Part) -> int:
    """The first port that is tried for a process of this part."""
    is_worker = part.identity.role == "worker"
    return part.settings.port + (part.identity.device if is_worker else SCHEDULER_PORTS_AFTER)
