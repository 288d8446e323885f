"""Where metrics go: ports that are free, somebody's, or this plugin's own; or a folder."""

import socket

import pytest

from mindie_kvpool_plugin.doctor import metrics as probes
from mindie_kvpool_plugin.observability import observer, run_directory
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity, Settings
from mindie_kvpool_plugin.observability.telling import SCHEDULER_PORTS_AFTER
from tests.conftest import HOST, free_port, wait_until
from tests.unit.doctor.conftest import case_of, told, troubles


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """A run directory of the test's own."""
    monkeypatch.setenv(run_directory.VARIABLE, str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def metrics(pool_path, alone):
    """What is said of metrics with these options."""

    def ask(**options):
        keys = {"local_hostname": HOST, "master_server_address": f"{HOST}:1", "kv_pool": options}
        return told(case_of(pool_path(keys)), "pool_file", "presence", "metrics")

    return ask


def test_metrics_that_are_off_need_nothing(metrics):
    """Not here, not failed."""
    assert metrics()["metrics.off"].verdict == "absent"


def test_free_ports_are_good(metrics):
    """Those of the first worker and of the scheduler."""
    port = free_port()
    assert metrics(metrics="http", metrics_port=port)["metrics.free"].params["ports"].startswith(str(port))


@pytest.mark.parametrize("after", [0, SCHEDULER_PORTS_AFTER])
def test_a_port_of_another_service_is_a_warning(metrics, after):
    """The next free one is taken instead, and somebody looks for the metrics there."""
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        lines = metrics(metrics="http", metrics_port=port - after)
    assert str(port) in lines["metrics.taken"].params["ports"].split(", ")


def test_ports_of_this_plugin_are_good(metrics, pool_path, alone):
    """Who serves there is asked."""
    port = free_port()
    path = pool_path({})
    settings = Settings(metrics="http", host=HOST, port=port)
    part = observer.observe(Identity("worker", pool_file=str(path)), Counters(), settings)
    try:
        wait_until(lambda: list(alone.glob("*.sock")), 30, "the socket")
        wait_until(lambda: observer.process_facts()["metrics_address"], 30, "the server")
        lines = metrics(metrics="http", metrics_port=port)
        assert lines["metrics.served"].params["address"] == f"{HOST}:{port}"
        assert str(port) not in lines["metrics.free"].params["ports"].split(", ")
    finally:
        part.forget()


def test_an_address_of_another_machine_is_trouble(metrics):
    """Nobody could listen there."""
    assert troubles(metrics(metrics="http", metrics_host="192.0.2.1")) == ["metrics.no_address"]


@pytest.mark.parametrize(("name", "expected"), [("there", "metrics.folder"), ("missing", "metrics.no_folder")])
def test_files_need_a_folder(metrics, tmp_path, name, expected):
    """One that is there."""
    (tmp_path / "there").mkdir()
    assert expected in metrics(metrics="file", metrics_dir=str(tmp_path / name))


def test_the_library_is_missed_only_where_metrics_are_wanted(metrics, monkeypatch):
    """The service runs without."""
    monkeypatch.setattr(probes, "version_of", lambda name: "")
    assert metrics(metrics="http", metrics_port=free_port())["metrics.no_library"].verdict == "warning"
    assert "metrics.no_library" not in metrics()
