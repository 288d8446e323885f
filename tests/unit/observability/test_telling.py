"""Metrics are exposed as asked, or one line says why not; the service goes on either way."""

import logging
import os
import socket
import stat
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mindie_kvpool_plugin import observability
from mindie_kvpool_plugin.observability import observer, telling
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity, Settings
from mindie_kvpool_plugin.observability.metrics import METRICS
from tests.conftest import free_port, wait_until

START_S = 30.0
LOOPBACK = "127.0.0.1"


@pytest.fixture
def seen(caplog, monkeypatch):
    monkeypatch.setattr(telling.logger, "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


@pytest.fixture
def observed(seen):
    """Observes parts until the test ends; waits until there is an address or a warning."""
    made = []

    def observe(role="worker", counters=None, expected=None, **settings):
        identity = Identity(role, rank=2, device=3, model="m", backend="mooncake", namespace="ours")
        part = observer.observe(identity, counters or Counters(), Settings(**settings))
        made.append(part)
        if expected is not None:
            wait_until(lambda: expected in seen.text, START_S, expected)
        return part

    yield observe
    for part in made:
        part.forget()


def address():
    return observer.process_facts()["metrics_address"]


def scraped(where):
    """Sample name and labels -> value."""
    with urllib.request.urlopen(f"http://{where}/metrics", timeout=10) as answer:
        return read(answer.read().decode())


def read(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def labelled(**labels):
    return tuple(sorted({"role": "worker", "rank": "2", "dp_rank": "0", **labels}.items()))


def filled():
    counters = Counters(spilled_blocks=5, dropped_queue_full=2, saved_seconds=1.5)
    counters.pool_errors["get", "-704"] = 4
    for seconds in (0.0001, 0.003, 1000.0):
        counters.reload_seconds.add(seconds)
    return counters


@pytest.fixture
def port():
    """A base port from which device 3 finds its own free."""
    return free_port() - 3


def test_a_scrape_reads_the_counters_as_they_are(observed, port):
    """Plain, labelled, and histograms; a negative balance stays negative."""
    part = observed(counters=filled(), metrics="http", port=port, expected="metrics are served")
    assert address() == f"{LOOPBACK}:{port + 3}"
    found = scraped(address())
    assert found["mindie_kvpool_spilled_blocks_total", labelled()] == 5
    assert found["mindie_kvpool_dropped_blocks_total", labelled(reason="queue_full")] == 2
    assert found["mindie_kvpool_pool_errors_total", labelled(call="get", code="-704")] == 4
    assert found["mindie_kvpool_net_seconds", labelled()] == pytest.approx(1.5 - 1000.0031)
    assert found["mindie_kvpool_reload_seconds_bucket", labelled(le="0.0001")] == 1
    assert found["mindie_kvpool_reload_seconds_bucket", labelled(le="0.005")] == 2
    assert found["mindie_kvpool_reload_seconds_bucket", labelled(le="+Inf")] == 3
    assert found["mindie_kvpool_reload_seconds_count", labelled()] == 3
    part.counters.spilled_blocks += 1
    assert scraped(address())["mindie_kvpool_spilled_blocks_total", labelled()] == 6


def test_every_metric_of_a_role_is_exposed_with_its_meaning(observed, port):
    """And none of another role."""
    observed("scheduler", metrics="http", port=port, expected="metrics are served")
    with urllib.request.urlopen(f"http://{address()}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    of_role = [metric for metric in METRICS if "scheduler" in metric.roles]
    assert {(f.name, f.type) for f in families} == {(m.name.removesuffix("_total"), m.kind) for m in of_role}
    assert {f.documentation for f in families} == {metric.en for metric in of_role}


def test_ranks_of_one_process_share_a_port(observed, port):
    """Their samples differ by label."""
    for spilled in (1, 2):
        observed(counters=Counters(spilled_blocks=spilled), metrics="http", port=port, expected="metrics are served")
    found = scraped(address())
    assert found["mindie_kvpool_spilled_blocks_total", labelled()] == 1
    assert found["mindie_kvpool_spilled_blocks_total", labelled(rank="2-2")] == 2


def test_a_taken_port_is_passed_over(observed, port, seen):
    """Another service's, or another rank's; the log says which it became."""
    with socket.socket() as taken:
        taken.bind((LOOPBACK, port + 3))
        taken.listen()
        observed(metrics="http", port=port, expected="metrics are served")
        host, _, found = address().rpartition(":")
        assert host == LOOPBACK
        assert int(found) > port + 3
        assert f"http://{address()}/metrics" in seen.text
        assert scraped(address())["mindie_kvpool_pool_open", labelled()] == 1


def test_ports_of_schedulers_come_after_those_of_workers(observed, port):
    """A server has up to 16 devices."""
    observed("scheduler", metrics="http", port=port, expected="metrics are served")
    assert int(address().rpartition(":")[2]) >= port + telling.SCHEDULER_PORTS_AFTER


def test_nothing_listens_when_the_last_part_is_forgotten(observed, port):
    """The port is free again."""
    observed(metrics="http", port=port, expected="metrics are served").forget()
    with socket.socket() as again:
        again.bind((LOOPBACK, port + 3))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"metrics": "http", "host": "192.0.2.1"}, "cannot listen on kv_pool.metrics_host 192.0.2.1 from port"),
        ({"metrics": "http", "host": "no.such.host.invalid"}, "cannot listen on kv_pool.metrics_host no.such.host"),
        ({"metrics": "file", "folder": "/nowhere/at/all"}, "cannot write /nowhere/at/all/mindie_kvpool_"),
    ],
)
def test_what_cannot_be_had_is_said_once(observed, seen, settings, told):
    """And whoever asks is answered."""
    observed(expected=told, **settings)
    assert [record.levelname for record in seen.records if "no metrics" in record.message] == ["WARNING"]
    assert address() is None


