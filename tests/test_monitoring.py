"""conf_examples/monitoring/: every metric it names exists; a real Prometheus that scrapes a demo has data for all."""

import contextlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from mindie_kvpool_plugin.observability.metrics import METRICS
from tests.conftest import free_port, wait_until

FOLDER = Path(__file__).parents[1] / "conf_examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana_dashboard.json").read_text(encoding="utf-8"))
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
LOOPBACK = "127.0.0.1"
START_S = 60.0
DATA_S = 240.0


def tool(name):
    """Where .ci/setup puts it, or installed."""
    beside = Path(sys.prefix) / "prometheus" / "usr" / "bin" / name
    return str(beside) if beside.exists() else shutil.which(name)


needs_prometheus = pytest.mark.skipif(
    not (tool("prometheus") and tool("promtool")), reason="no Prometheus: .ci/setup brings it"
)


def exposed():
    """Every name of a sample."""
    for metric in METRICS:
        yield from (
            (f"{metric.name}_{part}" for part in ("bucket", "sum", "count"))
            if metric.kind == "histogram"
            else (metric.name,)
        )


@pytest.mark.parametrize("name", ["alerts.yml", "grafana_dashboard.json"])
def test_every_metric_named_exists(name):
    """As it is exposed."""
    named = set(re.findall(r"mindie_kvpool_\w+", (FOLDER / name).read_text(encoding="utf-8")))
    assert len(named) > 10
    assert named - set(exposed()) == set()


def test_every_metric_is_shown_or_needs_no_showing():
    """A new one is put into the dashboard or named here."""
    shown = " ".join(QUERIES)
    elsewhere = {
        "mindie_kvpool_start_time_seconds",
        "mindie_kvpool_promised_blocks_total",
        "mindie_kvpool_reloaded_blocks_total",
        "mindie_kvpool_failed_get_blocks_total",
        "mindie_kvpool_saved_seconds_total",
        "mindie_kvpool_fence_waits_total",
        "mindie_kvpool_load_probes_total",
        "mindie_kvpool_reload_budget_seconds",
        "mindie_kvpool_load_call_seconds",
        "mindie_kvpool_declined_seconds_total",
        "mindie_kvpool_ranks_agree",  # in the alerts
        "mindie_kvpool_store_master_answers",  # in the alerts
    }
    assert {metric.name for metric in METRICS if metric.name not in shown} == elsewhere


def test_panels_do_not_overlap():
    """And have distinct ids."""
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.prometheus
@needs_prometheus
@pytest.mark.parametrize(("what", "file"), [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_promtool_accepts_it(what, file):
    """Rules and configuration."""
    command = [tool("promtool"), "check", what, str(FOLDER / file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A server of the test's own, on loopback."""

    def __init__(self, folder, target):
        self.port = free_port()
        config = folder / "prometheus.yml"
        scrape = {"job_name": "mindie-kvpool", "static_configs": [{"targets": [target]}]}
        config.write_text(
            json.dumps(
                {  # JSON is YAML
                    "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(FOLDER / "alerts.yml")],
                    "scrape_configs": [scrape],
                }
            )
        )
        self._process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={LOOPBACK}:{self.port}",
                "--log.level=error",
            ]
        )

    def __enter__(self):
        wait_until(self.is_ready, START_S, "Prometheus")
        return self

    def __exit__(self, *error):
        self._process.terminate()
        self._process.wait(START_S)

    def is_ready(self):
        assert self._process.poll() is None, "Prometheus ended"
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://{LOOPBACK}:{self.port}/-/ready", timeout=5).status == 200
        return False

    def get(self, path, **params):
        address = f"http://{LOOPBACK}:{self.port}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)["data"]

    def has_data(self, query):
        """Whether there is a number now, of whatever series."""
        found = self.get("query", query=query.replace("$__rate_interval", "1m"))["result"]
        return any(not math.isnan(float(series["value"][1])) for series in found)


@pytest.mark.prometheus
@needs_prometheus
def test_every_query_of_the_dashboard_has_data_while_a_demo_runs(tmp_path, monkeypatch):
    """A real Prometheus scrapes it; the alert rules are evaluated without an error; stats names what is scraped."""
    monkeypatch.setenv("MINDIE_KVPOOL_RUN_DIR", str(tmp_path / "run"))
    port = free_port()
    command = [sys.executable, "-m", "mindie_kvpool_plugin"]
    demo = [*command, "demo", "--async-write", "--pool-blocks=512", f"--metrics-port={port}"]
    stats = [*command, "stats", "--targets"]
    pending, targets, runs = set(QUERIES), [], 0
    deadline = time.monotonic() + DATA_S
    with Prometheus(tmp_path, f"{LOOPBACK}:{port}") as prometheus, contextlib.ExitStack() as stack:
        running = None
        while pending or not targets:
            assert time.monotonic() < deadline, f"no data after {runs} runs for {sorted(pending)}, targets {targets}"
            if running is None or running.poll() is not None:
                assert running is None or running.returncode == 0
                running = subprocess.Popen(demo, stdout=subprocess.DEVNULL, cwd=tmp_path, env=dict(os.environ))
                stack.callback(running.wait)
                stack.callback(running.kill)
                runs += 1
            if not targets:
                done = subprocess.run(stats, capture_output=True, text=True, timeout=60, check=True)
                targets = [target for group in json.loads(done.stdout) for target in group["targets"]]
            pending = {query for query in pending if not prometheus.has_data(query)}
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert targets == [f"{LOOPBACK}:{port}"]
        assert len(rules) >= 10
        assert {rule["health"] for rule in rules} == {"ok"}
