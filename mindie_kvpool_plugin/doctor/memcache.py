"""Probes of MemCache's services: its configuration, the ports, the meta service's health."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.child import run_child
from mindie_kvpool_plugin.doctor.lines import Line, absent, good, note, trouble
from mindie_kvpool_plugin.errors import ConfigError, PoolError
from mindie_kvpool_plugin.options.memcache import META_URL, LocalConfig
from mindie_kvpool_plugin.options.pool_file import build
from mindie_kvpool_plugin.options.records import MemcacheOptions
from mindie_kvpool_plugin.pools.memcache.start import config_file, probe_services

METRICS_PORT = 8000  # ock.mmc.meta_service.metrics_url, which stands in the service's own file
HTTP_TIMEOUT_S = 1.0
PINGS = 20
CLIENT_TIMEOUT_S = 15.0
TRIAL = "mindie_kvpool_plugin.doctor.memcache_trial"


def memcache(case: Case) -> Iterator[Line]:
    """What can be asked without a device: MemCache moves bytes only on a machine with an Ascend driver."""
    config = _config(case)
    if isinstance(config, ConfigError):
        yield trouble("memcache.config", error=config)
        return
    path, local = config
    began = time.monotonic()
    try:
        probe_services(local, path)
    except PoolError as error:
        yield trouble("memcache.unreachable", error=error)
        return
    services = ", ".join(f"{host}:{port}" for _, host, port in local.services)
    yield good("memcache.reached", services=services, milliseconds=f"{(time.monotonic() - began) * 1000:.2f}")
    yield _health(next(host for key, host, _ in local.services if key == META_URL))
    yield _answers(case)
    yield note("memcache.no_transfer")


def _answers(case: Case) -> Line:
    """A lookup of the scheduler's kind."""
    options = _options(case)
    question = {"config_path": options.config_path, "place": str(case.pool_path), "pings": PINGS}
    limit_s = case.left_s(CLIENT_TIMEOUT_S)
    asked = {**question, "budget_s": min(options.open_timeout_s, 0.8 * limit_s)}
    told = run_child(TRIAL, asked, limit_s, case.env)
    pinged, refused = told.step("pinged"), told.step("refused")
    if refused is not None:
        return trouble("memcache.refused", error=PoolError(refused["error"]))
    if pinged is None or pinged["code"] < 0:
        return trouble("memcache.died", ending=told.ending or "-")
    return good("memcache.answers", milliseconds=f"{pinged['seconds'] * 1000:.2f}", times=PINGS)


def _config(case: Case) -> tuple[str, LocalConfig] | ConfigError:
    try:
        return config_file(_options(case), str(case.pool_path))
    except ConfigError as error:
        return error


def _options(case: Case) -> MemcacheOptions:
    keys = case.pool_file.backend_keys if case.pool_file is not None else {}
    return build(MemcacheOptions, keys, str(case.pool_path), strict=False)


def _health(host: str) -> Line:
    """Over HTTP, if its server is where it is by default; ``urllib`` would wait for it to close the connection."""
    connection = http.client.HTTPConnection(host, METRICS_PORT, timeout=HTTP_TIMEOUT_S)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        status = connection.getresponse().status
        if status == http.client.OK:
            return good("memcache.healthy", host=host, port=METRICS_PORT)
        return trouble("memcache.unhealthy", host=host, port=METRICS_PORT, status=status)
    return absent("memcache.no_http", host=host, port=METRICS_PORT)
