"""This plugin's own processes, as their observers answer."""

import os
import socket

import pytest

from mindie_kvpool_plugin.doctor import presence
from mindie_kvpool_plugin.observability import observer, run_directory
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity
from tests.conftest import HOST, wait_until
from tests.unit.doctor.conftest import case_of, told, troubles

KEYS = {"local_hostname": HOST, "master_server_address": f"{HOST}:1"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run directory of the test's own, and nobody else's."""
    path = tmp_path / "run"
    monkeypatch.setenv(run_directory.VARIABLE, str(path))
    monkeypatch.setattr(run_directory, "all_paths", lambda: [path])
    return path


@pytest.fixture
def observed(folder):
    """This process, as a worker with a pool file."""
    parts = []

    def begin(path):
        parts.append(observer.observe(Identity("worker", pool_file=str(path)), Counters()))
        wait_until(lambda: list(folder.glob("*.sock")), 30, "the socket")

    yield begin
    for part in parts:
        part.forget()


def test_nobody_runs(folder, pool_path):
    """Not here, not failed."""
    assert told(case_of(pool_path(KEYS)), "presence")["presence.none"].verdict == "absent"


def test_processes_of_this_pool_file_are_named(observed, pool_path):
    """With what they are."""
    path = pool_path(KEYS)
    observed(path)
    lines = told(case_of(path), "presence")
    assert list(lines) == ["presence.ours"]
    assert lines["presence.ours"].params == {"roles": "1 worker", "pids": str(os.getpid())}


def test_processes_of_another_pool_file_are_told_apart(observed, pool_path):
    """They may share the machine."""
    observed("/somewhere/else.json")
    assert list(told(case_of(pool_path(KEYS)), "presence")) == ["presence.others"]


def test_processes_of_another_version_want_a_restart(observed, pool_path, monkeypatch):
    """What is installed is not what runs."""
    path = pool_path(KEYS)
    observed(path)
    monkeypatch.setattr(presence, "__version__", "9.9.9")
    lines = told(case_of(path), "presence")
    assert lines["presence.other_version"].params["ours"] == "9.9.9"


def test_a_run_directory_that_others_may_write_is_trouble(folder, pool_path):
    """Nobody there is believed."""
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    lines = told(case_of(pool_path(KEYS)), "presence")
    assert troubles(lines) == ["presence.folder"]
    assert "chmod 700" in lines["presence.folder"].fix("en")


def test_a_process_that_says_nothing_is_a_warning(folder, pool_path, monkeypatch):
    """A socket that accepts and is silent."""
    monkeypatch.setattr(presence, "TIMEOUT_S", 0.5)
    folder.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "1.sock"))
        listening.listen()
        lines = told(case_of(pool_path(KEYS)), "presence")
    assert lines["presence.silent"].params["socket"] == str(folder / "1.sock")
    assert "no answer within" in lines["presence.silent"].text("en")
    assert "内没有应答" in lines["presence.silent"].text("zh")
