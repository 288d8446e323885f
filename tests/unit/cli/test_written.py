"""What a command writes into a file: whole or not at all, and what is no file stays what it is."""

import json
import os
import resource
import stat
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli import acceptance, demo
from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.cli.written import write_whole
from tests.check_examples import MINIMAL


@contextmanager
def full_disk(room_bytes):
    """No file of this process may grow beyond it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_keeps_the_former_file(tmp_path):
    """Whoever runs a report again has the last one until the next is whole."""
    path = tmp_path / "report.html"
    path.write_text("former", encoding="utf-8")
    with full_disk(100), pytest.raises(OSError, match="too large"):
        write_whole(path, b"x" * 1000)
    assert path.read_text(encoding="utf-8") == "former"
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_file_keeps_its_mode_and_a_new_one_is_the_users(tmp_path):
    """0640 stays; else what the umask leaves."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch(mode=0o640)
    os.chmod(old, 0o640)
    before = os.umask(0o027)
    try:
        for path in (old, new):
            write_whole(path, b"x")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (old, new)] == [0o640, 0o640]


def test_what_a_link_leads_to_is_written(tmp_path):
    """The link stays."""
    file, link = tmp_path / "file", tmp_path / "link"
    file.touch()
    link.symlink_to(file)
    write_whole(link, b"x")
    assert link.is_symlink()
    assert file.read_bytes() == b"x"


def test_a_pipe_is_written_to_and_stays(tmp_path):
    """As /dev/null and every other device must, whoever runs this: root could take its place."""
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MINIMAL).replace('"port": 1025', '"port"： 1025'), encoding="utf-8")
    reader = threading.Thread(target=lambda: heard.append(Path(pipe).read_text(encoding="utf-8")), daemon=True)
    reader.start()
    run = CliRunner().invoke(main, ["check", str(config), "--no-env", "--fix", "--output", str(pipe)])
    if not stat.S_ISFIFO(pipe.stat().st_mode):
        pytest.fail("a file took the pipe's place")
    reader.join(10)
    assert json.loads(heard[0]) == MINIMAL
    assert run.exit_code == 0


def test_a_page_that_cannot_be_written_takes_nothing_away(tmp_path, capsys):
    """A report onto a full device: exit 2, one line, and the device's name is still there."""
    link = tmp_path / "page.html"
    link.symlink_to("/dev/full")
    with pytest.raises(SystemExit) as ended:
        acceptance._write(link, "x" * 10, "en")
    assert ended.value.code == 2
    assert "No space left on device" in capsys.readouterr().err
    assert link.is_symlink()
    assert stat.S_ISCHR(link.stat().st_mode)


@pytest.mark.parametrize("options", [[], ["--profile", "qwen-7b"]], ids=["plain", "profile"])
def test_results_that_cannot_be_written_are_shown(options, tmp_path):
    """The demo has run for minutes by then."""
    path = tmp_path / "results.json"
    path.symlink_to("/dev/full")
    run = CliRunner().invoke(main, ["demo", "--requests", "3", *options, "--json", str(path), "--lang", "en"])
    assert run.exit_code == 2
    assert f"{path}: No space left on device" in run.stderr
    assert "requests on a simulated MindIE-LLM" in run.stdout or "time to first token" in run.stdout


@pytest.mark.parametrize("options", [[], ["--profile", "qwen-7b"]], ids=["plain", "profile"])
def test_a_demo_whose_results_have_no_place_does_not_begin(options, tmp_path, monkeypatch):
    """A folder is missing: that can be known at once."""
    monkeypatch.setattr(demo, "compare", None)
    monkeypatch.setattr(demo.timed, "compare", None)
    path = tmp_path / "missing" / "results.json"
    run = CliRunner().invoke(main, ["demo", "--requests", "3", *options, "--json", str(path)])
    assert run.exit_code == 2
    assert run.stderr == f"mindie-kvpool demo: {path}: No such file or directory\n"


def test_an_acceptance_whose_page_has_no_place_does_not_begin(tmp_path, monkeypatch):
    """Likewise."""
    monkeypatch.setattr(acceptance, "read_report", None)
    path = tmp_path / "missing" / "page.html"
    run = CliRunner().invoke(main, ["acceptance", str(tmp_path / "kv_pool.json"), "--html", str(path)])
    assert run.exit_code == 2
    assert run.stderr == f"mindie-kvpool acceptance: {path}: No such file or directory\n"
