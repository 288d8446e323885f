"""conf_examples/systemd/: units that systemd takes, of commands that exist."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import COMMANDS, main

EXAMPLES = Path(__file__).parents[1] / "conf_examples"
UNITS = sorted((EXAMPLES / "systemd").iterdir())
NAMES = [unit.name for unit in UNITS]
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")


def values(unit, key):
    return re.findall(rf"^{key}=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_systemd_finds_nothing_wrong(unit, tmp_path):
    """Names, values and order; the program is one of this machine, since that is looked for, too."""
    for each in UNITS:
        text = re.sub(
            r"^ExecStart=\S+", f"ExecStart={sys.executable}", each.read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        (tmp_path / each.name).write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit.name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_finds_what_is_wrong(tmp_path):
    """A misspelt key is told: the test above can fail."""
    wrong = tmp_path / "wrong.service"
    wrong.write_text("[Service]\nExecStart=/bin/true\nRestrat=always\n", encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", wrong], capture_output=True, text=True, check=False)
    assert "Restrat" in done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_command_of_the_unit_is_understood(unit):
    """Its options exist: help is printed instead of an error about them."""
    (line,) = values(unit, "ExecStart")
    program, name, *arguments = shlex.split(line)
    assert Path(program).name == "mindie-kvpool"
    assert name in COMMANDS
    result = CliRunner().invoke(main, [name, *arguments, "--help"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_unit_waits_for_readiness_and_comes_back(unit):
    """The services say when they are ready, do not run as root, and are restarted when they fail."""
    assert values(unit, "Type") == ["notify"]
    assert values(unit, "User") == ["mindie"]
    assert values(unit, "Restart")[0] in {"on-failure", "always"}
    assert f"`{unit.name}`" in README
