"""init: what is written works, for every situation that can be asked for."""

import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

import mindie_kvpool_plugin
from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.options.pool_file import read_pool_file
from mindie_kvpool_plugin.options.sizes import parse_size

QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 28, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
    "vocab_size": 152064,
}  # fmt: skip
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "n_routed_experts": 256, "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
    "vocab_size": 129280, "num_nextn_predict_layers": 1,
}  # fmt: skip


def run(*args):
    return CliRunner().invoke(main, ["init", "--lang", "en", *map(str, args)])


def weights(folder, name, config):
    path = folder / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def model_of(path):
    return read(path)["BackendConfig"]["ModelDeployConfig"]["ModelConfig"][0]


@pytest.mark.parametrize("model", [None, ("Qwen2.5-7B", QWEN), ("DeepSeek-R1", DEEPSEEK)], ids=["none", "qwen", "r1"])
@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize("transport", [("ascend",), ("tcp",), ("rdma", "--device", "mlx5_0")], ids=lambda each: each[0])
def test_what_is_written_has_no_finding_above_info(tmp_path, model, nodes, transport):
    """Each configuration with its pool file, as check and start-up judge them."""
    args = ["--nodes", nodes, "--protocol", *transport, "--dram", "200GB"]
    args += ["--model", weights(tmp_path, *model)] if model else []
    result = run(tmp_path / "out", *args)
    assert (result.exit_code, "warning" in result.output) == (0, False), result.output
    configs = sorted((tmp_path / "out").rglob("config.json"))
    assert len(configs) == nodes
    for path in configs:
        pool = read_pool_file(str(path.with_name("kv_pool.json")))
        assert pool.options is not None
        assert pool.backend_keys["protocol"] == transport[0]
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(pool.path.stat().st_mode) == 0o640


@pytest.mark.parametrize("dram", ["200GB", "64GB", "1000MB", "512MB", "1TB"])
@pytest.mark.parametrize("cards", [1, 4, 8])
def test_all_ranks_together_take_the_dram_given(tmp_path, dram, cards):
    """Never more; at most a MiB of each rank's segment and buffer less."""
    assert run(tmp_path, "--dram", dram, "--cards", cards).exit_code == 0
    pool = read(tmp_path / "kv_pool.json")
    taken = cards * (parse_size(pool["global_segment_size"]) + parse_size(pool["local_buffer_size"]))
    assert parse_size(dram) - cards * 2 * 1024**2 <= taken <= parse_size(dram)


def test_too_little_dram_is_refused_with_what_is_needed(tmp_path):
    """Nothing is written; what the message asks for suffices."""
    result = run(tmp_path, "--dram", "20MB", "--cards", "8")
    assert result.exit_code == 2
    assert "at least 176MB" in result.output
    assert list(tmp_path.iterdir()) == []
    assert run(tmp_path, "--dram", "176MB", "--cards", "8").exit_code == 0


def test_model_is_named_and_its_limits_are_kept(tmp_path):
    """Its folder, its length, and no draft layer where it has none."""
    short = weights(tmp_path, "Small-2K", QWEN | {"max_position_embeddings": 2048})
    assert run(tmp_path / "a", "--model", short, "--cards", "2").exit_code == 0
    model = model_of(tmp_path / "a" / "config.json")
    assert (model["modelName"], model["modelWeightPath"], model["worldSize"]) == ("small-2k", str(short), 2)
    deploy = read(tmp_path / "a" / "config.json")["BackendConfig"]["ModelDeployConfig"]
    assert deploy["maxInputTokenLen"] < deploy["maxSeqLen"] == 2048
    bare = weights(tmp_path, "DeepSeek-V2", {key: DEEPSEEK[key] for key in DEEPSEEK if "nextn" not in key})
    assert run(tmp_path / "b", "--model", bare).exit_code == 0
    assert "mtp" not in model_of(tmp_path / "b" / "config.json")["plugin_params"]
    assert model_of(tmp_path / "b" / "config.json")["models"]["deepseekv2"]["kv_cache_options"]["enable_nz"] is True


def test_each_node_has_its_address(tmp_path):
    """One master and one meeting place for all."""
    hosts = ["10.0.0.1", "10.0.0.2"]
    assert run(tmp_path, "--nodes", 2, "--host", hosts[0], "--host", hosts[1]).exit_code == 0
    for node, host in enumerate(hosts):
        pool = read(tmp_path / f"node{node}" / "kv_pool.json")
        assert pool["local_hostname"] == host
        assert pool["master_server_address"] == "10.0.0.1:50051"
        assert pool["kv_pool"]["agreement"] == "tcp://10.0.0.1:18888"
        assert read(tmp_path / f"node{node}" / "config.json")["ServerConfig"]["ipAddress"] == host
    servers = read(tmp_path / "rank_table.json")["server_list"]
    assert [server["server_id"] for server in servers] == hosts
    ranks = [int(device["rank_id"]) for server in servers for device in server["device"]]
    assert ranks == list(range(16))


def test_a_single_server_names_the_pool_file_that_was_written(tmp_path):
    """So the pair works where it lies."""
    assert run(tmp_path / "etc").exit_code == 0
    named = read(tmp_path / "etc" / "config.json")["BackendConfig"]["kvPoolConfig"]["configPath"]
    assert Path(named) == tmp_path / "etc" / "kv_pool.json"


def test_files_that_exist_are_kept_unless_forced(tmp_path):
    """Exit 2, and they are named."""
    (tmp_path / "kv_pool.json").write_text("mine", encoding="utf-8")
    result = run(tmp_path)
    assert result.exit_code == 2
    assert str(tmp_path / "kv_pool.json") in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["kv_pool.json"]
    assert (tmp_path / "kv_pool.json").read_text(encoding="utf-8") == "mine"
    assert run(tmp_path, "--force").exit_code == 0
    assert "kv_pool" in read(tmp_path / "kv_pool.json")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--protocol", "rdma"], "--device"),
        (["--nodes", "2", "--host", "10.0.0.1"], "--host"),
        (["--dram", "lots"], "200GB"),
        (["--nodes", "0"], "nodes"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, args, told):
    """Before anything is written."""
    result = run(tmp_path, *args)
    assert result.exit_code == 2
    assert told in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_no_traceback(tmp_path):
    """Exit 2."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    result = run(tmp_path / "file" / "below")
    assert result.exit_code == 2
    assert "cannot write" in result.output


def test_what_is_left_to_do_is_said(tmp_path):
    """Only what the arguments have not settled."""
    assert "modelWeightPath" in run(tmp_path / "a").output
    settled = run(tmp_path / "b", "--model", weights(tmp_path, "Qwen", QWEN), "--host", "10.0.0.1").output
    assert "modelWeightPath" not in settled
    assert (
        "start the master on 10.0.0.1, beside its pool file: mindie-kvpool master kv_pool.json (port 50051)" in settled
    )


def test_examples_travel_with_the_package():
    """What init is made from lies in the package."""
    folder = Path(mindie_kvpool_plugin.__file__).parent / "conf_examples"
    assert (folder / "qwen_one_server" / "config.json").is_file()


def test_addresses_with_colons_are_in_brackets(tmp_path):
    """Nobody could tell where the port begins that follows them."""
    run(tmp_path, "--nodes", 2, "--host", "fd00::1", "--host", "fd00::2")
    for path in sorted(tmp_path.rglob("kv_pool.json")):
        assert read(path)["master_server_address"] == "[fd00::1]:50051"
        assert read(path)["kv_pool"]["agreement"].startswith("tcp://[fd00::1]:")
    assert len(list(tmp_path.rglob("kv_pool.json"))) == 2
