"""Counters as Prometheus reads them: served over HTTP, or written to a file for node_exporter's textfile collector.

The only module that knows ``prometheus_client``; imported when metrics are on.  Nothing is prepared in advance: a
scrape reads the counters when it comes, on a thread of the HTTP server.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import (
    Metric as Family,
)
from prometheus_client.registry import Collector

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.observability.counters import Histogram
from mindie_kvpool_plugin.observability.metrics import INFO, METRICS, PART_LABELS, STARTED, Metric
from mindie_kvpool_plugin.observability.part import Part

MAX_PORTS = 64
"""Tried one after the other: more ranks and services than one machine has."""

STALE_S = 300.0
"""A file this old is that of a process that is gone; those that live write every ``observer.FILE_INTERVAL_S``."""

Parts = Callable[[], Iterable[Part]]


class PartsCollector(Collector):
    """Everything that is observed in this process, at the moment of a scrape."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def collect(self) -> Iterator[Family]:
        """One family per metric, with the samples of all parts that have it."""
        parts = tuple(self._parts())
        for metric in METRICS:
            having = [part for part in parts if part.identity.role in metric.roles]
            if having:
                yield _family(metric, having)


def _family(metric: Metric, parts: Iterable[Part]) -> Family:
    names = (*PART_LABELS, *metric.labels)
    if metric.kind == "histogram":
        histograms = HistogramMetricFamily(metric.name, metric.en, labels=names)
        for part in parts:
            for labels, value in metric.samples(part.counters):
                assert isinstance(value, Histogram)  # noqa: S101 - a mistake in the table, which a test would find
                histograms.add_metric((*_labels(part), *labels), list(_buckets(value)), value.total)
        return histograms
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.en, labels=names)
    for part in parts:
        for labels, number in _numbers(metric, part):
            family.add_metric((*_labels(part), *labels), number)
    return family


def _numbers(metric: Metric, part: Part) -> Iterator[tuple[tuple[str, ...], float]]:
    identity = part.identity
    if metric is INFO:
        yield (identity.model, identity.backend, identity.namespace, __version__, str(os.getpid())), 1.0
    elif metric is STARTED:
        yield (), part.started_s
    else:
        for labels, value in metric.samples(part.counters):
            assert not isinstance(value, Histogram)  # noqa: S101 - see above
            yield labels, float(value)


def _labels(part: Part) -> tuple[str, ...]:
    return part.identity.role, part.label, str(part.identity.dp_rank)


def _buckets(histogram: Histogram) -> Iterator[tuple[str, float]]:
    up_to = 0
    for bound, count in zip((*histogram.bounds, float("inf")), tuple(histogram.counts), strict=True):
        up_to += count
        yield "+Inf" if bound == float("inf") else repr(float(bound)), up_to


def registry_of(parts: Parts) -> CollectorRegistry:
    """A registry of our own: what else the process measures is not ours to expose."""
    registry = CollectorRegistry()
    registry.register(PartsCollector(parts))
    return registry


class MetricsServer:
    """Serves metrics over HTTP, on a thread of its own.

    Args:
        host: address to listen at.
        first_port: the first port tried.
        parts: what is observed.

    Attributes:
        address: where it serves, ``host:port``.

    Raises:
        OSError: none of the ports can be had.
    """

    def __init__(self, host: str, first_port: int, parts: Parts) -> None:
        registry = registry_of(parts)
        for port in range(first_port, min(first_port + MAX_PORTS, 65536)):
            try:
                self._server, thread = start_http_server(port, host, registry)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            thread.name = "kvpool-metrics"
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            return
        raise OSError(errno.EADDRINUSE, f"ports {first_port} to {first_port + MAX_PORTS - 1} are all taken")

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()

    def abandon(self) -> None:
        """In a forked child, which has no such thread: let go of the parent's port."""
        self._server.socket.close()


class MetricsFile:
    """Metrics as a text file that is replaced as a whole.

    Args:
        folder: where to; it must be there.
        parts: what is observed.

    Attributes:
        path: the file, one per process.
    """

    def __init__(self, folder: str, parts: Parts) -> None:
        self.path = Path(folder) / f"mindie_kvpool_{os.getpid()}.prom"
        self._registry = registry_of(parts)

    def write(self) -> None:
        """Write what is counted now.

        Raises:
            OSError: it cannot be written.
        """
        born = self.path.with_name(f".{self.path.name}.new")
        born.write_bytes(generate_latest(self._registry))
        born.chmod(0o644)  # node_exporter runs as another user
        born.replace(self.path)
        self._remove_stale()

    def remove(self) -> None:
        """The process goes."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _remove_stale(self) -> None:
        now = time.time()
        for path in self.path.parent.glob("mindie_kvpool_*.prom"):
            with contextlib.suppress(OSError):
                if now - path.stat().st_mtime > STALE_S:
                    path.unlink()
