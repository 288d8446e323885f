"""What ``mindie-kvpool status`` and ``explain`` take for granted of MindIE-LLM, read from its source."""

import pytest

from mindie_kvpool_plugin.cli.host_messages import KNOWN
from mindie_kvpool_plugin.host.interpreters import launches

pytestmark = pytest.mark.mindie


def test_daemon_embeds_what_python3_of_path_stands_for(cpp, host_source):
    """No program, home or flag is named: libpython searches PATH and reads .pth files."""
    assert "Py_Initialize();" in cpp("server/daemon/llm_daemon.cpp")
    others = (
        "Py_SetProgramName",
        "Py_SetPythonHome",
        "PyConfig",
        "Py_InitializeEx",
        "Py_NoSiteFlag",
        "Py_IsolatedFlag",
    )
    texts = [path.read_text(encoding="utf-8") for path in (host_source.parent / "src").rglob("*.cpp")]
    assert len(texts) > 100
    assert [name for name in others if any(name in text for text in texts)] == []


def test_workers_are_a_program_of_path(cpp):
    """Its first line says which interpreter; the environment is the daemon's."""
    assert f'execvp("{launches.WORKER_COMMAND}", argv.data());' in cpp("executor/executor.cpp")


@pytest.mark.parametrize("said", [each for each in KNOWN if each.source], ids=lambda each: each.name)
def test_messages_that_are_explained_are_the_hosts(said, host_source):
    """Word for word: who searches for one finds it."""
    path = host_source.parent / said.source
    if not path.exists():
        pytest.skip("needs MindIE-LLM's source tree")
    assert said.words in path.read_text(encoding="utf-8")
