"""From config.json or options to bytes, blocks, and what to write into the pool file."""

import json

import pytest

from mindie_kvpool_plugin.check.rules.layout import Layout
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.mooncake import TooLittleMemoryError
from mindie_kvpool_plugin.planning.curve import Curve, Point, ladder
from mindie_kvpool_plugin.planning.instance import from_config, from_options
from mindie_kvpool_plugin.planning.sizes import sizes
from mindie_kvpool_plugin.planning.worth import judge, used_parameters
from tests.unit.test_kv_shape import DEEPSEEK, QWEN

GB = 2**30
EXAMPLES = "mindie_kvpool_plugin/conf_examples"


def deployed(folder, model=DEEPSEEK, layout=None, **shape):
    file = folder / "model.json"
    file.write_text(json.dumps(model), encoding="utf-8")
    return from_options(file, layout or Layout(tp=8, ranks_per_node=8), 128, shape)


def configured(folder, pytestconfig, change=lambda config: None, model=DEEPSEEK, example="deepseek_r1_8_cards"):
    config = json.loads((pytestconfig.rootpath / EXAMPLES / example / "config.json").read_text(encoding="utf-8"))
    change(config["BackendConfig"])
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.json").write_text(json.dumps(model), encoding="utf-8")
    return from_config(folder / "config.json", folder / "model.json")


def test_the_configuration_says_what_a_service_would_do(tmp_path, pytestconfig):
    """tp 8, NZ, mtp's layer, blocks of 128."""
    found = configured(tmp_path, pytestconfig)
    assert (found.layout.tp, found.layout.ranks, found.block_size) == (8, 8, 128)
    assert found.shape.is_nz
    assert found.rank_block_bytes == found.pool_block_bytes == 62 * 128 * 576 * 2
    assert found.device_memory is None


def test_npu_mem_size_is_the_memory_of_the_cache(tmp_path, pytestconfig):
    """-1 means that the service measures."""

    def change(backend):
        backend["ModelDeployConfig"]["ModelConfig"][0]["npuMemSize"] = 20

    assert configured(tmp_path, pytestconfig, change).device_memory == 20 * GB


def test_instances_share_a_server(tmp_path, pytestconfig):
    """Two of four dies each divide its memory by eight."""

    def change(backend):
        backend.update(modelInstanceNumber=2, npuDeviceIds=[[0, 1, 2, 3], [4, 5, 6, 7]])
        backend["ModelDeployConfig"]["ModelConfig"][0].update(worldSize=4, tp=4)

    found = configured(tmp_path, pytestconfig, change)
    assert (found.layout.ranks, found.ranks_of_server) == (4, 8)
    assert sizes(found, 1, 800 * GB, 0, store=False).segment == 99 * GB


def test_groups_tell_the_nodes_where_no_rank_table_is(tmp_path, pytestconfig, monkeypatch):
    """Two servers of eight: tp 8 and dp 2 on worldSize 8."""
    monkeypatch.delenv("RANK_TABLE_FILE", raising=False)
    found = configured(tmp_path, pytestconfig, example="deepseek_r1_two_nodes")
    assert (found.layout.nodes, found.layout.ranks_per_node, found.layout.ranks) == (2, 8, 16)


@pytest.mark.parametrize(
    ("pool", "given", "in_stores"),
    [
        ({"global_segment_size": "240MB", "local_buffer_size": 16 * 2**20}, (240 * 2**20, 16 * 2**20), False),
        ({"global_segment_size": 0}, None, True),
        ({"protocol": "tcp"}, (3_355_443_200, GB), False),
        ({}, None, False),
    ],
    ids=["sizes", "stores", "defaults", "no file"],
)
def test_the_pool_file_says_what_ranks_give(tmp_path, pytestconfig, pool, given, in_stores):
    """As it is written there, not divided anew."""
    configured(tmp_path, pytestconfig)
    (tmp_path / "pool.json").write_text(json.dumps(pool), encoding="utf-8")
    found = from_config(tmp_path / "config.json", tmp_path / "model.json", tmp_path / "pool.json")
    assert (found.pool_memory, found.in_stores) == (given, in_stores)
    if given:
        assert sizes(found, 1, None, 0, store=False).segment == given[0]


def test_memcache_has_no_segments_of_mooncakes(tmp_path, pytestconfig):
    """Its memory is in a file of its own, so nothing is taken from ours."""
    configured(tmp_path, pytestconfig, example="memcache_one_server")
    pool = pytestconfig.rootpath / EXAMPLES / "memcache_one_server" / "kv_pool.json"
    found = from_config(tmp_path / "config.json", tmp_path / "model.json", pool)
    assert found.pool_memory is None
    assert not found.in_stores


def test_what_the_hardware_wants_is_said_by_an_option(tmp_path, pytestconfig):
    """NZ beside a configuration that does not switch it on."""

    def change(backend):
        backend["ModelDeployConfig"]["ModelConfig"][0].pop("models")

    configured(tmp_path, pytestconfig, change)
    files = tmp_path / "config.json", tmp_path / "model.json"
    assert [from_config(*files, None, {"is_nz": is_nz}).shape.is_nz for is_nz in (False, True)] == [False, True]


def test_ranks_without_a_group_size_are_one_group(tmp_path, pytestconfig):
    """tp defaults to worldSize, and 8 KV heads on 16 ranks are stored 8 times, not 16."""

    def change(backend):
        model = backend["ModelDeployConfig"]["ModelConfig"][0]
        model.update(worldSize=16, plugin_params='{"plugin_type":"prefix_cache,kv_pool"}')
        model.pop("tp", None)

    found = configured(tmp_path, pytestconfig, change, QWEN, "qwen_one_server")
    assert (found.layout.tp, found.shards) == (16, 8)
    assert found.pool_block_bytes == 8 * found.rank_block_bytes