def test_no_free_port_is_said_once(observed, seen, port, monkeypatch):
    """With the ports that were tried."""
    from mindie_kvpool_plugin.observability import exposition

    monkeypatch.setattr(exposition, "MAX_PORTS", 1)
    with socket.socket() as taken:
        taken.bind((LOOPBACK, port + 3))
        taken.listen()
        observed(metrics="http", port=port, expected="are all taken")
    assert address() is None


def test_a_missing_library_is_said_once(observed, seen, monkeypatch):
    """With what to install."""
    monkeypatch.delattr(observability, "exposition", raising=False)
    monkeypatch.setitem(sys.modules, "mindie_kvpool_plugin.observability.exposition", None)
    observed(metrics="http", expected="mindie-kvpool-plugin[ops]")
    assert address() is None


def test_metrics_that_are_off_import_nothing():
    """No library, no port, no file."""
    code = """
import sys
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity
from mindie_kvpool_plugin.observability.observer import observe, process_facts
from mindie_kvpool_plugin.observability.questions import ask_all
observe(Identity("worker"), Counters())
while not ask_all({"ask": "stats"}):
    pass
assert process_facts()["metrics_address"] is None
assert not [name for name in sys.modules if name.startswith(("prometheus_client", "http.server"))]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_is_replaced_as_a_whole_and_readable_by_others(observed, tmp_path, monkeypatch):
    """By node_exporter, whatever the service's umask; nothing else is left in the folder, nor the file in the end."""
    stale, other = tmp_path / "mindie_kvpool_1.prom", tmp_path / "smartmon.prom"
    for path in (stale, other):
        path.write_text("")
        os.utime(path, (1, 1))
    monkeypatch.setattr(telling, "FILE_INTERVAL_S", 0.05)
    before = os.umask(0o077)
    try:
        part = observed(counters=filled(), metrics="file", folder=str(tmp_path), expected="metrics are written")
    finally:
        os.umask(before)
    file = tmp_path / f"mindie_kvpool_{os.getpid()}.prom"
    assert address() == str(file)
    assert {path for path in tmp_path.iterdir() if not path.name.startswith(".")} == {file, other}
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    spilled = "mindie_kvpool_spilled_blocks_total", labelled()
    assert read(file.read_text())[spilled] == 5
    part.counters.spilled_blocks = 9
    wait_until(lambda: read(file.read_text())[spilled] == 9, START_S, "the next file")


def test_the_file_goes_with_the_process(observed, tmp_path):
    """Otherwise its last counts would be read for ever."""
    observed(metrics="file", folder=str(tmp_path), expected="metrics are written").forget()
    assert list(tmp_path.iterdir()) == []
