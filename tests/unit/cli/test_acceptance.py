"""``mindie-kvpool acceptance``: one report in three forms, exit statuses, and what an interrupted run leaves."""

import html.parser
import json
import re
import signal
import sys

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli import acceptance
from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.doctor.acceptance import trial
from mindie_kvpool_plugin.doctor.acceptance.table import SECTIONS
from mindie_kvpool_plugin.doctor.child import Told
from mindie_kvpool_plugin.doctor.examine import Probe
from mindie_kvpool_plugin.doctor.lines import good, trouble
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests.conftest import free_port, wait_until
from tests.standin_service import standing_in, write_config
from tests.unit.doctor.acceptance.conftest import unhurried, write_pool  # noqa: F401 - a fixture
from tests.unit.doctor.conftest import SETTLED_FLAGS, only_masters, patient, state_of  # noqa: F401 - fixtures

ALL = {"passed", "failed", "not_possible", "note"}


def run(config, *options):
    result = CliRunner().invoke(main, ["acceptance", str(config), *map(str, options)], prog_name="mindie-kvpool")
    return result.exit_code, result.output


class Page(html.parser.HTMLParser):
    """What a page refers to, and how often a tag is opened and closed."""

    def __init__(self, text):
        super().__init__()
        self.references, self.opened, self.closed, self.words = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.opened.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href", "xlink:href")]

    def handle_endtag(self, tag):
        self.closed.append(tag)

    def handle_data(self, data):
        self.words.append(data)


def test_one_run_beside_a_service_is_accepted_and_told_as_json_and_as_a_page(tmp_path):
    """Nothing failed, everything has a word, the page needs no other file, and the pool is as it was."""
    with MooncakeMaster(*SETTLED_FLAGS) as running, standing_in(write_pool(tmp_path, running)) as service:
        before = state_of(running)
        config = write_config(tmp_path, tmp_path / "kv_pool.json", service.port)
        files = {path.name for path in tmp_path.iterdir()}
        page = tmp_path / "report.html"
        status, output = run(
            config, "--metrics-port", running.metrics_port, "--format", "json", "--html", page, "--lang", "en"
        )
        document = json.loads(output)
        failed = [line for line in document["lines"] if line["result"] == "failed"]
        assert (status, document["result"], failed) == (0, "passed", [])
        assert {line["result"] for line in document["lines"]} <= ALL
        assert {"ranks.verified", "lookup.quick", "prompts.hit", "prompts.same"} <= {
            line["id"] for line in document["lines"]
        }
        assert {"bytes_per_s", "lookup_ms", "answer_s"} <= document["measured"].keys()
        assert state_of(running) == before
        assert {path.name for path in tmp_path.iterdir()} == files | {"report.html"}
    found = Page(page.read_text(encoding="utf-8"))
    assert found.opened.count("svg") == 3
    assert [each for each in found.references if not each.startswith("#")] == []
    assert found.opened.count("tr") == found.closed.count("tr") == len(document["lines"])
    assert document["summary"] in found.words


def test_without_a_master_the_run_fails_in_both_languages(tmp_path, only_masters):  # noqa: F811
    """1; every failed line has a fix, and no key of the catalog is left."""
    only_masters()
    with MooncakeMaster() as gone:
        pass
    config = write_config(tmp_path, write_pool(tmp_path, gone), free_port(), devices=(0,))
    page = tmp_path / "report.html"
    status, output = run(config, "--lang", "zh", "--html", page)
    assert status == 1
    assert "  未通过  " in output
    assert "  此处无法进行  " in output
    assert not re.search(r"\b(doctor|acceptance)\.\w", output.replace(str(tmp_path), ""))
    assert '<html lang="zh">' in page.read_text(encoding="utf-8")
    failed = output.splitlines()
    at = next(number for number, line in enumerate(failed) if line.startswith("  未通过  "))
    assert failed[at + 1].startswith("      ")


