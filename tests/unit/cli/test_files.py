"""What is checked: files, directories, pool files by themselves, and which findings are told."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from tests.check_examples import MINIMAL, changed
from tests.unit.check.configs import WITH_POOL

ROOT = Path(__file__).parents[3]
POOL = json.loads((ROOT / "conf_examples" / "qwen_one_server" / "kv_pool.json").read_text(encoding="utf-8"))
WRONG_PORT = changed({"S.port": 80})


def run(*args, **kwargs):
    return CliRunner().invoke(main, ["check", "--no-env", "--lang", "en", *map(str, args)], **kwargs)


def report(*args, **kwargs):
    return json.loads(run("--format", "json", *args, **kwargs).stdout)


def codes(found, *severities):
    return sorted(each["code"] for each in found["findings"] if each["severity"] in (severities or ("error",)))


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=2), encoding="utf-8")
    path.chmod(0o640)
    return path


def test_several_files_are_all_checked(tmp_path):
    """The worst of them is the exit status."""
    good, bad = write(tmp_path / "good.json", MINIMAL), write(tmp_path / "bad.json", WRONG_PORT)
    assert run(good, good).exit_code == 0
    result = run(good, bad)
    assert result.exit_code == 1
    assert [f"{good} (MindIE-LLM" in result.output, f"{bad} (MindIE-LLM" in result.output] == [True, True]
    found = report(good, bad)
    assert [each["verdict"] for each in found["files"]] == ["ok", "error"]
    assert {each["file"] for each in found["findings"] if each["severity"] == "error"} == {str(bad)}


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file or directory"), ("", "is no JSON object"), ("[]", "is no JSON object")]
)
def test_weights_that_are_named_are_read_or_told(tmp_path, content, said):
    """Not "ok" without the rules about the model."""
    weights = tmp_path / "weights.json"
    if content is not None:
        weights.write_text(content, encoding="utf-8")
    result = run(write(tmp_path / "config.json", MINIMAL), "--model-config", weights)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"mindie-kvpool check: {weights}: {said}")
    assert result.stdout == ""


def test_a_file_that_is_missing_does_not_hide_the_others(tmp_path):
    """Exit 2, and the other is judged."""
    bad = write(tmp_path / "bad.json", WRONG_PORT)
    result = run(tmp_path / "none.json", bad)
    assert result.exit_code == 2
    assert "SC-03" in result.stdout
    assert "none.json" in result.stderr


def test_a_directory_is_searched_for_what_is_ours(tmp_path):
    """By content: a broken configuration is, the config.json of weights is not; hidden folders are left alone."""
    write(tmp_path / "a" / "config.json", WRONG_PORT)
    write(tmp_path / "b" / "service.json", json.dumps(MINIMAL)[:-1])
    write(tmp_path / "b" / "pool.json", POOL | {"protocol": "smoke"})
    write(tmp_path / "weights" / "config.json", {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"})
    write(tmp_path / ".git" / "config.json", WRONG_PORT)
    write(tmp_path / "rank_table.json", {"server_list": []})
    found = report(tmp_path)
    names = [Path(each["file"]).relative_to(tmp_path).as_posix() for each in found["files"]]
    assert names == ["a/config.json", "b/pool.json", "b/service.json"]
    assert [each["verdict"] for each in found["files"]] == ["error"] * 3


def test_a_pipe_in_a_directory_is_not_waited_for(tmp_path):
    """Nobody may ever write into it."""
    os.mkfifo(tmp_path / "pipe.json")
    write(tmp_path / "pool.json", POOL)
    command = [sys.executable, "-m", "mindie_kvpool_plugin", "check", "--no-env", "--format", "json", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert [each["file"] for each in json.loads(ended.stdout)["files"]] == [str(tmp_path / "pool.json")]


def test_a_directory_without_any_is_an_error(tmp_path):
    """Nothing was checked, which is no success."""
    write(tmp_path / "package.json", {"name": "x"})
    result = run(tmp_path)
    assert result.exit_code == 2
    assert str(tmp_path) in result.stderr


def test_the_examples_are_all_good_as_a_directory():
    """Each configuration with its pool file."""
    assert run(ROOT / "conf_examples").exit_code == 0


def test_a_pool_file_that_a_configuration_names_is_told_once(tmp_path):
    """Together with the configuration, where more is known."""
    pool = write(tmp_path / "pool.json", POOL | {"protocol": "smoke"})
    write(tmp_path / "config.json", changed(WITH_POOL | {"K.configPath": str(pool)}))
    for arguments in ([tmp_path], [pool, tmp_path / "config.json"]):
        found = report(*arguments)
        assert [Path(each["file"]).name for each in found["files"]] == ["config.json"]
        assert codes(found) == ["SC-04"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"protocol": "smoke"}, ["SC-04"]),
        ({"global_segment_size": "4XB"}, ["SC-05"]),
        ({"global_segment_size": 1048576}, ["KP-11"]),
        ({"kv_pool": {"fence_timeout": 1}}, ["HC-82"]),
        ({"kv_pool": {"verify_payload": True}}, ["KP-13"]),
        ({"master_server_address": "master_server_ip:50051"}, ["KP-10"]),
    ],
)
def test_a_pool_file_is_checked_by_itself(tmp_path, change, expected):
    """With what start-up would refuse of it, at its place; no word about config.json."""
    found = report(write(tmp_path / "mooncake.json", POOL | change))
    assert codes(found, "error", "warning") == expected
    for each in found["findings"]:
        assert each["file"].endswith("mooncake.json")
        assert each["line"] is not None
        assert "BackendConfig" not in each["path"]


def test_a_broken_pool_file_is_repaired_like_a_configuration(tmp_path):
    """Syntax and misspelt keys."""
    text = (
        json.dumps(POOL, indent=2)
        .replace('"protocol": "ascend"', '"protocol"： "ascend"')
        .replace("namespace", "namespce")
    )
    path = write(tmp_path / "mooncake.json", text)
    assert run(path).exit_code == 1
    assert run(path, "--fix").exit_code == 0
    assert json.loads(path.read_text(encoding="utf-8")) == POOL


def test_fix_of_a_directory_judges_what_it_wrote(tmp_path):
    """The configuration comes before its pool file, and its report is about both as they are now."""
    pool = write(tmp_path / "pool.json", json.dumps(POOL).replace("namespace", "namespce"))
    config = changed(WITH_POOL | {"K.configPath": str(pool)})
    write(tmp_path / "config.json", json.dumps(config, indent=2).replace('"port": 1025', '"port"： 1025'))
    assert codes(report(tmp_path)) == ["HC-82", "JS-01"]
    assert run(tmp_path, "--fix").exit_code == 0
    assert json.loads(pool.read_text(encoding="utf-8")) == POOL
    assert codes(report(tmp_path)) == []


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("pool.yaml", 'master_server_address: "192.168.10.1:50051"\nprotocol: tcp\nkv_pool: {}\n', "YAML"),
        ("mooncake.json", "# Mooncake\nlocal_hostname: 10.0.0.1\nmetadata_server: P2PHANDSHAKE\n", "YAML"),
        ("pool.ini", "[mooncake]\nprotocol = tcp\nmaster_server_address = 192.168.10.1:50051\n", "INI"),
    ],
)
def test_a_pool_file_in_another_format_is_told_so(tmp_path, name, text, form):
    """One cause, and nothing about braces that are missing."""
    result = report(write(tmp_path / name, text))
    assert codes(result, "error", "warning") == ["CF-23"]
    assert form in result["findings"][0]["message"]


def test_memcache_files_are_checked_by_themselves(tmp_path):
    """The pool file, and MemCache's own file of key = value lines."""
    folder = ROOT / "conf_examples" / "memcache_one_server"
    assert run(folder / "kv_pool.json").exit_code == 0
    own = (folder / "mmc-local.conf").read_text(encoding="utf-8")
    assert run(write(tmp_path / "mmc-local.conf", own)).exit_code == 0
    found = report(write(tmp_path / "mmc-local.conf", own.replace("tcp://192.0.2.1:5000", "192.0.2.1")), "--strict")
    assert codes(found, "error", "warning") == ["SC-05"]


