"""Whoever asks is answered by each process for itself, within a bound, and never by somebody else."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest

from chaos.processes import freeze
from mindie_kvpool_plugin.observability import observer, questions, run_directory
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity
from tests.conftest import wait_until

START_S = 60.0

CHILD = """
import sys
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity
from mindie_kvpool_plugin.observability.observer import observe
counters = Counters(spilled_blocks=int(sys.argv[1]))
observe(Identity("worker", rank=int(sys.argv[1])), counters)
{more}
print("ready", flush=True)
sys.stdin.read()
"""

FORKS = """
import os, signal
told, tell = os.pipe()
forked = os.fork()
if forked == 0:
    os.write(tell, b"begun")
    signal.pause()
os.read(told, 5)
print(forked, flush=True)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run directory of the test's own."""
    path = tmp_path / "run"
    monkeypatch.setenv(run_directory.VARIABLE, str(path))
    return path


@pytest.fixture
def part(folder):
    made = observer.observe(Identity("worker", rank=3, namespace="ours"), Counters(spilled_blocks=7))
    wait_until(lambda: list(folder.glob("*.sock")), START_S, "the socket")
    yield made
    made.forget()


@pytest.fixture
def child(folder):
    started = []

    def start(number, more=""):
        command = [sys.executable, "-c", CHILD.format(more=more), str(number)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        told = []
        while (line := process.stdout.readline().strip()) != "ready":
            assert line, "the child ended"
            told.append(line)
        wait_until((folder / f"{process.pid}.sock").exists, START_S, "the child's socket")
        return process, told

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def asked(what="stats", timeout_s=60.0):
    return questions.ask_all({"ask": what}, timeout_s)


def test_a_process_tells_who_it_is_and_what_it_counted(part):
    """Identity, version, start, and every metric of its role."""
    (reply,) = asked()
    answer = reply.answer
    assert (answer["pid"], answer["metrics_address"]) == (os.getpid(), None)
    assert time.time() - answer["started"] < 60
    (told,) = answer["parts"]
    assert (told["role"], told["rank"], told["namespace"], told["label"]) == ("worker", 3, "ours", "3")
    assert told["metrics"]["mindie_kvpool_spilled_blocks_total"] == 7
    assert told["metrics"]["mindie_kvpool_dropped_blocks_total"]["queue_full"] == 0
    part.counters.dropped_queue_full += 2
    assert asked()[0].answer["parts"][0]["metrics"]["mindie_kvpool_dropped_blocks_total"]["queue_full"] == 2


def test_ranks_of_one_process_share_one_thread_and_one_socket(part, folder):
    """As simulated hosts have them; two of the same rank get different labels, schedulers are numbered."""
    more = [
        observer.observe(identity, Counters())
        for identity in (Identity("worker", rank=3), Identity("scheduler"), Identity("scheduler"))
    ]
    (reply,) = asked()
    assert [(told["role"], told["label"]) for told in reply.answer["parts"]] == [
        ("worker", "3"),
        ("worker", "3-2"),
        ("scheduler", "0"),
        ("scheduler", "1"),
    ]
    assert len(list(folder.iterdir())) == 1
    assert sum(thread.name == "kvpool-observer" for thread in threading.enumerate()) == 1
    for each in more:
        each.forget()
    assert [told["label"] for told in asked()[0].answer["parts"]] == ["3"]


def test_nothing_is_left_when_the_last_one_is_forgotten(part, folder):
    """No thread, no file; forgetting twice is nothing."""
    part.forget()
    part.forget()
    assert list(folder.iterdir()) == []
    assert not any(thread.name == "kvpool-observer" for thread in threading.enumerate())
    assert asked() == []


def test_a_question_can_be_added(part, monkeypatch):
    """Other parts of the package tell more; what they raise reaches whoever asked, and the next one is answered."""
    monkeypatch.setitem(observer.answers, "echo", lambda question: {"heard": question["word"]})
    monkeypatch.setitem(observer.answers, "fail", lambda question: 1 / 0)
    assert questions.ask_all({"ask": "echo", "word": "hello"})[0].answer == {"heard": "hello"}
    assert "ZeroDivisionError" in asked("fail")[0].answer["error"]
    assert asked("nonsense")[0].answer["known"] == ["echo", "fail", "stats"]
    assert asked()[0].answer["pid"] == os.getpid()


@pytest.mark.parametrize(
    "said", [b"", b"\n", b"nonsense\n", b"[1]\n", b'{"ask": ' + b"[" * 60_000 + b"\n", b"x" * 70_000]
)
def test_nonsense_is_not_answered_and_hurts_nobody(part, folder, said):
    """The connection closes; the next question is answered."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(START_S)
        connection.connect(str(folder / f"{os.getpid()}.sock"))
        connection.sendall(said)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # closed before it had read everything
            assert connection.recv(100) == b""
    assert asked()[0].answer["pid"] == os.getpid()


def test_who_asks_nothing_keeps_the_others_waiting_for_a_moment_only(part, folder):
    """A silent connection is left after a second."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(folder / f"{os.getpid()}.sock"))
        assert asked()[0].answer["pid"] == os.getpid()


def test_processes_are_found_and_each_answers_for_itself(child):
    """In one call, whoever started them."""
    pids = [child(number)[0].pid for number in (1, 2)]
    told = {reply.answer["pid"]: reply.answer["parts"][0]["rank"] for reply in asked()}
    assert told == dict(zip(pids, (1, 2), strict=True))


def test_a_stopped_process_is_named_and_not_waited_for_longer_than_said(child):
    """The others are answered."""
    hanging, fine = child(1)[0], child(2)[0]
    freeze(hanging.pid)

    def troubles():  # the other one may need longer than a second on a busy machine
        began = time.monotonic()
        found = {reply.socket.rpartition("/")[2]: reply.trouble for reply in asked(timeout_s=1.0)}
        assert time.monotonic() - began < 10
        assert found.pop(f"{hanging.pid}.sock") == "no answer within 1 s"
        return found

    wait_until(lambda: troubles() == {f"{fine.pid}.sock": None}, START_S, "an answer of the other")
    os.kill(hanging.pid, signal.SIGCONT)


def test_the_socket_of_a_killed_process_is_removed_by_whoever_asks(child, folder):
    """It ends without a word, as workers do."""
    killed, _ = child(1)
    killed.kill()
    killed.wait()
    assert (folder / f"{killed.pid}.sock").exists()
    assert asked() == []
    assert list(folder.iterdir()) == []


def test_a_forked_child_does_not_answer_for_its_parent(child, folder):
    """Nor keeps its parent's socket alive."""
    parent, (forked,) = child(1, FORKS)
    assert [reply.answer["pid"] for reply in asked()] == [parent.pid]
    parent.kill()
    parent.wait()
    os.kill(int(forked), 0)  # it lives on
    assert asked() == []
    os.kill(int(forked), signal.SIGKILL)


def test_a_forked_child_is_observed_for_itself(child, folder):
    """Once it has something to show."""
    more = """
import os, signal
forked = os.fork()
if forked == 0:
    observe(Identity("worker", rank=9), Counters())
    signal.pause()
print(forked, flush=True)
"""
    _, (forked,) = child(1, more)
    wait_until((folder / f"{forked}.sock").exists, START_S, "the forked child's socket")
    assert sorted(reply.answer["parts"][0]["rank"] for reply in asked()) == [1, 9]
    os.kill(int(forked), signal.SIGKILL)


def test_only_the_user_may_reach_the_socket(part, folder):
    """Whatever the service's umask is."""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / f"{os.getpid()}.sock").stat().st_mode) == 0o600