@pytest.fixture
def few(monkeypatch, tmp_path):
    """An acceptance of probes that a test makes, on a configuration nobody looks at."""

    def make(*probes):
        monkeypatch.setattr(acceptance, "ACCEPTANCE", probes)
        return tmp_path / "config.json"

    (tmp_path / "pool.json").write_text(json.dumps({"master_server_address": "a:1", "kv_pool": {}}))
    write_config(tmp_path, tmp_path / "pool.json", 1)
    return make


def test_an_interrupted_run_removes_what_it_has_put(few, monkeypatch):
    """130, the usual status of Ctrl-C."""

    def interrupted(case, probes, began):
        case.mooncake = object()
        case.keys.update(["a", "b"])
        yield Probe("versions", lambda _: []), [good("versions.package", name="x", version="1")]
        raise KeyboardInterrupt

    config = few()
    monkeypatch.setattr(acceptance, "examine", interrupted)
    asked, told = [], Told([{"step": "swept", "left": 0, "some": []}], "")
    monkeypatch.setattr(trial, "open_client", lambda case, question, limit_s: asked.append(question["sweep"]) or told)
    status, output = run(config, "--lang", "en")
    assert (status, asked) == (130, [["a", "b"]])
    assert "interrupted" in output


def test_what_a_probe_left_behind_is_removed_at_the_end(few, monkeypatch):
    """And told, if it cannot be."""

    def leaves(case):
        case.mooncake = object()
        case.keys.add("a")
        yield good("versions.package", name="x", version="1")

    config = few(Probe("versions", leaves))
    monkeypatch.setattr(trial, "open_client", lambda *_: Told([], "killed"))
    status, output = run(config, "--format", "json", "--lang", "en")
    (line,) = [line for line in json.loads(output)["lines"] if line["probe"] == "cleaning"]
    assert (status, line["values"]["keys"]) == (0, "a")


def test_the_page_escapes_what_others_said(few, tmp_path):
    """A name from the network is text."""
    said = "<script>alert(1)</script>"
    config = few(Probe("versions", lambda _: [trouble("npu.no_devices"), good("versions.memcache", version=said)]))
    status, _ = run(config, "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert status == 1
    assert said not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("node", ["0/2", "3/2", "1/1", "1", "a/b", "1/1000"])
def test_a_node_number_that_is_none_is_refused(few, node):
    """2, and what it should look like."""
    status, output = run(few(), "--node", node, "--lang", "en")
    assert status == 2
    assert "1/2" in output


def test_a_page_that_cannot_be_written_is_one_line(few, tmp_path):
    """2, before anything is tried."""
    status, output = run(few(), "--html", tmp_path / "missing" / "page.html", "--lang", "en")
    assert status == 2
    assert "No such file" in output


def test_a_page_without_its_library_is_refused_before_anything_is_tried(few, monkeypatch):
    """2, with what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, output = run(few(), "--html", "page.html")
    assert status == 2
    assert "mindie-kvpool-plugin[ops]" in output


def test_a_configuration_that_is_not_there_is_refused(tmp_path):
    """2."""
    status, output = run(tmp_path / "none.json", "--lang", "en")
    assert status == 2
    assert "Traceback" not in output


def test_every_probe_has_a_place_on_the_page():
    """Once."""
    placed = [name for names in SECTIONS.values() for name in names]
    assert sorted(placed) == sorted([*(probe.name for probe in acceptance.ACCEPTANCE), "cleaning"])


def test_a_run_that_is_interrupted_while_it_waits_ends_at_once_and_leaves_nothing(tmp_path, begin):
    """Ctrl-C while another node is waited for: its child is ended, and the block it had put is removed."""
    with MooncakeMaster(*SETTLED_FLAGS) as running:
        config = write_config(tmp_path, write_pool(tmp_path, running), free_port(), devices=(0,))
        command = begin("acceptance", config, "--node", "1/2", "--metrics-port", running.metrics_port)
        while "Blocks exchanged" not in command.line():
            pass
        wait_until(lambda: state_of(running)[0] == 1, 120, "its block is there")
        assert command.end(signal.SIGINT) == (130, "interrupted; what this run had put into the pool was removed\n")
        wait_until(lambda: state_of(running)[0] == 0, 60, "nothing in the pool")
