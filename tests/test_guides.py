"""Who follows the guides gets there: what can run here is run, in the order told; both languages tell the same."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import free_port, wait_until

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = ("first-hit", "user-guide", "operations", "plan", "troubleshooting")

# what stands in for the machine of the reader
HERE = {"ADDRESS": "127.0.0.1", "PROTOCOL": "tcp", "DRAM": "1GB"}
# why a command is not run: each begins with one of these
NOT_HERE = {
    "pip install": "the wheel is installed by tests/host",
    "mindie-kvpool status": "there is no MindIE-LLM here; tests/unit/cli has its situations",
    "cp kvpool/config.json $MINDIE_LLM_HOME_PATH": "there is no MindIE-LLM here",
    "mindieservice_daemon": "there is no MindIE-LLM here",
    "ask": "there is no MindIE-LLM here",
    "long()": "helper of the requests",
    "for name in": "there is no MindIE-LLM here",
    "grep 'pool in the last' mindie.log": "there is no service's log here",
    "kill %": "the jobs of a shell: the test ends both by their pids",
}


def commands(page):
    """What stands behind a prompt in the page's console blocks."""
    blocks = re.findall(r"^ *```console\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line.strip()[2:] for block in blocks for line in block.splitlines() if line.strip().startswith("$ ")]


def is_run(command):
    return not command.startswith(tuple(NOT_HERE))


class Reader:
    """Types commands into a shell of their own folder, and notes what runs in the background."""

    def __init__(self, folder):
        self.folder = folder
        self.background = []
        self.variables = dict(HERE, MODEL=str(folder / "weights"))
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "MINDIE_KVPOOL_RUN_DIR": str(folder / "run"),
        }
        (folder / "run").mkdir(mode=0o700)

    def type(self, command):
        assigned = re.fullmatch(r"(\w+)=\S+", command)
        if assigned:
            assert assigned[1] in self.variables, f"what is {command} here?"
            return
        told = self._here(command)
        if told.endswith("&"):
            self._start(told[:-1])
            return
        done = subprocess.run(
            ["bash", "-c", told],
            cwd=self.folder,
            env={**self.environment, **self.variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"$ {told}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr

    def _here(self, command):
        # ports of this machine may be taken
        if command.startswith("mindie-kvpool master"):
            self.admin_port = free_port()
            file = self.folder / "kvpool" / "kv_pool.json"
            file.write_text(file.read_text().replace("127.0.0.1:50051", f"127.0.0.1:{free_port()}"))
            return command.replace(" &", f" --metrics-port {self.admin_port} &")
        if command.startswith(("mindie-kvpool store", "mindie-kvpool doctor")):
            name, _, rest = command.partition(" kvpool/")
            return f"{name} --metrics-port {self.admin_port} kvpool/{rest}"
        return command

    def _start(self, command):
        log = self.folder / f"{len(self.background)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env={**self.environment, **self.variables},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.background.append(process)
        wait_until(
            lambda: re.search(r"serves|are part of the pool", log.read_text()), 60, f"{command}: {log.read_text()}"
        )

    def leave(self):
        for process in reversed(self.background):
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture
def reader(tmp_path):
    """With weights to serve."""
    (tmp_path / "weights").mkdir()
    shape = (
        '{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "torch_dtype": "bfloat16", '
        '"vocab_size": 152064, "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, '
        '"num_key_value_heads": 4, "max_position_embeddings": 32768}'
    )
    (tmp_path / "weights" / "config.json").write_text(shape)
    (tmp_path / "weights" / "model.safetensors").write_bytes(bytes(2000))
    made = Reader(tmp_path)
    yield made
    made.leave()


@pytest.mark.skipif(shutil.which("bash") is None, reason="the guides' commands are for bash")
def test_the_guides_lead_where_they_say(reader):
    """First hit, then operations, as one would read them: files, a master, a store, what asks them."""
    typed = [
        command
        for name in ("first-hit", "operations", "user-guide")
        for command in commands(DOCS / f"{name}.md")
        if is_run(command)
    ]
    for command in typed:
        reader.type(command)
    assert len(reader.background) == 2
    assert len(typed) >= 12
    assert all(process.poll() is None for process in reader.background)


@pytest.mark.parametrize("name", GUIDES)
def test_both_languages_have_the_same_commands_and_sections(name):
    """What one reader is told the other is told, too."""
    english, chinese = ((DOCS / f"{name}{tail}.md").read_text(encoding="utf-8") for tail in ("", ".zh"))
    assert commands(DOCS / f"{name}.md") == commands(DOCS / f"{name}.zh.md")
    assert [len(line.split()[0]) for line in re.findall(r"^#+ .*", english, re.MULTILINE)] == [
        len(line.split()[0]) for line in re.findall(r"^#+ .*", chinese, re.MULTILINE)
    ]
    assert len(re.findall(r"^\|", english, re.MULTILINE)) == len(re.findall(r"^\|", chinese, re.MULTILINE))


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    """Files, and headings in them."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        titles = re.findall(r"^#+ (.*)", file.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}, (
            target
        )


def test_every_command_is_run_or_said_why_not():
    """And no excuse is left that nothing needs."""
    all_of_them = [
        command for name in ("first-hit", "user-guide", "operations") for command in commands(DOCS / f"{name}.md")
    ]
    unused = [start for start in NOT_HERE if not any(command.startswith(start) for command in all_of_them)]
    assert unused == []
