"""The hooks of daemon and workers, in real interpreters around a stand-in host."""

import os

import pytest

from tests.unit.cli.service import SYSTEM_PATH, Interpreter
from tests.unit.doctor.conftest import case_of, told, troubles


@pytest.fixture
def hooks(pool_path, tmp_path):
    """What the doctor says with some folders on PATH."""

    def ask(*folders):
        gone = ("PYTHONPATH", "PYTHONNOUSERSITE", "MINDIE_LLM_HOME_PATH", "MINDIE_KVPOOL_DISABLE")
        case = case_of(pool_path({}))
        kept = {name: value for name, value in os.environ.items() if name not in gone}
        case.env = {**kept, "PATH": ":".join(map(str, (*folders, SYSTEM_PATH)))}
        return told(case, "status")

    return ask


def test_hooks_in_one_interpreter_for_both(hooks, tmp_path):
    """Both sides are named."""
    service = Interpreter(tmp_path / "env").add_host().install()
    service.add_backend()
    lines = hooks(service.bin)
    assert troubles(lines) == []
    assert {"status.daemon", "status.worker"} <= lines.keys()
    assert str(service.folder) in lines["status.daemon"].text("en")


def test_the_wrong_interpreter_is_named(hooks, tmp_path):
    """The package is where the workers run, and not in the python3 of PATH that the daemon embeds."""
    service = Interpreter(tmp_path / "env").add_host().install()
    service.add_backend()
    other = Interpreter(tmp_path / "other").add_host()
    lines = hooks(other.bin, service.bin)
    assert troubles(lines) == ["status.not_installed"]
    text = lines["status.not_installed"].text("en")
    assert text.startswith("daemon: ")
    assert str(other.folder) in text
    assert lines["status.not_installed"].text("zh").startswith("守护进程：")
    assert "pip" in lines["status.not_installed"].fix("en")


def test_a_machine_without_the_host_is_no_trouble(hooks, tmp_path):
    """A laptop: nothing to hook."""
    assert list(hooks(Interpreter(tmp_path / "env").bin)) == ["status.no_host"]


def test_a_user_that_is_not_there(pool_path):
    """Named, with what to do."""
    lines = told(case_of(pool_path({}), user="no-such-user"), "status")
    assert "no-such-user" in lines["status.user"].text("en")
    assert lines["status.user"].fix("en")
