"""The demo as a user calls it."""

import json

import click
import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.simulator import device, mooncake_master
from mindie_kvpool_plugin.simulator.trace import make_chat_trace, write_trace

SMALL = ("--requests", "60", "--hbm-blocks", "70")


def _demo(*arguments):
    return CliRunner().invoke(main, ["demo", *arguments], env={"LC_ALL": "C"})


@pytest.mark.parametrize(
    "options",
    [(), ("--async-scheduling", "--async-write"), ("--tp", "2", "--mla", "--seed", "3"), ("--pool", "mooncake")],
    ids=" ".join,
)
def test_demo_compares_both_runs_and_succeeds(tmp_path, options):
    """A table for people, the same numbers as JSON, exit status 0."""
    path = tmp_path / "results.json"
    result = _demo(*SMALL, *options, "--json", str(path))
    assert result.exit_code == 0, result.output
    for text in ("recomputed tokens", "kv_pool.model_inputs_update", "every answer is right"):
        assert text in result.stdout
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content.keys() == {"without_pool", "with_pool"}
    assert content["with_pool"]["computed_tokens"] < content["without_pool"]["computed_tokens"]
    assert {"requests", "prompt_tokens", "hbm_hit_tokens", "pool_hit_tokens", "spilled_blocks"} < content[
        "with_pool"
    ].keys()


def test_demo_speaks_chinese():
    """Tables and verdict."""
    result = _demo(*SMALL, "--lang", "zh")
    assert result.exit_code == 0
    for text in ("重新计算的 token", "取回的块", "所有答案都正确"):
        assert text in result.stdout
    assert "demo." not in result.stdout


def test_demo_fails_after_a_corruption(monkeypatch):
    """Wrong bytes make exit status 1 and are said."""
    write = device.Device._write
    monkeypatch.setattr(device.Device, "_write", lambda self, job, slots, keys: write(self, job, slots, ~keys))
    result = _demo(*SMALL)
    assert result.exit_code == 1
    assert "NOT RIGHT" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--trace", "no_such_trace.jsonl"), "no_such_trace.jsonl: cannot be read: No such file"),
        (("--hbm-blocks", "2"), "raise --hbm-blocks"),
        (("--requests", "3", "--hbm-blocks", "70", "--json", "no/such/folder/x.json"), "x.json: No such file"),
    ],
)
def test_demo_that_cannot_run_says_why_in_one_line(arguments, expected):
    """Exit status 2, the thing and its fix, no traceback."""
    result = _demo(*arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("mindie-kvpool demo: ")
    assert expected in result.stderr


@pytest.mark.parametrize(
    "arguments", [("--no-such-option",), ("--requests", "many"), ("--tp", "3"), ("--pool", "redis")]
)
def test_demo_refuses_wrong_options(arguments):
    """Exit status 2 with click's own message."""
    result = _demo(*arguments)
    assert result.exit_code == click.UsageError.exit_code == 2
    assert arguments[0] in result.stderr


def test_demo_names_a_missing_mooncake(monkeypatch):
    """The binary and the command that installs it."""
    monkeypatch.setattr(mooncake_master, "BINARY", "no_such_master")
    result = _demo(*SMALL, "--pool", "mooncake")
    assert result.exit_code == 2
    assert "no_such_master was not found" in result.stderr
    assert "pip install" in result.stderr


def test_demo_with_faults_counts_them_and_is_right(tmp_path):
    """A broken pool costs recomputing; table and JSON say which faults happened."""
    file = tmp_path / "result.json"
    result = _demo(*SMALL, "--tp", "2", "--faults", "get_fail=0.2,raise=0.05,put_fail=0.1", "--json", str(file))
    assert result.exit_code == 0, result.output
    with_pool = json.loads(file.read_text())["with_pool"]
    assert set(with_pool["faults"]) == {"get_fail", "put_fail", "raise"}
    assert with_pool["recomputed_blocks"] > 0
    assert "fault: get_fail" in result.stdout


def test_demo_sees_flips_that_the_pool_does_not():
    """The one fault no key can detect shows in the model's check: exit status 1."""
    result = _demo(*SMALL, "--faults", "undetected_flip=0.5")
    assert result.exit_code == 1
    assert "NOT RIGHT" in result.stdout


@pytest.mark.parametrize(
    ("spec", "expected"),
    [("gte_fail=0.1", 'did you mean "get_fail"?'), ("get_fail=0.1,rank=1", "--tp 1 has ranks 0 to 0")],
)
def test_demo_refuses_wrong_faults(spec, expected):
    """Exit status 2 and one line."""
    result = _demo(*SMALL, "--faults", spec)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert expected in result.stderr


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_demo_with_a_profile_compares_three_services(tmp_path, lang):
    """Profile and source, what users would see of each service, the same as JSON; in both languages."""
    path = tmp_path / "results.json"
    result = _demo("--profile", "qwen-7b", "--requests", "10", "--lang", lang, "--json", str(path))
    assert result.exit_code == 0, result.output
    expected = {
        "en": (
            "Profile qwen-7b: Qwen2.5-7B",
            "not measured",
            "MindIE-LLM's",
            "time to first token, p50 (s)",
            "is right",
        ),
        "zh": ("配置 qwen-7b：Qwen2.5-7B", "并非实测", "MindIE-LLM", "首 token 时延，p50（s）", "所有答案都正确"),
    }
    for text in (*expected[lang], "Qwen2.5-7B config.json"):
        assert text in result.stdout
    assert "demo." not in result.stdout
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content.keys() == {"without", "host", "plugin"}
    assert all(0 < told["first_token_p50_s"] <= told["first_token_p99_s"] for told in content.values())


def test_demo_with_a_profile_replays_a_trace_by_its_time_stamps(tmp_path):
    """As much slower as the load says; device, pool and bandwidth as asked."""
    path = tmp_path / "trace.jsonl"
    write_trace(iter(list(make_chat_trace())[:10]), path)
    options = ("--hbm-blocks", "60", "--pool-blocks", "100", "--pool-bandwidth", "2", "--load", "0.5")
    result = _demo("--profile", "llama-70b", "--trace", str(path), *options)
    assert result.exit_code == 0, result.output
    for text in ("by the trace's time stamps", "at 2 GB/s per rank", "30,720 on the devices, 51,200 in the pool"):
        assert text in result.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--profile", "qwen-7b", "--tp", "2", "--mla"), "--tp, --mla: not with --profile"),
        (("--load", "0.5"), "--load: only with --profile"),
        (("--profile", "qwen-7b", "--requests", "10", "--hbm-blocks", "3"), "raise --hbm-blocks"),
    ],
)
def test_demo_refuses_what_a_profile_does_not_go_with(arguments, expected):
    """Exit status 2 and one line that names the option."""
    result = _demo(*arguments)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert expected in result.stderr
