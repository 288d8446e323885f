"""The command as a user meets it: arguments, exit codes, formats, repairs."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from tests.check_examples import MINIMAL, changed
from tests.unit.check.configs import WITH_POOL

KEYS = ["code", "severity", "outcome", "file", "path", "line", "column", "end_line", "end_column", "value", "message",
        "hint", "fixable", "source"]  # fmt: skip


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"

    def write(changes=None, text=None):
        content = text if text is not None else json.dumps(changed(changes or {}), indent=2)
        path.write_text(content, encoding="utf-8")
        path.chmod(0o640)
        return path

    return write


def run(*args, **kwargs):
    return CliRunner().invoke(main, ["check", *map(str, args)], **kwargs)


@pytest.mark.parametrize(
    ("changes", "args", "status"),
    [
        ({}, [], 0),
        ({"S.unknown_thing": 1}, [], 0),
        ({"S.unknown_thing": 1}, ["--strict"], 1),
        ({"S.port": 80}, [], 1),
        ({}, ["--host-version", "3.0.0.beta.2"], 1),
        (WITH_POOL, ["--dies", "600"], 1),
        (WITH_POOL, ["--scale-out", "--env", "NPU_MEMORY_FRACTION=0.92", "--strict"], 1),
    ],
)
def test_exit_status_is_the_verdict(config, changes, args, status):
    """0 no errors, 1 errors; warnings count with --strict."""
    assert run(config(changes), "--no-env", *args).exit_code == status


@pytest.mark.parametrize("args", [["/nonexistent/config.json"], ["."], []])
def test_exit_status_is_two_when_nothing_could_be_checked(args, monkeypatch, tmp_path):
    """A missing file, an empty directory, no default."""
    monkeypatch.chdir(tmp_path)
    for name in ("MINDIE_LLM_HOME_PATH", "MIES_INSTALL_PATH", "MIES_CONFIG_JSON_PATH"):
        monkeypatch.delenv(name, raising=False)
    result = run(*args)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("args", [["--env", "X"], ["--dies", "0"], ["--output", "x"], ["--host-version", "9"]])
def test_wrong_arguments_are_usage_errors(config, args):
    """click's own exit status, which is also 2."""
    assert run(config(), *args).exit_code == 2


def test_unreadable_file_is_a_finding_in_json():
    """A program that reads the report gets one in any case."""
    report = json.loads(run("/nonexistent.json", "--format", "json").stdout)
    assert [f["code"] for f in report["findings"]] == ["FI-01"]


def test_json_has_exactly_the_promised_keys(config):
    """Programs depend on them."""
    report = json.loads(run(config({"S.port": 80}), "--no-env", "--format", "json").stdout)
    assert list(report) == ["verdict", "files", "findings"]
    assert [list(each) for each in report["files"]] == [["file", "host_version", "verdict"]]
    assert (report["verdict"], report["files"][0]["verdict"]) == ("error", "error")
    (finding,) = [f for f in report["findings"] if f["severity"] == "error"]
    assert list(finding) == KEYS
    assert (finding["path"], finding["line"], finding["value"]) == ("/ServerConfig/port", 6, 80)
    assert (finding["end_line"], finding["end_column"]) == (6, finding["column"] + 2)
    assert finding["fixable"] is False


def test_standard_input_is_checked(config):
    """With - for a name."""
    assert run("-", "--no-env", input=json.dumps(MINIMAL)).exit_code == 0
    assert run("-", "--no-env", input="{").exit_code == 1


def test_default_is_where_the_host_looks(config, monkeypatch):
    """The variable first."""
    monkeypatch.setenv("MIES_CONFIG_JSON_PATH", str(config({"S.port": 80})))
    result = run("--format", "json")
    assert json.loads(result.stdout)["files"][0]["file"] == os.environ["MIES_CONFIG_JSON_PATH"]


def test_text_shows_the_line_with_a_caret(config):
    """Under the character, counting wide ones twice."""
    path = config(text=json.dumps(MINIMAL).replace('"port": 1025', '\n"port"： 1025'))
    lines = run(path, "--no-env", "--lang", "en").output.splitlines()
    at = next(i for i, line in enumerate(lines) if line.endswith(tuple("1025,")) or '"port"：' in line)
    assert lines[at + 1].index("^") == lines[at].index("：")


def test_text_speaks_chinese(config):
    """When asked, or when the locale does."""
    assert "超出范围" in run(config({"S.port": 80}), "--no-env", "--lang", "zh").output
    assert "超出范围" in run(config({"S.port": 80}), "--no-env", env={"LC_ALL": "zh_CN.UTF-8"}).output


def test_text_has_no_colour_outside_a_terminal(config):
    """Logs stay readable."""
    assert "\x1b" not in run(config({"S.port": 80}), "--no-env").output


