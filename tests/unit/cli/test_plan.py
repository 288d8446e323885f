"""The planner as a user calls it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli import plan
from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.planning import plot
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE
from tests.unit.planning.test_sizes import R1

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "mindie_kvpool_plugin" / "conf_examples" / "deepseek_r1_8_cards" / "config.json"
TRACED = ("--trace", str(BUNDLED_TRACE), "--requests", "200")


def run(*args, lang="en"):
    return CliRunner().invoke(main, ["plan", *map(str, args), "--lang", lang], env={"COLUMNS": "120"})


@pytest.fixture
def weights(tmp_path):
    file = tmp_path / "weights.json"
    file.write_text(json.dumps(R1), encoding="utf-8")
    return file


def planned(weights, *more):
    result = run(CONFIG, "--model-config", weights, "--dram", "800GB", *more, "--format", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_plan_says_what_to_write(weights):
    """Bytes, blocks, segment, links, and what a restart loses."""
    result = run(CONFIG, "--model-config", weights, "--dram", "800GB")
    assert result.exit_code == 0, result.output
    for text in ("9,142,272 B / 71,424 B", "93,018", "99GB", "28MB", "0.91", "its share of the pool is lost"):
        assert text in result.stdout


def test_plan_knows_a_pool_in_store_processes(weights):
    """Segment 0, the same blocks, and another sentence about restarts."""
    result = run(CONFIG, "--model-config", weights, "--dram", "800GB", "--store")
    assert "engines may restart" in result.stdout
    found = planned(weights, "--store")["pool"]
    assert (found["segment"], found["store"], found["pool_blocks"]) == (0, 792 * 2**30, 93_018)


def test_the_pool_file_says_how_much_memory_there_is(weights):
    """32 GB and a buffer of 1 GB for each of 8 ranks."""
    result = run(
        CONFIG, "--model-config", weights, "--pool-config", CONFIG.with_name("kv_pool.json"), "--format", "json"
    )
    found = json.loads(result.stdout)["pool"]
    assert (found["segment"], found["buffer"], found["memory_source"]) == (32 * 2**30, 2**30, "plan.memory_of_file")


def test_memcache_calls_the_size_otherwise(weights):
    """Its own file has it."""
    config = CONFIG.parents[1] / "memcache_one_server" / "config.json"
    result = run(config, "--model-config", weights, "--dram", "800GB")
    assert "ock.mmc.local_service.dram.size" in result.stdout
    assert "global_segment_size" not in result.stdout


def test_a_segment_of_nothing_means_stores(weights, tmp_path):
    """The pool file of a deployment with stores; what to start is told, with its disk."""
    pool = tmp_path / "pool.json"
    pool.write_text('{"global_segment_size": 0, "kv_pool": {}}', encoding="utf-8")
    args = (CONFIG, "--model-config", weights, "--pool-config", pool, "--dram", "800GB", "--ssd", "2TB")
    assert "mindie-kvpool store CONFIG --size 792GB --ssd DIR --ssd-size 2048GB" in run(*args).stdout


def test_plan_draws_hit_rate_over_size(weights):
    """A row per size with its bar, the knee, the planned size, and a verdict."""
    result = run(CONFIG, "--model-config", weights, "--dram", "40GB", "--hbm-blocks", "250", *TRACED)
    assert result.exit_code == 0, result.output
    for text in (
        "░",
        "█",
        "knee",
        "planned",
        "All repeats are",
        "Worth it if each rank loads more than",
        "6,688 per NPU",
    ):
        assert text in result.stdout


def test_plan_speaks_chinese(weights):
    """No key of the catalog is left."""
    result = run(CONFIG, "--model-config", weights, "--hbm-memory", "2GB", *TRACED, lang="zh")
    assert result.exit_code == 0, result.output
    assert "命中率随池大小的变化" in result.stdout
    assert "取了池文件中各 rank 给出的内存" in result.stdout
    assert "plan." not in result.stdout


def test_without_a_pool_file_this_machine_suggests(weights):
    """And says that it is no more than that."""
    result = run("--model-config", weights, "--tp", "8")
    assert result.exit_code == 0, result.output
    assert "only a suggestion" in result.stdout


def test_measured_rates_decide(weights):
    """Twice the break-even is worth it, half of it is not."""
    traced = (*TRACED, "--hbm-blocks", "250", "--prefill-rate", "10000")
    assert planned(weights, *traced)["worth"]["verdict"] == "depends"
    even = planned(weights, *traced)["worth"]["break_even"]
    assert planned(weights, *traced, "--rank-rate", int(2 * even))["worth"]["verdict"] == "worth"
    assert planned(weights, *traced, "--rank-rate", int(even / 2))["worth"]["verdict"] == "too_slow"


def test_a_disk_below_the_pool_answers_too(weights):
    """What memory forgets is read from there."""
    small = ("--dram", "1GB", "--hbm-blocks", "250", *TRACED, "--pool-blocks", "400")
    point, with_disk = (planned(weights, *small, *more)["curve"]["points"][0] for more in ((), ("--ssd", "500GB")))
    assert point["disk"] == 0
    assert with_disk["disk"] > 0
    assert with_disk["hits"] > point["hits"] + 0.05


def test_traffic_alone_is_enough_for_a_curve():
    """Without a model: blocks instead of bytes."""
    result = run(*TRACED, "--hbm-blocks", "60", "--block-size", "512", "--pool-blocks", "200,800")
    assert result.exit_code == 0, result.output
    assert "plan." not in result.stdout
    assert "800" in result.stdout


def test_blocks_on_disk_need_no_model():
    """A third column, and more hits."""
    args = (*TRACED, "--hbm-blocks", "60", "--block-size", "512", "--pool-blocks", "200", "--format", "json")
    point, with_disk = (
        json.loads(run(*args, *more).stdout)["curve"]["points"][0] for more in ((), ("--disk-blocks", 800))
    )
    assert with_disk["hits"] > point["hits"] + 0.1
    assert with_disk["disk"] > 0.1


@pytest.mark.parametrize("ending", plot.ENDINGS)
def test_plot_is_a_picture_and_the_same_each_time(tmp_path, ending):
    """The same bytes from the same input."""
    pytest.importorskip("matplotlib")
    files = [tmp_path / f"{name}{ending}" for name in ("one", "two")]
    for file in files:
        result = run(*TRACED, "--hbm-blocks", "60", "--plot", file)
        assert result.exit_code == 0, result.output
    first, second = (file.read_bytes() for file in files)
    assert first[:4] in {b"\x89PNG", b"<?xm", b"%PDF"}
    assert first == second


def test_requests_are_converted(tmp_path):
    """And what was written can be planned with."""
    source, target = tmp_path / "log.jsonl", tmp_path / "trace.jsonl"
    lines = [json.dumps({"prompt": "word " * 2000 + str(number)}) for number in range(4)]
    source.write_text("\n".join(lines), encoding="utf-8")
    result = run("--trace", source, "--save-trace", target)
    assert (result.exit_code, "4 requests written" in result.stdout) == (0, True)
    assert run("--trace", target, "--hbm-blocks", "60").exit_code == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "nothing to plan"),
        (("no_such.json",), "no_such.json: No such file"),
        ((CONFIG,), "--model-config weights/config.json"),
        (TRACED, "give --hbm-blocks N"),
        (("--save-trace", "x"), "--save-trace needs --trace"),
        ((*TRACED, "--hbm-blocks", "60", "--plot", "x.txt"), "must end in one of .png"),
        (("--trace", "no_such.jsonl", "--hbm-blocks", "60"), "no_such.jsonl: cannot be read"),
        (("--dram", "lots"), "lots is no size such as 200GB"),
        ((*TRACED, "--hbm-blocks", "60", "--ssd", "1TB"), "--dram, --ssd and --store need a model"),
        ((*TRACED, "--pool-blocks", "1,x"), "is no list such as 10000,20000"),
    ],
)
def test_what_cannot_be_planned_is_one_clear_line(args, said):
    """Exit status 2, no traceback."""
    result = run(*args)
    assert result.exit_code == 2
    assert said in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--dram", "10MB"), "--dram is too little"),
        (("--tp", "8", "--ranks-per-node", "3"), "tp x dp x cp is 8, which 3 ranks per node do not divide"),
        (("--tp", "8", "--sp", "2"), "sp is 2, but must be 1 or tp"),
        (("--tp", "16", "--ranks-per-node", "8", "--nodes", "3"), "an instance takes 2 each"),
        (("--plot", "x.png"), "needs --trace requests.jsonl"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(weights, args, said):
    """With the numbers that clash."""
    result = run("--model-config", weights, *args)
    assert result.exit_code == 2
    assert said in result.stderr


def english_in(text):
    """Words of a sentence, beside names, values and what the operating system or a library said."""
    return re.findall(
        r"(?<![\w./\"'-])(?:the|is|of|and|or|not|no|expected|to|with|such|must|give|needs|cannot)\b", text
    )


@pytest.mark.parametrize(
    ("content", "change"),
    [
        ("no json", {}),
        ({}, {}),
        ({"BackendConfig": {}, "ServerConfig": {}}, {}),
        (None, {"cacheBlockSize": 0}),
        (None, {"worldSize": "many"}),
        (None, {"tp": 3}),
        (None, {"sp": 5}),
    ],
)
def test_a_configuration_that_cannot_be_planned_is_told_in_chinese(content, change, tmp_path, weights):
    """Whatever is wrong in it."""
    config = json.loads(CONFIG.read_text(encoding="utf-8"))
    model = config["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0]
    model.update({key: value for key, value in change.items() if key != "cacheBlockSize"})
    config["BackendConfig"]["ScheduleConfig"].update({key: 0 for key in change if key == "cacheBlockSize"})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config if content is None else content).strip('"'), encoding="utf-8")
    result = run(path, "--model-config", weights, "--dram", "800GB", lang="zh")
    assert result.exit_code == 2
    assert english_in(result.stderr.replace(str(tmp_path), "")) == []
    assert re.search(r"[\u4e00-\u9fff]", result.stderr)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense", "[1, 2]", '{"model": "x"}', '{"prompt": ""}', '{"token_ids": [-2]}', '{"messages": ["hello"]}',
        '{"prompt": "a", "timestamp": "now"}', "Receive request from 10.0.0.1 uri is /v1", "", '{"hash_ids": 1}',
        '{"hash_ids": [1], "timestamp": 0, "input_length": 600, "output_length": 1}', '{"hash_ids": [1]}',
    ],
)  # fmt: skip
def test_a_damaged_file_of_requests_is_told_in_chinese(line, tmp_path):
    """Python's own words for a broken JSON stay as they are."""
    file = tmp_path / "requests.jsonl"
    file.write_text(line, encoding="utf-8")
    result = run("--trace", file, "--hbm-blocks", "60", lang="zh")
    assert result.exit_code == 2
    assert english_in(result.stderr.replace(str(tmp_path), "")) == []
    assert re.search(r"[\u4e00-\u9fff]", result.stderr)


