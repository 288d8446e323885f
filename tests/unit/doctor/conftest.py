"""Deployments to examine: files, and real masters and pools behind them."""

import json
import os
import subprocess
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.check.pipeline import check_file
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.doctor import (
    capacity,
    child,
    flags,
    meeting,
    memcache,
    metrics,
    presence,
    processes,
    software,
    transfer,
)
from mindie_kvpool_plugin.doctor import master as master_probes
from mindie_kvpool_plugin.doctor.acceptance import prompts, ranks, running, service, trial
from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.examine import examine
from mindie_kvpool_plugin.doctor.table import PROBES
from mindie_kvpool_plugin.pools.mooncake.admin import Admin
from tests.conftest import HOST, mooncake_keys
from tests.unit.pools.mooncake.conftest import run_child  # noqa: F401 - a fixture

PATIENT_S = 120.0
"""For whoever answers or ends by itself: a child that imports everything takes tens of seconds on a busy machine."""

# a holder that stands still for the length of a test is not forgotten
SETTLED_FLAGS = ("--eviction_high_watermark_ratio=0.95", "--eviction_ratio=0.02", "--client_ttl=14")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Who is well has all the time; limits that are about who is not are those of the product, or of a test."""
    for module, names in {
        software: ("LOADER_TIMEOUT_S", "IMPORT_TIMEOUT_S"),
        master_probes: ("CLIENT_TIMEOUT_S",),
        presence: ("TIMEOUT_S",),
        flags: ("TIMEOUT_S",),
        metrics: ("HTTP_TIMEOUT_S",),
        memcache: ("HTTP_TIMEOUT_S", "CLIENT_TIMEOUT_S"),
        meeting: ("CONNECT_TIMEOUT_S",),
        transfer: ("TRIAL_TIMEOUT_S", "CLEANING_TIMEOUT_S"),
        running: ("ASK_TIMEOUT_S", "DRAIN_S"),
        service: ("CONNECT_TIMEOUT_S",),
        ranks: ("LOOKUP_TIMEOUT_S",),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, PATIENT_S)
    for module in (trial, prompts):
        monkeypatch.setattr(module, "CLEANING_S", PATIENT_S)
    monkeypatch.setattr(master_probes, "HTTP_TIMEOUT_S", 5.0)  # some ports say nothing: a test waits for it
    monkeypatch.setattr(capacity, "ANSWER_TIMEOUT_S", 5.0)  # some holders stand still: each test waits for it


@pytest.fixture
def hurried(monkeypatch):
    """Makes the time of a child be over when something holds for its process, and not before; the limits they had."""

    def when(is_over):
        limits = []

        class Hurried(subprocess.Popen):
            def communicate(self, asked=None, timeout=None):
                limits.append(timeout)
                while True:
                    try:
                        return super().communicate(asked, None if timeout is None else 0.1)
                    except subprocess.TimeoutExpired:
                        if is_over(self):
                            raise
                        asked = None

        names = {"PIPE": subprocess.PIPE, "TimeoutExpired": subprocess.TimeoutExpired}
        monkeypatch.setattr(child, "subprocess", SimpleNamespace(Popen=Hurried, **names))
        return limits

    return when


@pytest.fixture
def pool_path(tmp_path):
    """Writes a pool file and says where."""

    def write(content, mode=0o640):
        path = tmp_path / "kv_pool.json"
        path.write_text(json.dumps({"kv_pool": {}, **content}), encoding="utf-8")
        os.chmod(path, mode)
        return path

    return write


@pytest.fixture
def pool_path_of(pool_path):
    """A pool file for a master."""
    return lambda master, **more: pool_path(mooncake_keys(master, 32 << 20, **more))


def case_of(path, env=None, **more):
    """A case about a file, in this process's environment with changes."""
    environment = {**os.environ, **(env or {})}
    situation = Situation(env=environment, is_env_known=True, config_path=path)
    return Case(check_file(path, situation), environment, **{"timeout_s": 5 * PATIENT_S, **more})


def told(case, *names, began=lambda probe: None):
    """What some probes say, or all: lines by id, the last of each; ``began`` hears of each probe before it looks."""
    chosen = [probe for probe in PROBES if not names or probe.name in names]
    return {line.id: line for _, lines in examine(case, chosen, began) for line in lines}


UP_TO_CLIENT = ("pool_file", "address", "client")
LIVE = (*UP_TO_CLIENT, "admin", "flags", "history", "capacity", "transfer", "lease")


def is_answered(lines):
    """Quickly, or on a busy machine slowly."""
    return bool({"client.answers", "client.slow"} & set(lines))


def troubles(lines):
    return sorted(name for name, line in lines.items() if line.verdict == "trouble")


def state_of(master):
    """Keys and memory of a pool."""
    admin = Admin(HOST, master.metrics_port, PATIENT_S)
    return admin.metrics()["master_key_count"], sorted(segment.name for segment in admin.segments())


@pytest.fixture
def only_masters(monkeypatch):
    """Of all masters of this machine, which others may run, the doctor sees those of the test."""

    def see(*running):
        found = [each for each in processes.masters() if each.pid in {one.pid for one in running}]
        monkeypatch.setattr(master_probes, "masters", lambda: iter(found))

    return see
