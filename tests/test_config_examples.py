"""Every code fires on its own example and stays silent beside it; examples are found by folder."""

import json
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.check.codes import all_codes
from mindie_kvpool_plugin.cli.main import main

EXAMPLES = Path(__file__).parent / "examples"
INVALID = sorted((EXAMPLES / "invalid").iterdir())
VALID = sorted((EXAMPLES / "valid").iterdir())
DOCUMENTS = sorted((EXAMPLES / "documents").iterdir())
# shown by tests of their own, because a checkout cannot hold such a file
ELSEWHERE = {
    "FI-01": "tests/unit/cli/test_check_command.py",
    "FI-03": "tests/unit/check/text/test_load.py",
    "FI-09": "tests/unit/check/text/test_load.py",
    "JS-26": "tests/unit/check/text/test_load.py",
    "HC-80": "tests/unit/check/rules/test_rules_on_server.py",
}


def report(folder, expected):
    args = [argument.format(dir=folder) for argument in expected.get("args", [])]
    run = CliRunner().invoke(main, ["check", str(folder / "config.json"), "--no-env", "--format", "json", *args])
    assert run.exception is None or isinstance(run.exception, SystemExit), run.exception
    return run.exit_code, json.loads(run.stdout)


def expectation(folder):
    file = folder / "expected.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


@pytest.mark.parametrize("folder", INVALID, ids=[folder.name for folder in INVALID])
def test_check_reports_exactly_the_expected_codes(folder):
    """The code the folder is named after, and whatever else expected.json lists: nothing more above info."""
    expected = expectation(folder)
    status, found = report(folder, expected)
    reported = {f["code"] for f in found["findings"] if f["severity"] != "info" or f["code"] == folder.name}
    assert sorted(reported) == expected["codes"], shlex.join(expected.get("args", []))
    assert folder.name in reported
    assert status == (1 if found["verdict"] == "error" else 0)


@pytest.mark.parametrize("folder", VALID, ids=[folder.name for folder in VALID])
def test_check_is_silent_on_the_neighbour(folder):
    """The smallest change that makes it right: no error, and the folder's code not above info."""
    status, found = report(folder, expectation(folder))
    assert status == 0
    assert not [f for f in found["findings"] if f["severity"] == "error" or is_code(f, folder.name)]


def is_code(finding, code):
    return finding["code"] == code and finding["severity"] != "info"


def test_every_code_has_an_example():
    """A new rule comes with its examples."""
    assert set(all_codes()) == {folder.name for folder in INVALID} | set(ELSEWHERE)


def test_every_rule_has_a_neighbour():
    """A rule that always fires would pass the other test."""
    rules = {code for code in all_codes() if code.startswith(("HC", "CF", "KP", "SC"))}
    assert rules - {folder.name for folder in VALID} <= set(ELSEWHERE) | {"CF-16", "CF-17"}


@pytest.mark.parametrize("file", DOCUMENTS, ids=[file.stem for file in DOCUMENTS])
def test_fix_repairs_a_sample_of_the_documents(file, tmp_path):
    """What people copy from the manuals: something to report before, no error after, nothing left to repair."""
    before = CliRunner().invoke(main, ["check", str(file), "--no-env", "--format", "json"])
    assert json.loads(before.stdout)["verdict"] in {"error", "warning"}
    fixed = tmp_path / "config.json"
    after = CliRunner().invoke(main, ["check", str(file), "--no-env", "--fix", "--output", str(fixed)])
    assert after.exit_code == 0, after.output
    again = CliRunner().invoke(main, ["check", str(fixed), "--no-env", "--strict"])
    assert again.exit_code == 0, again.output
    assert fixed.read_bytes().count(b"\r\n") == (fixed.read_bytes().count(b"\n") if b"\r\n" in file.read_bytes() else 0)