def test_dealt_out_blocks_are_stored_once_and_read_in_parts(tmp_path):
    """With sp each rank has other blocks: a device holds tp times as many, and reads one in tp."""
    found = deployed(tmp_path, layout=Layout(tp=8, sp=8, cp=2, ranks_per_node=16))
    assert found.shards == 1
    assert found.group_blocks(100) == 1600
    assert found.read_block_bytes == found.rank_block_bytes / 16


def test_every_rank_stores_its_own_when_the_pool_file_says_so(tmp_path, pytestconfig):
    """shards per_rank."""
    pool = tmp_path / "pool.json"
    pool.write_text(json.dumps({"protocol": "tcp", "kv_pool": {"shards": "per_rank"}}), encoding="utf-8")
    configured(tmp_path, pytestconfig)
    found = from_config(tmp_path / "config.json", tmp_path / "model.json", pool)
    assert (found.shards, found.protocol) == (8, "tcp")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"BackendConfig": ', r"config.json: is no JSON object \(line 1"),
        ("[]", "is no JSON object"),
        ("{}", "ModelConfig is missing"),
    ],
)
def test_a_broken_configuration_is_one_clear_error(tmp_path, text, said):
    """The check tells the rest."""
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        from_config(tmp_path / "config.json", None)


def test_weights_that_are_elsewhere_are_asked_for(tmp_path, pytestconfig):
    """--model-config names them."""
    configured(tmp_path, pytestconfig)
    with pytest.raises(ConfigError, match=r"DeepSeek-R1-W8A8/config.json: .*--model-config weights"):
        from_config(tmp_path / "config.json", None)


def test_memory_is_shared_by_the_ranks(tmp_path):
    """800 GB over 8 ranks: 99 GB and a buffer of 1 GB each."""
    found = sizes(deployed(tmp_path), 2, 800 * GB, 1000 * GB, store=False)
    assert (found.segment, found.buffer, found.store) == (99 * GB, GB, 0)
    assert found.pool_blocks == 2 * 8 * 99 * GB // (61 * 128 * 576 * 2)
    assert found.disk_blocks == 2 * 1000 * GB // (61 * 128 * 576 * 2)


def test_with_a_store_the_ranks_give_nothing(tmp_path):
    """The pool is as large, in one process per server."""
    ranks, store = (sizes(deployed(tmp_path), 2, 800 * GB, 0, store=each) for each in (False, True))
    assert (store.segment, store.store) == (0, 8 * 99 * GB)
    assert store.pool_blocks == ranks.pool_blocks


def test_links_take_device_memory(tmp_path):
    """128 dies: 127 links of 4 MB, and 0.91 instead of 0.92, as the host's documents compute."""
    found = sizes(deployed(tmp_path), 16, 100 * GB, 0, store=False)
    assert (found.link_bytes, found.fraction, found.is_beyond_links) == (127 * 4 * 2**20, 0.91, False)
    assert sizes(deployed(tmp_path), 65, 100 * GB, 0, store=False).is_beyond_links
    with pytest.raises(TooLittleMemoryError):
        sizes(deployed(tmp_path), 1, 100 * 2**20, 0, store=False)


def test_the_ladder_ends_at_all_blocks_and_has_what_was_asked_for():
    """Twelve sizes, each a factor above the one before."""
    found = ladder(179_190, [10_000])
    assert len(found) == 12
    assert found == sorted(found)
    assert 10_000 in found
    assert found[-1] == 180_000
    assert ladder(3)


def test_the_knee_is_where_most_is_reached():
    """Nine tenths of the best, whatever the device answers alone; of a flat curve the first."""

    def knee(*shares):
        points = tuple(Point(10 * (i + 1), 0.3, share) for i, share in enumerate(shares))
        return Curve(points, 0, 1.0, 1, 1, 0, 1).knee.blocks

    assert knee(0.1, 0.3, 0.33, 0.35) == 30
    assert knee(0.0, 0.0, 0.1, 0.4) == 40
    assert knee(0.4, 0.4, 0.41) == 10
    assert knee(0.0, 0.0) == 10


R1 = {
    **DEEPSEEK, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "v_head_dim": 128,
}  # fmt: skip


def test_parameters_of_a_token_are_about_right():
    """DeepSeek-R1 uses 37 billion, embeddings included; Qwen2-72B all of its 72."""
    assert used_parameters(R1) == pytest.approx(37e9, rel=0.05)
    assert used_parameters({**QWEN, "intermediate_size": 29568}) == pytest.approx(72e9, rel=0.05)


@pytest.mark.parametrize(
    ("gain", "rate", "verdict"),
    [(0.01, None, "no_gain"), (0.2, None, "depends"), (0.2, 10**9, "worth"), (0.2, 5 * 10**8, "too_slow")],
)
def test_the_verdict_weighs_loading_against_computing(tmp_path, gain, rate, verdict):
    """10,000 tokens/s x 70,272 bytes: below 0.70 GB/s computing is faster."""
    found = judge(deployed(tmp_path, R1), Point(1, 0.1, gain), 10_000, rate)
    assert found.verdict == verdict
    assert found.break_even == pytest.approx(10_000 * 61 * 576 * 2)
    if verdict == "worth":
        assert found.saved_compute == pytest.approx(0.2 / 0.9 * (1 - found.break_even / 10**9))
