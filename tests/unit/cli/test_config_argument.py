"""CONFIG of every command that takes one: the same files and folders, and the same words where it is none."""

import errno
import json
import os
import shutil

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli import acceptance, doctor
from mindie_kvpool_plugin.cli.main import main
from tests.unit.planning.test_sizes import R1

COMMANDS = {
    "acceptance": ["--format", "json"],
    "check": ["--no-env", "--format", "json"],
    "doctor": ["--format", "json"],
    "master": ["--print", "--format", "json"],
    "plan": ["--dram", "800GB", "--format", "json"],
    "store": ["--size", "1MB"],
}


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch):
    """What a command finds, not what it does with it."""
    monkeypatch.setattr(doctor, "PROBES", ())
    monkeypatch.setattr(acceptance, "ACCEPTANCE", ())


@pytest.fixture
def folder(tmp_path, pytestconfig):
    """A configuration and the pool file it names, as they are laid out on a server."""
    place = tmp_path / "mindie"
    shutil.copytree(pytestconfig.rootpath / "conf_examples" / "deepseek_r1_8_cards", place)
    for file in place.iterdir():
        file.chmod(0o640)
    return place


def run(name, argument, tmp_path, lang="en"):
    weights = tmp_path / "weights.json"
    weights.write_text(json.dumps(R1), encoding="utf-8")
    more = ["--model-config", str(weights)] if name == "plan" else []
    return CliRunner().invoke(main, [name, str(argument), *COMMANDS[name], *more, "--lang", lang])


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_stands_for_the_configuration_in_it(name, folder, tmp_path):
    """What is said of the folder is what is said of the file."""
    of_folder, of_file = (run(name, place, tmp_path) for place in (folder, folder / "config.json"))
    assert of_folder.exit_code == of_file.exit_code == (2 if name == "store" else 0), of_folder.output
    if name == "store":
        assert "1048576 bytes are too little" in of_folder.stderr
    elif name == "check":
        assert json.loads(of_folder.stdout)["files"] == json.loads(of_file.stdout)["files"]
    elif name in {"acceptance", "doctor"}:
        assert json.loads(of_folder.stdout)["backend"] == "mooncake"
    else:
        assert of_folder.stdout == of_file.stdout


@pytest.mark.parametrize("name", [each for each in COMMANDS if each != "plan"])
def test_a_folder_may_hold_a_pool_file_alone(name, folder, tmp_path):
    """plan needs the configuration, which says what the ranks are."""
    (folder / "config.json").unlink()
    assert run(name, folder, tmp_path).exit_code == run(name, folder / "kv_pool.json", tmp_path).exit_code


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_without_a_configuration_is_told(name, lang, tmp_path):
    """With the same words."""
    (tmp_path / "empty").mkdir()
    result = run(name, tmp_path / "empty", tmp_path, lang)
    assert result.exit_code == 2
    said = {"en": "holds neither a config.json nor a pool file", "zh": "中既没有 config.json 也没有池文件"}
    assert f"{tmp_path / 'empty'} {said[lang]}" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("name", ["acceptance", "doctor", "plan"])
def test_a_folder_with_several_configurations_is_told(name, folder, tmp_path):
    """With their names: one of them is meant."""
    shutil.copytree(folder, folder / "second")
    result = run(name, folder, tmp_path)
    assert result.exit_code == 2
    files = f"{folder / 'config.json'}, {folder / 'second' / 'config.json'}"
    assert result.stderr == f"mindie-kvpool {name}: {folder} holds several configurations ({files}); name one of them\n"


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_empty_name_is_no_folder(name, lang, folder, tmp_path, monkeypatch):
    """An unset variable of the shell: what lies in the present folder is not meant."""
    monkeypatch.chdir(folder)
    result = run(name, "", tmp_path, lang)
    assert result.exit_code == 2
    assert {"en": "an empty text names no file", "zh": "空文本不是文件名"}[lang] in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_folder_that_cannot_be_read_is_told(name, folder, tmp_path, monkeypatch):
    """Nobody knows what it holds."""

    def scandir(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "scandir", scandir)
    result = run(name, folder, tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"mindie-kvpool {name}: cannot read {folder}: Permission denied\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_rights_are_found_out_by_reading(name, folder, tmp_path, monkeypatch):
    """What the system says in advance is another user's, or another moment's; and one file does not hide the others."""
    before = run(name, folder / "config.json", tmp_path)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    after = run(name, folder / "config.json", tmp_path)
    assert (after.exit_code, after.stderr) == (before.exit_code, before.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_name_that_no_file_can_have_is_told(name, tmp_path):
    """As any other file that cannot be read."""
    result = run(name, tmp_path / ("x" * 300), tmp_path)
    assert result.exit_code == 2
    assert "File name too long" in result.stdout + result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_file_without_end_is_told(name, tmp_path):
    """A device: what is read of it is bounded."""
    result = run(name, "/dev/zero", tmp_path)
    assert result.exit_code == {"acceptance": 0, "check": 1, "doctor": 0}.get(name, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", [each for each in COMMANDS if each != "check"])
def test_a_file_that_is_missing_is_told(name, lang, tmp_path):
    """With the same words; check, which takes several, tells it as a finding in its own form."""
    result = run(name, tmp_path / "none.json", tmp_path, lang)
    assert result.exit_code == 2
    said = {"en": "cannot read {}: No such file or directory", "zh": "无法读取 {}：没有这个文件或目录"}
    assert result.stderr == f"mindie-kvpool {name}: {said[lang].format(tmp_path / 'none.json')}\n"