@pytest.mark.parametrize(
    "args",
    [
        (), ("no_such.json",), (CONFIG,), TRACED, ("--save-trace", "x"), ("--plot", "missing/x.png"),
        (*TRACED, "--hbm-blocks", "60", "--plot", "x.txt"), ("--trace", "no_such.jsonl", "--hbm-blocks", "60"),
        (*TRACED, "--hbm-blocks", "60", "--ssd", "1TB"), ("--model-config", "no_such.json"),
        (CONFIG.parent / "kv_pool.json",), (*TRACED, "--save-trace", "x.jsonl"),
        (*TRACED, "--hbm-blocks", "9", "--tokenizer", "no_such"),
    ],
)  # fmt: skip
def test_a_wrong_question_is_told_in_chinese(args):
    """As it is in English."""
    result = run(*args, lang="zh")
    assert result.exit_code == 2
    told = result.stderr.replace(str(CONFIG.parent), "")
    assert english_in(told) == []
    assert re.search(r"[\u4e00-\u9fff]", told)


@pytest.mark.parametrize(
    "args",
    [
        ("--dram", "10MB"), ("--tp", "8", "--ranks-per-node", "3"), ("--tp", "8", "--sp", "2"), ("--plot", "x.png"),
        ("--tp", "16", "--ranks-per-node", "8", "--nodes", "3"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_told_in_chinese(weights, args):
    """As they are in English."""
    result = run("--model-config", weights, *args, lang="zh")
    assert result.exit_code == 2
    assert english_in(result.stderr) == []


@pytest.mark.parametrize(("key", "value"), [("num_hidden_layers", "61"), ("torch_dtype", "fp8")])
def test_an_odd_model_is_told_in_chinese(tmp_path, key, value):
    """Place, value seen, value expected."""
    file = tmp_path / "model.json"
    file.write_text(json.dumps({**R1, key: value}), encoding="utf-8")
    result = run("--model-config", file, lang="zh")
    assert result.exit_code == 2
    assert f"{key} 为 '{value}'" in result.stderr
    assert english_in(result.stderr.replace(str(tmp_path), "")) == []


@pytest.mark.parametrize(
    "args",
    [
        ("--hbm-blocks", 10**18), ("--hbm-blocks", "60", "--pool-blocks", 2**40 - 1), ("--hbm-blocks", "1"),
        ("--hbm-blocks", "60", "--disk-blocks", 10**18), ("--hbm-blocks", "60", "--concurrency", 10**18),
        ("--hbm-blocks", "60", "--requests", 10**18),
    ],
)  # fmt: skip
def test_numbers_beyond_all_sense_take_no_memory(args):
    """The traffic bounds what there is to replay."""
    result = run(*TRACED, *args, "--format", "json")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("nodes", [10**6, 10**17])
def test_servers_without_requests_take_no_memory(weights, nodes):
    """As many schedulers as there are requests have something to do."""
    args = ("--model-config", weights, "--tp", "8", "--nodes", nodes, "--dram", "100GB", "--hbm-memory", "900TB")
    result = run(*args, "--trace", BUNDLED_TRACE, "--requests", "20", "--format", "json")
    assert result.exit_code == 0, result.output


def test_a_block_larger_than_a_unit_of_a_trace_is_refused():
    """No host has one; with hundreds of millions of tokens the counts of second_use would have no room."""
    result = run(*TRACED, "--hbm-blocks", "60", "--block-size", 10**8)
    assert result.exit_code == 2
    assert "'--block-size': 100000000 is not in the range 1<=x<=512" in result.stderr


@pytest.mark.parametrize("link", [True, False], ids=["link", "same name"])
def test_requests_are_not_replaced_by_their_trace(tmp_path, link):
    """They may be the only copy."""
    file, target = tmp_path / "requests.jsonl", tmp_path / "other.jsonl"
    file.write_text('{"prompt": "a"}', encoding="utf-8")
    target.symlink_to(file)
    result = run("--trace", file, "--save-trace", target if link else file)
    assert result.exit_code == 2
    assert f"{file}: the requests would be replaced by their trace" in result.stderr
    assert file.read_text(encoding="utf-8") == '{"prompt": "a"}'


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_requests_without_a_full_block_are_told(tmp_path, lang):
    """No curve can be drawn of nothing."""
    file = tmp_path / "requests.jsonl"
    file.write_text('{"prompt": "a"}', encoding="utf-8")
    result = run("--trace", file, "--hbm-blocks", "60", lang=lang)
    assert result.exit_code == 2
    said = {"en": "no request fills a block of 128 tokens", "zh": "没有一条请求填满一个 128 token 的块"}
    assert said[lang] in result.stderr


@pytest.mark.parametrize("option", ["--plot", "--save-trace"])
def test_a_full_disk_is_told_with_the_file(tmp_path, option):
    """Also where a library writes."""
    file, requests = tmp_path / "result.svg", tmp_path / "requests.jsonl"
    file.symlink_to("/dev/full")
    requests.write_text(json.dumps({"prompt": "word " * 2000}), encoding="utf-8")
    if option == "--plot":
        pytest.importorskip("matplotlib")
    result = run("--trace", requests, "--hbm-blocks", "60", option, file)
    assert result.exit_code == 2
    assert result.stderr == f"mindie-kvpool plan: {file}: No space left on device\n"


def test_a_plot_that_cannot_be_made_is_told_before_the_replay(monkeypatch):
    """The curve of a long trace takes minutes."""
    monkeypatch.setattr(plan.curves, "curve", None)
    assert "must end in one of .png" in run(*TRACED, "--hbm-blocks", "60", "--plot", "x.txt").stderr


def test_weights_that_are_named_and_broken_are_told(tmp_path):
    """Not asked for once more."""
    file = tmp_path / "weights.json"
    file.write_text("", encoding="utf-8")
    result = run(CONFIG, "--model-config", file)
    assert f"{file}: is no JSON object (line 1, column 1)" in result.stderr


def test_a_damaged_trace_is_told_with_its_line(tmp_path):
    """As the demo does."""
    file = tmp_path / "trace.jsonl"
    good = '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}'
    file.write_text(good + "\n" + good.replace("[1, 2]", "[1]"), encoding="utf-8")
    result = run("--trace", file, "--hbm-blocks", "60")
    assert result.exit_code == 2
    assert f"{file}:2: 600 tokens need 2 hash_ids" in result.stderr


@pytest.mark.parametrize(("form", "status"), [("text", 2), ("json", 0)])
def test_tables_need_a_package_and_figures_do_not(form, status):
    """One line that says which."""
    args = ["plan", *map(str, TRACED), "--hbm-blocks", "60", "--format", form, "--lang", "en"]
    code = f"import sys\nsys.modules['rich'] = None\nfrom mindie_kvpool_plugin.cli.main import main\nmain({args})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == status
    assert ("tables need the Python package rich: pip install" in done.stderr) is (form == "text")
    assert "Traceback" not in done.stderr


def test_plan_needs_no_torch():
    """It runs on any machine where the check runs."""
    code = (
        "import sys\nfrom mindie_kvpool_plugin.cli.main import main\n"
        f"try:\n main(['plan', *{list(map(str, TRACED))}, '--hbm-blocks', '60', '--format', 'json'])\n"
        "except SystemExit:\n pass\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_pool_file_is_no_configuration():
    """master, store and doctor take either; here it has an option of its own."""
    result = run(CONFIG.parent / "kv_pool.json")
    assert result.exit_code == 2
    assert "kv_pool.json is a pool file, expected the config.json that names it; give this with --pool-config" in (
        result.stderr
    )
