"""A pool, a service on the simulated host beside it, and cases about them."""

import json
import os

import pytest

from mindie_kvpool_plugin.check.pipeline import check_file
from mindie_kvpool_plugin.check.situation import Situation
from mindie_kvpool_plugin.doctor.acceptance.table import ACCEPTANCE
from mindie_kvpool_plugin.doctor.acceptance.trial import Trial
from mindie_kvpool_plugin.doctor.examine import examine
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests.conftest import free_port, mooncake_keys
from tests.standin_service import standing_in, write_config
from tests.unit.doctor.conftest import PATIENT_S, SETTLED_FLAGS
from tests.unit.pools.mooncake.conftest import patience


def write_pool(folder, master, options=None, **more):
    """A pool file for a master; the simulated device computes faster than anything is loaded or stored."""
    path = folder / "kv_pool.json"
    patient = {"lookup_budget_s": PATIENT_S, "breaker_slow_call_s": PATIENT_S, "agreement_timeout_s": PATIENT_S}
    section = {"reload_budget_ms": 60_000, **patient, **(options or {"load": "always"})}
    path.write_text(json.dumps({**mooncake_keys(master, 32 << 20, **more), "kv_pool": section}), encoding="utf-8")
    path.chmod(0o640)
    return path


def trial_of(config, env=None, **more):
    """A case about a configuration, in this process's environment with changes."""
    environment = {**os.environ, **(env or {})}
    situation = Situation(env=environment, is_env_known=True, config_path=config)
    return Trial(check_file(config, situation), environment, **{"timeout_s": 10 * PATIENT_S, **more})


def told(case, *names):
    """What some probes say: lines by id, of several with one id a list."""
    lines = [line for _, each in examine(case, [p for p in ACCEPTANCE if p.name in names]) for line in each]
    return {name: [line for line in lines if line.id == name] for name in dict.fromkeys(line.id for line in lines)}


def troubles(lines):
    return sorted(name for name, each in lines.items() if each[0].verdict == "trouble")


@pytest.fixture(scope="module", autouse=True)
def unhurried():
    """Ranks of this process have patience."""
    with patience():
        yield


@pytest.fixture(scope="module")
def settled():
    """A master with the advised flags."""
    with MooncakeMaster(*SETTLED_FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def service(settled, tmp_path_factory):
    """A service of two ranks, whose memory is the pool."""
    with standing_in(write_pool(tmp_path_factory.mktemp("pool"), settled)) as running:
        yield running


@pytest.fixture
def beside(service, tmp_path):
    """A case about the service; ``more`` is the case's."""
    service.spoil = lambda answer, times: answer

    def make(devices=(0, 1), **more):
        config = write_config(tmp_path, service.engine.config.pool_file, service.port, devices)
        return trial_of(config, **more)

    yield make
    service.spoil = lambda answer, times: answer


@pytest.fixture
def alone(settled, tmp_path):
    """A case without a service: nobody listens, and nobody gives memory."""

    def make(master=settled, devices=(0, 1), env=None, **more):
        config = write_config(tmp_path, write_pool(tmp_path, master), free_port(), devices)
        return trial_of(config, env, **more)

    return make