OTHERS = {
    "motor": {"version": "v1.0", "deploy_config": {"p_instances_num": 1}, "mindie_server_prefill_config": {}},
    "motor, only the numbers": {"p_instances_num": 1, "d_instances_num": 1},
    "atb": {"llm": {"ccl": {"enable_mc2": "true"}}, "models": {"deepseekv2": {"ep_level": 1}}},
    "weights": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 1},
    "rank table": {"version": "1.0", "server_count": "1", "server_list": [], "status": "completed"},
}


@pytest.mark.parametrize("value", OTHERS.values(), ids=OTHERS)
def test_a_file_of_another_kind_is_named_and_not_judged(tmp_path, value):
    """One finding: this is not a config.json."""
    path = write(tmp_path / "config.json", value)
    assert codes(report(path), "error", "warning", "info") == ["CF-16"]
    assert "this is not a config.json" in run(path).output


def test_select_and_ignore_choose_what_counts(tmp_path):
    """By code or by its beginning; the exit status follows."""
    path = write(tmp_path / "config.json", changed({"S.port": 80, "S.unknown_thing": 1}))
    assert codes(report(path, "--select", "SC"), "error", "warning") == ["SC-03", "SC-06"]
    assert codes(report(path, "--select", "sc-06,KP"), "error", "warning") == ["SC-06"]
    assert run(path, "--select", "SC-06").exit_code == 0
    assert run(path, "--ignore", "SC-03").exit_code == 0
    assert run(path, "--select", "SC-03", "--ignore", "SC-0").exit_code == 0
    assert report(path, "--ignore", "SC-03")["files"][0]["verdict"] == "warning"


