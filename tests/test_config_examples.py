"""Every code fires on its own example and stays silent beside it; examples are found by folder."""

import json
import re
import shlex

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.check.rules import all_codes
from mindie_kvpool_plugin.cli.main import main
from tests.check_examples import EXAMPLES, config_bytes, read, write

CODES = sorted(folder for folder in EXAMPLES.iterdir() if (folder / "wrong.json").exists())
NEIGHBOURS = [folder for folder in CODES if (folder / "right.json").exists()]
DOCUMENTS = sorted((EXAMPLES / "documents").iterdir())
# shown by tests of their own, because a checkout cannot hold such a file
ELSEWHERE = {
    "FI-01": "tests/unit/cli/test_check_command.py",
    "FI-03": "tests/unit/check/text/test_load.py",
    "FI-09": "tests/unit/check/text/test_load.py",
    "JS-26": "tests/unit/check/text/test_load.py",
    "HC-80": "tests/unit/check/rules/test_rules_on_server.py",
}


def report(case, folder, lang="en"):
    args = ["--lang", lang, "--no-env", "--format", "json", *write(case, folder)]
    run = CliRunner().invoke(main, ["check", str(folder / "config.json"), *args])
    assert run.exception is None or isinstance(run.exception, SystemExit), run.exception
    return run.exit_code, json.loads(run.stdout)


@pytest.mark.parametrize("folder", CODES, ids=[folder.name for folder in CODES])
def test_check_reports_exactly_the_expected_codes(folder, tmp_path):
    """The code the folder is named after, and whatever else the example lists: nothing more above info."""
    case = read(folder / "wrong.json")
    status, found = report(case, tmp_path)
    reported = {f["code"] for f in found["findings"] if f["severity"] != "info" or f["code"] == folder.name}
    assert sorted(reported) == case["codes"], shlex.join(case.get("args", []))
    assert folder.name in reported
    assert status == (1 if found["verdict"] == "error" else 0)


@pytest.mark.parametrize("folder", NEIGHBOURS, ids=[folder.name for folder in NEIGHBOURS])
def test_check_is_silent_on_the_neighbour(folder, tmp_path):
    """The smallest change that makes it right: no error, and the folder's code not above info."""
    status, found = report(read(folder / "right.json"), tmp_path)
    assert status == 0
    assert not [f for f in found["findings"] if f["severity"] == "error" or is_code(f, folder.name)]


@pytest.mark.parametrize("folder", CODES, ids=[folder.name for folder in CODES])
def test_chinese_findings_hold_no_english_words(folder, tmp_path):
    """Names and values stay as they are written; what is said about them does not."""
    _, found = report(read(folder / "wrong.json"), tmp_path, lang="zh")
    told = [finding[part] for finding in found["findings"] for part in ("message", "hint")]
    told = [re.sub(r'"[^"]*"', "", text.replace(str(tmp_path), "")) for text in told]
    assert [text for text in told if re.search(r"(?<!/)\b(the|is|of|and|or|not|expected|to|with)\b", text)] == []


def is_code(finding, code):
    return finding["code"] == code and finding["severity"] != "info"


def test_every_code_has_an_example():
    """A new rule comes with its examples."""
    assert set(all_codes()) == {folder.name for folder in CODES} | set(ELSEWHERE)


def test_every_rule_has_a_neighbour():
    """A rule that always fires would pass the other test."""
    rules = {code for code in all_codes() if code.startswith(("HC", "CF", "KP", "SC"))}
    assert rules - {folder.name for folder in NEIGHBOURS} <= set(ELSEWHERE) | {"CF-16"}


@pytest.mark.parametrize("file", DOCUMENTS, ids=[file.stem for file in DOCUMENTS])
def test_fix_repairs_a_sample_of_the_documents(file, tmp_path):
    """What people copy from the manuals: something to report before, no error after, nothing left to repair."""
    copied, fixed = tmp_path / "copied.json", tmp_path / "config.json"
    copied.write_bytes(config_bytes(read(file)))
    before = CliRunner().invoke(main, ["check", str(copied), "--no-env", "--format", "json"])
    assert json.loads(before.stdout)["verdict"] in {"error", "warning"}
    after = CliRunner().invoke(main, ["check", str(copied), "--no-env", "--fix", "--output", str(fixed)])
    assert after.exit_code == 0, after.output
    again = CliRunner().invoke(main, ["check", str(fixed), "--no-env", "--strict"])
    assert again.exit_code == 0, again.output
    ends = fixed.read_bytes().count(b"\r\n")
    assert ends == (fixed.read_bytes().count(b"\n") if b"\r\n" in copied.read_bytes() else 0)
