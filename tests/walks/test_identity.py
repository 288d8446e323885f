"""What is loaded is what was computed from these tokens by this deployment: nothing forged, nothing foreign."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import model_facts
from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup
from mindie_kvpool_plugin.pools.local_dram import forget_pool
from mindie_kvpool_plugin.simulator import engine as engine_module
from mindie_kvpool_plugin.simulator import host_modules
from mindie_kvpool_plugin.simulator.collisions import forged_pairs
from mindie_kvpool_plugin.simulator.device import Device
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.model_shape import ModelShape, write_weights
from mindie_kvpool_plugin.simulator.run import POOL_PLUGINS, RunConfig, opened_pool
from tests.unit.core.parts import BLOCK_SIZE, Rank, ScriptedPool
from tests.walks.conftest import assert_right_so_far, chat

NUM_PAIRS = 10_000
BLOCKS = 2


def host_keys(tokens):
    return [f"{value}_0_1_model" for value in block_keys.host_hash_chain(tokens, BLOCK_SIZE)]


def test_ten_thousand_forged_prompts_get_none_of_the_others_blocks():
    """The scheduler promises them all; every one is lowered to nothing, and then has its own blocks."""
    rank = Rank(pool=ScriptedPool(64 << 20))
    lookup = SchedulerLookup(rank.pool, "ns", 32)
    promised = wrong = right = 0
    for one, two in forged_pairs(NUM_PAIRS, BLOCKS * BLOCK_SIZE, BLOCK_SIZE, vocab_size=4096):
        rank.compute(1, one, [0, 1])
        rank.free(1, one, [0, 1])
        promised += sum(lookup.batch_exist(host_keys(two)))
        length = int(rank.reload.load([rank.hit(two, [2, 3], 0, BLOCKS)])[0])
        wrong += length
        rank.compute(2, two, [4, 5])
        rank.free(2, two, [4, 5])
        assert rank.reload.load([rank.hit(two, [6, 7], 0, BLOCKS)]).tolist() == [BLOCKS]
        right += rank.is_right(two, [6, 7], 0) and rank.is_right(two, [6, 7], 1)
    assert promised == NUM_PAIRS * BLOCKS, "the host's hash takes the bait"
    assert wrong == 0
    assert right == NUM_PAIRS


def test_forged_prompts_under_the_hosts_key_would_be_wrong(monkeypatch):
    """The attack is real: with the host's hash as the data key the same prompts get each other's blocks."""

    def host_names(tokens, block_size, hashed, adapter):
        hashes = block_keys.host_hash_chain(tokens, block_size)
        return np.array([[value, 0] for value in hashes], dtype=np.uint64).reshape(-1, 2)

    monkeypatch.setattr(block_keys, "digests_of", host_names)
    rank = Rank()
    wrong = 0
    for one, two in forged_pairs(20, BLOCKS * BLOCK_SIZE, BLOCK_SIZE, vocab_size=4096):
        rank.compute(1, one, [0, 1])
        rank.free(1, one, [0, 1])
        length = int(rank.reload.load([rank.hit(two, [2, 3], 0, BLOCKS)])[0])
        wrong += sum(not rank.is_right(two, [2, 3], index) for index in range(length))
    assert wrong == 20 * BLOCKS


@pytest.mark.parametrize("tp", [1, 2])
def test_forged_prompts_in_an_engine_are_computed(tp):
    """Victims fill the pool, HBM is lost, the forger asks: promised by the scheduler, loaded by nobody."""
    config = RunConfig(EngineConfig(tp=tp, hbm_blocks=512), chat())
    pairs = list(forged_pairs(100, 48, config.engine.block_size, config.engine.shape.vocab_size))
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        for one, _ in pairs:
            engine.submit(one.tolist(), 2)
        engine.run()
        engine.drop_hbm()
        forged = [engine.submit(two.tolist(), 2) for _, two in pairs]
        engine.run()
        assert sum(request.pool_blocks for request in forged) == 3 * len(pairs)
        assert engine.plugin("kv_pool").counters.reloaded_blocks == 0
        assert_right_so_far(engine)


PROMPT = list(range(10, 90))


def run_twice(tmp_path, one, two, change=lambda: None, **second):
    """The same prompt in two deployments of one model name and one pool; counters of the second one."""
    path = tmp_path / "pool.json"
    try:
        for config, section in ((one, {}), (two, second)):
            path.write_text(json.dumps({"capacity": 64 << 20, "kv_pool": section}), encoding="utf-8")
            pooled = dataclasses.replace(config, plugins=POOL_PLUGINS, backend="local_dram", pool_file=str(path))
            if config is two:
                change()
            with Engine(pooled) as engine:
                engine.submit(PROMPT, 8)
                engine.run()
                assert_right_so_far(engine)
                counters = [engine.plugin("kv_pool", rank).counters for rank in range(config.tp)]
        return SimpleNamespace(
            reloaded=sum(each.reloaded_blocks for each in counters),
            promised=sum(each.promised_blocks for each in counters),
        )
    finally:
        forget_pool(str(path))


BASE = EngineConfig()


def test_the_same_deployment_shares_blocks(tmp_path):
    """The control: without a difference everything is loaded."""
    found = run_twice(tmp_path, BASE, dataclasses.replace(BASE))
    assert found.reloaded == found.promised == 5


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(BASE, shape=ModelShape(dtype="bfloat16")),
        dataclasses.replace(BASE, shape=ModelShape(num_layers=3)),
        dataclasses.replace(BASE, shape=ModelShape(head_size=16)),
        dataclasses.replace(BASE, shape=ModelShape(int8_key_layers=(0,))),
        dataclasses.replace(BASE, shape=ModelShape(index_head_size=8)),
        dataclasses.replace(BASE, shape=ModelShape(num_kv_heads=1, mla=(8, 8))),
        dataclasses.replace(BASE, tp=2),
    ],
    ids=["dtype", "layers", "head size", "quantised keys", "sparse index", "mla", "tp"],
)
def test_deployments_of_one_name_that_differ_share_nothing(tmp_path, other):
    """The alias of the same tokens is there, so blocks are promised; none is loaded."""
    found = run_twice(tmp_path, BASE, other)
    assert found.promised == 5 * other.tp
    assert found.reloaded == 0


def test_other_block_sizes_share_nothing(tmp_path):
    """Not even the alias: another block size makes other hashes."""
    found = run_twice(tmp_path, BASE, dataclasses.replace(BASE, block_size=8))
    assert found.reloaded == found.promised == 0


def test_other_namespaces_share_nothing(tmp_path):
    """Not even the alias."""
    found = run_twice(tmp_path, BASE, dataclasses.replace(BASE), namespace="other")
    assert found.reloaded == found.promised == 0


def test_blocks_with_and_without_checksum_share_nothing(tmp_path):
    """Their objects differ in size."""
    found = run_twice(tmp_path, BASE, dataclasses.replace(BASE), verify_payload=True)
    assert (found.promised, found.reloaded) == (5, 0)


@pytest.mark.parametrize("file", ["model.safetensors.index.json", "quant_model_description.json"])
def test_other_weights_share_nothing(tmp_path, monkeypatch, file):
    """Same shapes and name, but other tensors or another quantisation."""

    def change():
        def write_more(shape, folder):
            write_weights(shape, folder)
            (folder / file).write_text('{"weight_map": {"a": "b"}}', encoding="utf-8")

        monkeypatch.setattr(engine_module, "write_weights", write_more)

    found = run_twice(tmp_path, BASE, dataclasses.replace(BASE), change)
    assert (found.promised, found.reloaded) == (5, 0)


def test_another_device_format_shares_nothing(tmp_path, monkeypatch):
    """NZ and ND lay the same numbers out differently."""

    def change():
        facts = model_facts.fingerprint_facts
        monkeypatch.setattr(
            model_facts,
            "fingerprint_facts",
            lambda *args, device_format, **more: facts(*args, device_format="29", **more),
        )

    found = run_twice(tmp_path, BASE, dataclasses.replace(BASE), change)
    assert (found.promised, found.reloaded) == (5, 0)


def test_a_service_that_sends_tokens_to_other_experts_shares_nothing(tmp_path, monkeypatch):
    """``eplb.level`` 3, with which speed is measured: the same weights and tokens, and other numbers."""

    def change():
        forced = {"deepseekv2": {"eplb": {"level": 3}}}
        merged = SimpleNamespace(models=SimpleNamespace(to_dict=lambda: forced))
        monkeypatch.setattr(Device, "llm_config", merged, raising=False)

    found = run_twice(tmp_path, BASE, dataclasses.replace(BASE), change)
    assert (found.promised, found.reloaded) == (5, 0)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_adapters_have_blocks_of_their_own(async_scheduling):
    """The same prompt with an adapter, without, and with another one: each finds what it stored itself."""
    config = RunConfig(EngineConfig(async_scheduling=async_scheduling), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        counters = engine.plugin("kv_pool").counters
        for adapter, reloaded in (("poet", 0), (None, 0), ("other", 0), ("poet", 5), (None, 10), ("other", 15)):
            engine.submit(PROMPT, 8, adapter)
            engine.run()
            engine.drop_hbm()
            engine.plugin("kv_pool")._worker.walks.directory.forget()  # or the bytes still on the device would do
            assert counters.reloaded_blocks == reloaded, adapter
        assert_right_so_far(engine)


def test_what_an_adapter_computed_is_not_stored_once_it_was_loaded_anew():
    """The name stands for other content from then on; the sequence that still runs is a mixture."""
    config = RunConfig(EngineConfig(), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        plugin = engine.plugin("kv_pool")
        engine.submit(PROMPT, 8, "poet")
        engine.step()
        plugin.adapter_changing("poet")
        plugin.adapter_loaded("poet")
        engine.run()
        assert plugin.counters.spilled_blocks == 0
        engine.submit([*PROMPT, *range(60)], 8, "poet")
        engine.run()
        assert plugin.counters.spilled_blocks == 0, "the host found the mixture on the device"
        engine.drop_hbm()
        engine.submit(PROMPT, 8, "poet")
        engine.run()
        assert plugin.counters.spilled_blocks > 0


def test_a_prompt_in_the_middle_of_an_unload_names_no_adapter(tmp_path):
    """The host still lists it when the prompt asks, and computes without an adapter from then on."""
    (tmp_path / "adapter_model.safetensors").write_bytes(b"one")
    registry = {"poet": SimpleNamespace(adapter_path=str(tmp_path))}
    config = RunConfig(EngineConfig(), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        adapters, generator = engine.plugin("kv_pool")._worker.adapters, engine.workers[0].generator

        def unload(name):
            adapters.learn(name)  # a prompt's thread, which was fast
            assert adapters.find(name) is not None
            del registry[name]

        generator.model_wrapper.adapter_manager = SimpleNamespace(adapter_info_registry=registry, unload_adapter=unload)
        generator.unload_lora("poet")
        assert adapters.known() == {}


def test_what_follows_blocks_of_the_adapter_before_is_not_stored(tmp_path):
    """The host finds them on the device by the name; once they are gone from there, prompts are stored again."""

    def lies_in(folder, content):
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(content)
        return SimpleNamespace(adapter_info_registry={"poet": SimpleNamespace(adapter_path=str(folder))})

    config = RunConfig(EngineConfig(), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        plugin, wrapper = engine.plugin("kv_pool"), engine.workers[0].generator.model_wrapper
        stored = []
        for folder, content in (("one", b"one"), ("two", b"two")):
            plugin.adapter_changing("poet")
            wrapper.adapter_manager = lies_in(tmp_path / folder, content)
            plugin.adapter_loaded("poet")
            engine.submit([*PROMPT, *range(len(stored), 60)], 8, "poet")
            engine.run()
            stored.append(plugin.counters.spilled_blocks)
        assert stored[0] > 0
        assert stored[1] == stored[0]
        engine.drop_hbm()
        engine.submit([*PROMPT, *range(1, 60)], 8, "poet")
        engine.run()
        assert plugin.counters.spilled_blocks > stored[1]


def test_a_prompt_whose_adapter_is_not_known_runs_as_without_the_pool():
    """Counted, answered right, and nothing of it is stored."""
    config = RunConfig(EngineConfig(), chat())
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        engine.workers[0].generator.model_wrapper.adapter_manager = SimpleNamespace(adapter_info_registry={})
        counters = engine.plugin("kv_pool").counters
        engine.submit(PROMPT, 8, "poet")
        engine.run()
        assert (counters.unpooled_adapter, counters.spilled_blocks) == (1, 0)
        assert_right_so_far(engine)


def test_weights_that_change_while_they_are_loaded_end_the_start(tmp_path, monkeypatch):
    """What was loaded would go under the name of what lies there now."""
    host_modules.install()
    from mindie_llm.modeling.model_wrapper import DeviceModelWrapper

    load = DeviceModelWrapper.__init__

    def load_while_others_copy(self, *, model_id, **options):
        load(self, model_id=model_id, **options)
        (Path(model_id) / "config.json").write_text('{"num_hidden_layers": 99}', encoding="utf-8")

    monkeypatch.setattr(DeviceModelWrapper, "__init__", load_while_others_copy)
    path = tmp_path / "pool.json"
    path.write_text('{"kv_pool": {}}', encoding="utf-8")
    with pytest.raises(HostCompatError, match=r"changed while they were loaded \(config.json\)"):
        Engine(EngineConfig(plugins=POOL_PLUGINS, backend="local_dram", pool_file=str(path)))


def test_multimodal_models_are_refused_with_the_reason(tmp_path, monkeypatch):
    """What stands for an image among the tokens is no name of it."""
    host_modules.install()
    from mindie_llm.modeling.model_wrapper import DeviceModelWrapper

    monkeypatch.setattr(DeviceModelWrapper, "is_multimodal", True, raising=False)
    path = tmp_path / "pool.json"
    path.write_text('{"kv_pool": {}}', encoding="utf-8")
    with pytest.raises(HostCompatError, match="multimodal models: for an image MindIE-LLM puts the random name"):
        Engine(EngineConfig(plugins=POOL_PLUGINS, backend="local_dram", pool_file=str(path)))
