"""``mindie-kvpool stats``: everybody is found, the silent are named, and the figures are theirs."""

import io
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.console import Console

from mindie_kvpool_plugin.check.messages import LANGUAGES, words
from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.cli.stats_table import tables
from mindie_kvpool_plugin.observability import observer, questions
from mindie_kvpool_plugin.observability.counters import OPEN, Counters
from mindie_kvpool_plugin.observability.identity import Identity, Settings
from tests.conftest import free_port, wait_until

START_S = 60.0


def stats(*args, columns=240):
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, ["stats", *args], prog_name="mindie-kvpool")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    path = tmp_path / "run"
    monkeypatch.setenv("MINDIE_KVPOOL_RUN_DIR", str(path))
    return path


@pytest.fixture
def service(folder):
    """A worker and a scheduler in this process."""
    worker = Counters(prompts=20, promised_tokens=45_056, loaded_tokens=40_960, spilled_blocks=512, saved_seconds=2.0)
    worker.dropped_queue_full, worker.withdrawn_blocks, worker.breaker_state = 2, 1, OPEN
    worker.reload_seconds.add(3.25)
    for _ in range(12):
        worker.loaded_depth.add(26)
    scheduler = Counters(answered_all=1, answered_some=2, answered_none=7, asked_keys=1000, found_keys=400)
    scheduler.lookup_seconds.add(0.002)
    parts = [
        observer.observe(Identity("worker", rank=5, backend="mooncake", namespace="ours"), worker),
        observer.observe(Identity("scheduler", backend="mooncake", namespace="ours"), scheduler),
    ]
    wait_until(lambda: list(folder.glob("*.sock")), START_S, "the socket")
    yield parts
    for part in parts:
        part.forget()


def rows(text):
    """The cells of every row of figures."""
    found = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    return [cells for cells in found if cells[0].isdigit()]


def test_a_row_per_rank_and_per_scheduler(service):
    """What was promised, loaded, saved and dropped, and how the pool is."""
    run = stats()
    assert run.exit_code == 0, run.output
    pid = str(os.getpid())
    assert rows(run.output) == [
        [
            pid,
            "5",
            "20",
            "12",
            "45,056",
            "40,960",
            "3.25",
            "-1.25",
            "512",
            "3",
            "0",
            "0",
            "mooncake ours",
            "left alone",
            "-",
        ],
        [pid, "0", "10", "3", "400 / 1,000", "2.00", "0", "mooncake ours", "fine", "-"],
    ]


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_narrow_terminal_breaks_no_word(service, lang):
    """A column per part instead of a row, where a row does not fit."""
    text = stats("--lang", lang, columns=80).output
    assert "…" not in text
    assert max(map(cell_len, text.splitlines())) <= 80
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]
    assert [words("stats.column.promised", lang), "45,056"] in lines
    assert [words("stats.column.state", lang), words("stats.state.open", lang)] in lines


@pytest.mark.parametrize("width", [50, 80, 100, 120, 140, 160, 240])
def test_addresses_of_several_ranks_stay_whole(width):
    """However many of them stand side by side."""
    part = {"role": "worker", "backend": "mooncake", "namespace": "qwen2.5-32b"}
    addresses = [f"127.0.0.1:{9410 + rank}" for rank in range(8)]
    told = [{"pid": 1, "metrics_address": address, "parts": [part]} for address in addresses]
    console = Console(file=io.StringIO(), width=width)
    for table in tables(told, "en"):
        console.print(table)
    assert re.findall(r"127\.0\.0\.1:\d{4}", console.file.getvalue()) == addresses


@pytest.mark.parametrize(("answers", "state"), [(1, "fine"), (0, "no master")])
def test_a_store_has_its_own_figures(folder, answers, state):
    """What of its memory and disk is in use, and whether the master answers; "no pool yet" would be wrong of either."""
    counters = Counters(store_memory_bytes=64 << 30, store_used_bytes=3 << 29, store_disk_limit_bytes=1 << 40)
    counters.store_disk_bytes, counters.store_master_losses, counters.store_master_answers = 1 << 30, 2, answers
    part = observer.observe(Identity("store", backend="mooncake", namespace="ours"), counters)
    wait_until(lambda: list(folder.glob("*.sock")), START_S, "the socket")
    figures = ["1.50 / 64.00", "1.00 / 1,024.00", "2"]
    try:
        assert rows(stats().output) == [[str(os.getpid()), *figures, "mooncake ours", state, "-"]]
    finally:
        part.forget()


