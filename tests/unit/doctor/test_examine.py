"""The table: order, dependencies, time, mistakes of a probe itself, and texts for every line."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin import doctor
from mindie_kvpool_plugin.check.messages import LANGUAGES, has_text
from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.doctor import child
from mindie_kvpool_plugin.doctor import examine as doctor_examine
from mindie_kvpool_plugin.doctor.acceptance.table import ACCEPTANCE, CLEANING
from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.child import run_child
from mindie_kvpool_plugin.doctor.examine import Probe, examine
from mindie_kvpool_plugin.doctor.lines import good, trouble
from mindie_kvpool_plugin.doctor.table import PROBES
from mindie_kvpool_plugin.pools.call_thread import CallThread
from tests.conftest import wait_until
from tests.unit.doctor.conftest import PATIENT_S, case_of, is_answered

BAD_CHILDREN = "tests.unit.doctor.bad_children"
SHARED = {"failed", "too_slow", "not_tried", "summary", "title", "verdict"}


def told(case, *probes):
    return [(probe.name, [line.id for line in lines]) for probe, lines in examine(case, probes)]


@pytest.fixture
def case(pool_path):
    return case_of(pool_path({"capacity": "1MB"}), timeout_s=30)


def test_what_needs_a_probe_in_trouble_is_not_tried(case):
    """Nor what needs that; everything else is."""
    table = (
        Probe("first", lambda _: [good("first.seen"), trouble("first.wrong")]),
        Probe("second", lambda _: [good("second.seen")], needs=("first",)),
        Probe("third", lambda _: [good("third.seen")], needs=("second",)),
        Probe("fourth", lambda _: [good("fourth.seen")]),
    )
    assert told(case, *table) == [
        ("first", ["first.seen", "first.wrong"]),
        ("second", ["second.not_tried"]),
        ("third", ["third.not_tried"]),
        ("fourth", ["fourth.seen"]),
    ]


def test_a_probe_is_told_of_before_it_looks(case):
    """Some look for minutes."""
    seen = []
    table = Probe("first", lambda _: seen.append("looked") or [good("first.seen")])
    for _, lines in examine(case, [table], lambda probe: seen.append(probe.name)):
        seen.append(lines[0].id)
    assert seen == ["first", "looked", "first.seen"]


def test_a_mistake_in_a_probe_is_its_own_line(case):
    """What it saw before counts, and the next one runs."""

    def broken(_):
        yield good("broken.seen")
        raise ZeroDivisionError("oops")

    table = Probe("broken", broken), Probe("next", lambda _: [good("next.seen")])
    assert told(case, *table) == [("broken", ["broken.seen", "broken.failed"]), ("next", ["next.seen"])]


def test_a_probe_that_does_not_come_back_is_left_behind(case, monkeypatch):
    """The time for everything ends it, and the rest is told as not tried."""
    over, never = threading.Event(), threading.Event()

    class Hurried(CallThread):
        """Who waits for its job begins to when the time is over."""

        def start(self, run):
            job = super().start(run)
            assert over.wait(60)
            return job

    def stuck(case):
        yield good("stuck.begun")
        case.timeout_s = 0.0
        over.set()
        never.wait()

    monkeypatch.setattr(doctor_examine, "CallThread", Hurried)
    table = Probe("stuck", stuck), Probe("next", lambda _: [good("next.seen")])
    assert told(case, *table) == [("stuck", ["stuck.begun", "stuck.too_slow"]), ("next", ["next.not_tried"])]
    never.set()


@pytest.mark.parametrize(
    ("how", "ending"), [("crash", "SIGSEGV"), ("hang", "killed"), ("raise", "ValueError: as it was asked to")]
)
def test_a_child_that_ends_badly_is_told(how, ending, tmp_path, hurried):
    """What it said before that counts; a child that hangs has its time."""
    begun = tmp_path / "begun"
    limits = hurried(lambda process: begun.exists())
    told = run_child(BAD_CHILDREN, {"how": how, "begun": str(begun)}, 60, dict(os.environ))
    assert (told.steps, told.ending) == ([{"step": "begun"}], ending)
    assert limits[0] == 60


@pytest.mark.parametrize(
    ("how", "steps", "ending"), [("busy", ["begun", "ended"], "SIGINT"), ("deaf", ["begun"], "SIGKILL")]
)
def test_a_child_that_is_to_end_comes_to_its_last_step(tmp_path, monkeypatch, how, steps, ending):
    """It is interrupted, not killed, so that it leaves nothing half done; a child that does not listen is killed."""
    monkeypatch.setattr(child, "ENDING_S", 60.0 if how == "busy" else 0.1)
    begun = tmp_path / "begun"
    with ThreadPoolExecutor(1) as threads:
        question = {"how": how, "begun": str(begun)}
        running = threads.submit(run_child, BAD_CHILDREN, question, 60, dict(os.environ))
        wait_until(begun.exists, 60, "the child has begun")
        child.end_all()
        told = running.result()
    assert ([step["step"] for step in told.steps], told.ending) == (steps, ending)


def test_a_child_ends_by_itself_when_its_parent_is_gone():
    """Its own alarm, which no Python thread can stop."""
    command = [sys.executable, "-c", child._START.format(module=BAD_CHILDREN), json.dumps(sys.path)]
    question = json.dumps({"how": "hang", "limit_s": 0.1}).encode()
    done = subprocess.run(command, input=question, capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGALRM
    assert b'"step": "begun"' in done.stdout


def test_every_line_has_texts_and_every_text_a_line():
    """In both languages; trouble and warnings say what to do."""
    source = "".join(path.read_text(encoding="utf-8") for path in Path(doctor.__file__).parent.rglob("*.py"))
    probes = [*ACCEPTANCE, CLEANING]
    names = "|".join(probe.name for probe in probes)
    ids = set(re.findall(rf'"((?:{names})\.\w+)"', source)) - {"check.error"}  # which speaks the check's words
    to_do = set(re.findall(rf'(?:trouble|warning)\(\s*"((?:{names})\.\w+)"', source))
    assert len(ids) > 80
    assert len(to_do) > 30
    file = Path(doctor.__file__).parents[1] / "locale" / "en.json"
    texts = [key.removeprefix("doctor.") for key in json.loads(file.read_text()) if key.startswith("doctor.")]
    own = {key.removesuffix(".fix") for key in texts if key.partition(".")[0] not in SHARED}
    assert own - ids == {"status.daemon", "status.worker", "status.of_daemon", "status.of_worker"}
    assert ids <= own
    for lang in LANGUAGES:
        assert [name for name in sorted(ids) if not has_text(f"doctor.{name}", lang)] == []
        assert [name for name in sorted(to_do) if not has_text(f"doctor.{name}.fix", lang)] == []
        assert [probe.name for probe in probes if not has_text(f"doctor.title.{probe.name}", lang)] == []


def doctor_says(path, *options):
    patient = ["--timeout", str(5 * PATIENT_S)]
    result = CliRunner().invoke(main, ["doctor", str(path), *patient, *options], prog_name="mindie-kvpool")
    return result.exit_code, result.output


def test_the_command_succeeds_beside_a_pool_that_works(master, pool_path_of):
    """0, and every line is complete."""
    status, output = doctor_says(pool_path_of(master), "--format", "json")
    document = json.loads(output)
    assert (status, document["verdict"], document["backend"]) == (0, "good", "mooncake")
    assert all({"id", "probe", "verdict", "text", "fix", "values"} <= line.keys() for line in document["lines"])
    ids = {line["id"] for line in document["lines"]}
    assert is_answered(ids)
    assert "transfer.verified" in ids


def test_the_command_fails_with_trouble_and_tells_programs_and_people_the_same(pool_path):
    """1, and every trouble comes with a fix; JSON, English and Chinese."""
    path = pool_path({"local_hostname": "127.0.0.1"})
    status, output = doctor_says(path, "--format", "json")
    lines = json.loads(output)["lines"]
    found = [line for line in lines if line["verdict"] == "trouble"]
    assert status == 1
    assert {line["id"] for line in found} == {"check.error", "pool_file.refused"}
    assert all(line["fix"] for line in found)
    for lang, word in (("en", "trouble"), ("zh", "故障")):
        status, output = doctor_says(path, "--lang", lang)
        assert status == 1
        assert sum(1 for line in output.splitlines() if re.match(r"  \S", line)) == len(lines)
        assert f"  {word}  " in output
        assert "doctor." not in output


@pytest.mark.parametrize("options", [["/nonexistent/config.json"], ["--timeout", "0"], ["--format", "xml"]])
def test_the_command_refuses_what_it_cannot_examine(options):
    """2."""
    result = CliRunner().invoke(main, ["doctor", *options], prog_name="mindie-kvpool", env={"LANG": "en"})
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_an_embedded_pool_has_nothing_to_ask(tmp_path):
    """Nothing of Mooncake is looked at."""
    pool, config = tmp_path / "pool.json", tmp_path / "config.json"
    pool.write_text('{"kv_pool": {}}')
    switch = {"backend": "local_dram", "configPath": str(pool)}
    config.write_text(json.dumps({"BackendConfig": {"kvPoolConfig": switch}}))
    names = [name for name, _ in told(case_of(config), *PROBES)]
    assert "local_dram" in names
    assert not {"libraries", "address", "client", "transfer"} & set(names)


def test_cases_know_the_backend_of_a_pool_file_alone(pool_path):
    """By its keys."""
    assert case_of(pool_path({"master_server_address": "a:1"})).backend == "mooncake"
    assert case_of(pool_path({"config_path": "/a"})).backend == "memcache"
    assert isinstance(case_of(pool_path({})), Case)