def test_no_follow_opens_nothing_else(config, tmp_path):
    """The pool file may be absent, broken, anything."""
    pool = tmp_path / "kv_pool.json"
    pool.write_text("{", encoding="utf-8")
    changes = WITH_POOL | {"K.configPath": str(pool)}
    assert run(config(changes), "--no-env").exit_code == 1
    assert run(config(changes), "--no-env", "--no-follow").exit_code == 0
    assert run(config(changes), "--no-env", "--no-follow", "--pool-config", pool).exit_code == 1


def test_a_large_file_is_told_with_its_real_size(tmp_path):
    """Only its beginning is read."""
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    result = run(path, "--no-env", "--lang", "en")
    assert result.exit_code == 1
    assert "the file has 104857600 bytes" in result.output


def test_fix_keeps_a_backup_and_the_mode(config):
    """The original beside it, under a name that was free."""
    path = config(text=json.dumps(MINIMAL).replace('"port": 1025', '"port"： 1025'))
    before = path.read_bytes()
    result = run(path, "--no-env", "--fix", "--lang", "en")
    assert result.exit_code == 0, result.output
    assert '+{"Version"' in result.output
    assert json.loads(path.read_text(encoding="utf-8")) == MINIMAL
    assert path.with_name("config.json.bak").read_bytes() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.write_bytes(before)
    run(path, "--no-env", "--fix")
    assert path.with_name("config.json.bak1").read_bytes() == before


def test_fix_with_output_leaves_the_file_alone(config, tmp_path):
    """The repaired copy has the original's mode."""
    path = config(text=json.dumps(MINIMAL).replace('"port": 1025', '"port"： 1025'))
    before, output = path.read_bytes(), tmp_path / "fixed.json"
    assert run(path, "--no-env", "--fix", "--output", output).exit_code == 0
    assert path.read_bytes() == before
    assert json.loads(output.read_text(encoding="utf-8")) == MINIMAL
    assert stat.S_IMODE(output.stat().st_mode) == 0o640
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "fixed.json"]


def test_fix_writes_nothing_when_nothing_is_wrong(config, tmp_path):
    """No backup, no new time stamp."""
    path = config()
    before = path.stat().st_mtime_ns
    assert run(path, "--no-env", "--fix").exit_code == 0
    assert path.stat().st_mtime_ns == before
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("args", [["--diff"], ["--diff", "--fix"]])
def test_diff_shows_the_repair_and_writes_nothing(config, tmp_path, args):
    """The verdict is that of the file as it is; standard output keeps to the report where that is for a program."""
    path = config(text=json.dumps(MINIMAL).replace('"port": 1025', '"port"： 1025'))
    before = path.read_bytes()
    result = run(path, "--no-env", *args)
    assert result.exit_code == 1
    assert '+{"Version"' in result.stdout
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["config.json"]
    as_json = run(path, "--no-env", *args, "--format", "json")
    assert json.loads(as_json.stdout)["verdict"] == "error"
    assert '+{"Version"' in as_json.stderr


def test_diff_of_a_good_file_says_that_there_is_nothing(config):
    """Exit 0, and no diff."""
    result = run(config(), "--no-env", "--diff")
    assert result.exit_code == 0
    assert "@@" not in result.output
    assert run(config(), "--diff", "--output", "x").exit_code == 2


def test_fix_of_standard_input_prints_the_file():
    """So that it can be piped; the report goes to standard error."""
    result = run("-", "--no-env", "--fix", input=json.dumps(MINIMAL).replace('"port": 1025', '"port"： 1025'))
    assert json.loads(result.stdout) == MINIMAL


def test_fix_that_cannot_write_is_no_traceback(config):
    """Exit 2, and what could not be done is writing."""
    result = run(config(), "--no-env", "--fix", "--output", "/nonexistent/x/y.json", "--lang", "en")
    assert result.exit_code == 2
    assert "cannot write /nonexistent/x/y.json" in result.output


def test_fix_to_standard_output_writes_no_file(config, tmp_path):
    """--output - is what it is everywhere; the report goes to standard error."""
    path = config(text=json.dumps(MINIMAL).replace('"port": 1025', '"port"： 1025'))
    result = run(path, "--no-env", "--fix", "--output", "-")
    assert json.loads(result.stdout) == MINIMAL
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_process_loads_no_heavy_module(config):
    """Neither torch nor a pool library nor the host; numpy would cost more than the check."""
    script = (
        "import sys\nfrom mindie_kvpool_plugin.cli.main import main\n"
        "try:\n main(['check', sys.argv[1], '--no-env'])\nexcept SystemExit:\n pass\n"
        "print([m for m in ('torch', 'numpy', 'mooncake', 'mindie_llm') if m in sys.modules])"
    )
    path = config(WITH_POOL)
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True,
                          cwd=Path(__file__).parents[3])  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