def test_json_has_everything(service):
    """One object per process."""
    run = stats("--format", "json")
    (process,) = json.loads(run.stdout)
    assert (run.exit_code, process["pid"]) == (0, os.getpid())
    assert [part["role"] for part in process["parts"]] == ["worker", "scheduler"]
    assert process["parts"][0]["metrics"]["mindie_kvpool_net_seconds"] == -1.25


def test_chinese_speaks_chinese(service):
    """Headings and states."""
    text = stats("--lang", "zh").output
    assert "调度器查询" in text
    assert "搁置" in text


def test_nobody_is_said_so():
    """Status 2."""
    run = stats()
    assert run.exit_code == 2
    assert "No process with a pool answers here" in run.output
    assert json.loads(stats("--format", "json").stdout) == []


def test_a_process_that_does_not_answer_is_named(service, folder, monkeypatch):
    """Status 1; the others are shown."""
    monkeypatch.setattr(questions.ask_all, "__defaults__", (questions.TIMEOUT_S,))
    code = (
        "from mindie_kvpool_plugin.observability.counters import Counters\n"
        "from mindie_kvpool_plugin.observability.identity import Identity\n"
        "from mindie_kvpool_plugin.observability.observer import observe\n"
        "observe(Identity('worker'), Counters())\n"
        "import signal; signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as hanging:
        try:
            wait_until((folder / f"{hanging.pid}.sock").exists, START_S, "its socket")
            hanging.send_signal(signal.SIGSTOP)

            def others():  # this process may need longer than 2 s on a busy machine
                run = stats()
                assert run.exit_code == 1
                assert f"{hanging.pid}.sock: no answer within 2 s" in re.sub(r"\s+", " ", run.output)
                return rows(run.output)

            wait_until(lambda: len(others()) == 2, START_S, "the others are shown")
            assert f"{hanging.pid}.sock：2 s 内没有应答" in re.sub(r"\s+", " ", stats("--lang", "zh").output)
            (told,) = [each for each in json.loads(stats("--format", "json").stdout) if "trouble" in each]
            assert told["socket"].endswith(f"{hanging.pid}.sock")
        finally:
            hanging.kill()


def test_targets_are_what_is_served(service):
    """For Prometheus; nothing while nothing is served."""
    assert json.loads(stats("--targets").stdout) == []
    port = free_port()
    part = observer.observe(Identity("worker"), Counters(), Settings(metrics="http", port=port))
    wait_until(lambda: observer.process_facts()["metrics_address"], START_S, "metrics")
    assert json.loads(stats("--targets").stdout) == [{"targets": [f"127.0.0.1:{port}"], "labels": {}}]
    part.forget()


def test_watching_goes_on_until_interrupted(service):
    """A line of JSON each time; Ctrl-C ends it without a traceback."""
    command = [sys.executable, "-m", "mindie_kvpool_plugin", "stats", "--watch", "--interval=0.1", "--format=json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        try:
            told = (json.loads(line) for line in watching.stdout)
            lines = (line for line in told if "parts" in line[0])  # unless we were too busy to answer it in time
            first = next(lines)
            service[0].counters.spilled_blocks += 1
            name = "mindie_kvpool_spilled_blocks_total"
            before = first[0]["parts"][0]["metrics"][name]
            assert next(told for told in lines if told[0]["parts"][0]["metrics"][name] == before + 1)
            watching.send_signal(signal.SIGINT)
            _, told_last = watching.communicate(timeout=START_S)  # reads on: it could not end while a line is stuck
            assert (watching.returncode, told_last) == (0, "")
        finally:
            watching.kill()


def test_watching_shows_the_table(service):
    """Also where there is no terminal."""
    command = [sys.executable, "-m", "mindie_kvpool_plugin", "stats", "--watch", "--interval=0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert next(line for line in watching.stdout if "Workers" in line)
        finally:
            watching.kill()


@pytest.mark.parametrize("command", ["stats", "why"])
def test_a_folder_that_cannot_be_trusted_is_named_once_and_what_to_do(command, folder):
    """It is no process that did not answer."""
    folder.mkdir()
    folder.chmod(0o777)
    told = CliRunner(env={"COLUMNS": "400"}).invoke(main, [command, "--lang", "en"]).output.splitlines()
    assert told[0] == f"nobody can be asked: {folder} has mode 0777, in which others may write; chmod 700 {folder}"
