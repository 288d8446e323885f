"""One table of metrics: complete, named as Prometheus wants it, and told in both languages."""

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

import pytest

from mindie_kvpool_plugin.observability.counters import Counters, Histogram
from mindie_kvpool_plugin.observability.metrics import INFO, METRICS, STARTED, as_json
from mindie_kvpool_plugin.pools.memcache import codes as memcache
from mindie_kvpool_plugin.pools.mooncake import codes as mooncake

SCHEMAS = Path(__file__).parents[3] / "schemas"
UNITS = {"seconds", "bytes"}


def sources():
    """Counter -> metrics read from it."""
    found = {}
    for metric in METRICS:
        names = [metric.source] if isinstance(metric.source, str) else metric.source.values()
        for name in filter(None, names):
            found.setdefault(name, []).append(metric.name)
    return found


def test_every_counter_is_exposed_once():
    """Nothing is counted for nobody."""
    assert {field.name for field in fields(Counters)} == sources().keys() - {"net_seconds"}
    assert {name: metrics for name, metrics in sources().items() if len(metrics) > 1} == {}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metrics_are_named_and_explained(metric):
    """Conventions of Prometheus; a meaning in both languages."""
    assert re.fullmatch(r"mindie_kvpool_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") is (metric.kind == "counter")
    if metric.unit in UNITS:
        assert metric.unit in metric.name
    assert metric.en.endswith((".", "since 1970."))
    assert re.search(r"[\u4e00-\u9fff]", metric.zh)
    assert not re.search(r"[\u4e00-\u9fff]", metric.en)
    is_histogram = [isinstance(value, Histogram) for _, value in metric.samples(Counters())] if metric.source else []
    assert set(is_histogram) <= {metric.kind == "histogram"}


def test_names_are_distinct():
    """In both tables."""
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_json_has_every_metric_of_a_role():
    """Numbers, histograms with their bounds, and these by label."""
    counters = Counters(dropped_queue_full=3)
    counters.pool_errors["get", "-704"] = 2
    counters.put_seconds.add(0.2)
    told = as_json(counters, "worker")
    assert set(told) == {m.name for m in METRICS if "worker" in m.roles} - {INFO.name, STARTED.name}
    assert told["mindie_kvpool_dropped_blocks_total"]["queue_full"] == 3
    assert told["mindie_kvpool_pool_errors_total"] == {"get": {"-704": 2}}
    put = told["mindie_kvpool_pool_call_seconds"]["put"]
    assert (put["count"], put["sum"], len(put["counts"])) == (1, 0.2, len(put["bounds"]) + 1)


def test_the_pages_are_what_the_table_says():
    """Stale after a change of the table: run ``make schemas``."""
    spec = importlib.util.spec_from_file_location("metrics_pages", SCHEMAS / "metrics_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [path.name for path, text in module.files().items() if path.read_text(encoding="utf-8") != text] == []


@pytest.mark.parametrize("codes", [mooncake, memcache], ids=["mooncake", "memcache"])
def test_codes_are_counted_under_few_names(codes):
    """Whatever a library answers, a scrape has no more series than the page lists."""
    labels = codes.labels()
    assert {codes.label(code) for code in range(-5000, 5000)} <= labels.keys()
    assert codes.label(codes.NOT_OPEN) == "not_open"
    assert codes.label(codes.NOT_FOUND) == str(codes.NOT_FOUND)
    assert codes.label(-123_456) == "other"
    assert len(labels) < 30