def test_a_code_that_does_not_exist_is_refused_with_a_suggestion(tmp_path):
    """A mistyped --ignore would silently ignore nothing."""
    path = write(tmp_path / "config.json", MINIMAL)
    result = run(path, "--ignore", "SC-99")
    assert result.exit_code == 2
    assert "SC-99" in result.output
    assert re.search(r"did you mean \w\w-\d\d", run(path, "--select", "KP-033").output)


def test_select_does_not_go_with_fix(tmp_path):
    """--fix would repair what was not told."""
    assert run(write(tmp_path / "config.json", MINIMAL), "--fix", "--ignore", "SC-07").exit_code == 2


def test_quiet_tells_only_what_fails(tmp_path):
    """Nothing of a good file; errors alone of a bad one, with --strict the warnings, too."""
    good = write(tmp_path / "good.json", changed({"S.unknown_thing": 1}))
    bad = write(tmp_path / "bad.json", changed({"S.port": 80, "S.unknown_thing": 1}))
    assert run(good, "--quiet").output == ""
    lines = run(bad, "-q").output.splitlines()
    assert [line for line in lines if line.startswith(str(bad))] == [lines[0]]
    assert "SC-03" in lines[0]
    assert [f["code"] for f in report(bad, "-q", "--strict")["findings"]] == ["SC-03", "SC-06"]


def test_the_pre_commit_hook_runs_the_check(tmp_path):
    """Its pattern takes the files of the examples and leaves others; its entry is this command."""
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    pattern = re.search(r"^ +files: (.*)$", text, re.MULTILINE)[1]
    entry = re.search(r"^ +entry: (.*)$", text, re.MULTILINE)[1].split()
    matched = [path for path in (ROOT / "conf_examples").rglob("*") if re.search(pattern, path.as_posix())]
    assert {path.name for path in matched} == {"config.json", "kv_pool.json"}
    assert not re.search(pattern, "package.json")
    assert entry[0] == "mindie-kvpool"
    assert CliRunner().invoke(main, [*entry[1:], *map(str, matched)]).exit_code == 0
    bad = write(tmp_path / "config.json", WRONG_PORT)
    assert CliRunner().invoke(main, [*entry[1:], str(bad)]).exit_code == 1
