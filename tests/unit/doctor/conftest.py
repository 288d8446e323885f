"""Deployments to examine: files, and real masters and pools behind them."""

import json
import os

import pytest

from mindie_kvpool_plugin.check.pipeline import check_file
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.doctor import master as master_probes
from mindie_kvpool_plugin.doctor import processes
from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.examine import examine
from mindie_kvpool_plugin.doctor.table import PROBES
from mindie_kvpool_plugin.pools.mooncake.admin import Admin
from tests.conftest import HOST, mooncake_keys
from tests.unit.pools.mooncake.conftest import run_child  # noqa: F401 - a fixture

# a holder that stands still for the length of a test is not forgotten
SETTLED_FLAGS = ("--eviction_high_watermark_ratio=0.95", "--eviction_ratio=0.02", "--client_ttl=14")


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
    return Case(check_file(path, situation), environment, **more)


def told(case, *names):
    """What some probes say, or all: lines by id, the last of each."""
    chosen = [probe for probe in PROBES if not names or probe.name in names]
    return {line.id: line for _, lines in examine(case, chosen) for line in lines}


UP_TO_CLIENT = ("pool_file", "address", "client")
LIVE = (*UP_TO_CLIENT, "admin", "flags", "history", "capacity", "transfer", "lease")


def is_answered(lines):
    """Quickly, or on a busy machine slowly."""
    return bool({"client.answers", "client.slow"} & set(lines))


def troubles(lines):
    return sorted(name for name, line in lines.items() if line.verdict == "trouble")


def state_of(master):
    """Keys and memory of a pool."""
    admin = Admin(HOST, master.metrics_port)
    return admin.metrics()["master_key_count"], sorted(segment.name for segment in admin.segments())


@pytest.fixture
def only_masters(monkeypatch):
    """Of all masters of this machine, which others may run, the doctor sees those of the test."""

    def see(*running):
        found = [each for each in processes.masters() if each.pid in {one.pid for one in running}]
        monkeypatch.setattr(master_probes, "masters", lambda: iter(found))

    return see