def test_a_folder_in_which_others_may_write_is_not_used(folder, caplog, monkeypatch):
    """Neither by who serves, who says so in one line and goes on, nor by who asks."""
    monkeypatch.setattr(observer.logger, "propagate", True)
    folder.mkdir()
    folder.chmod(0o777)
    made = observer.observe(Identity("worker"), Counters())
    wait_until(lambda: "nobody can ask this process" in caplog.text, START_S, "the warning")
    assert f"chmod 700 {folder}" in caplog.text
    assert list(folder.iterdir()) == []
    (reply,) = asked()
    assert "others may write" in reply.trouble
    made.forget()


def test_a_link_in_place_of_the_folder_is_not_followed(folder, tmp_path):
    """Somebody else may have put it there."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    made = observer.observe(Identity("worker"), Counters())
    (reply,) = asked()
    assert reply.trouble.startswith(str(folder))
    made.forget()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_whose_path_is_long_is_reached(monkeypatch, tmp_path):
    """The address of a Unix socket has 107 bytes."""
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.parent.mkdir()
    monkeypatch.setenv(run_directory.VARIABLE, str(deep))
    made = observer.observe(Identity("worker"), Counters())
    wait_until(lambda: list(deep.glob("*.sock")), START_S, "the socket")
    assert asked()[0].answer["pid"] == os.getpid()
    made.forget()


def test_containers_that_share_a_folder_share_no_socket(part, folder):
    """Two processes of one number: the second takes another name, and both are asked."""

    def answer():
        with listening.accept()[0] as connection:
            connection.recv(100)
            connection.sendall(b'"the second"')

    with run_directory.opened(folder) as descriptor, socket.socket(socket.AF_UNIX) as listening:
        assert run_directory.listen(descriptor, listening) == f"{os.getpid()}-1.sock"
        thread = threading.Thread(target=answer)
        thread.start()
        second, first = asked()
        thread.join(START_S)
    assert second.answer == "the second"
    assert first.answer["pid"] == os.getpid()


def test_an_answer_is_one_json_document(part, folder):
    """For whoever asks without this package: a line in, a document out."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(START_S)
        connection.connect(str(folder / f"{os.getpid()}.sock"))
        connection.sendall(b'{"ask": "stats"}\n')
        text = b""
        while more := connection.recv(65536):
            text += more
    assert json.loads(text)["pid"] == os.getpid()


def test_root_asks_in_the_folders_of_all_users(monkeypatch, tmp_path):
    """Others in their own; a folder that was named is the only one."""
    monkeypatch.delenv(run_directory.VARIABLE)
    monkeypatch.setattr(run_directory.tempfile, "gettempdir", lambda: str(tmp_path))
    for name in ("mindie-kvpool-1000", "mindie-kvpool-0", "mindie-kvpool-weights-x", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert [path.name for path in run_directory.all_paths()] == ["mindie-kvpool-0", "mindie-kvpool-1000"]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert [path.name for path in run_directory.all_paths()] == ["mindie-kvpool-1000"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv(run_directory.VARIABLE, "/run/mindie")
    assert [str(path) for path in run_directory.all_paths()] == ["/run/mindie"]
