"""Beside kv_pool the host's own pooling does nothing; without kv_pool it is as if we were not there."""

import importlib
import json

from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool
from tests.walks.conftest import chat


def _native():
    return importlib.import_module("mindie_llm.text_generator.mempool.native_mempool").NativeMempool


def test_native_pool_client_is_not_opened_beside_kv_pool():
    """One writer: prefix_cache sees no pool, the graph is built without pool events, the lookup is ours."""
    with opened_pool(RunConfig(EngineConfig(async_write=True), chat())) as pooled, Engine(pooled) as engine:
        before = list(_native().opened)
        backend = engine.workers[0].generator.generator_backend
        assert engine.plugin("prefix_cache").mempool_type == 0
        assert engine.plugin("prefix_cache").m_store is None
        assert backend.model_wrapper.mempool_type == 0
        assert backend.kv_pool_backend == pooled.backend
        assert engine.workers[0].generator.plugin_manager.plugin_list == ["kv_pool", "prefix_cache"]
        engine.submit(range(10, 60), 4)
        engine.run()
        assert _native().opened == before


def test_native_pool_client_is_opened_without_kv_pool(tmp_path):
    """A host configured for its own pooling keeps it, on the worker and in the scheduler."""
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps({"local_hostname": "127.0.0.1"}), encoding="utf-8")
    config = EngineConfig(plugins="prefix_cache", backend="mooncake", pool_file=str(path), async_write=True)
    with Engine(config) as engine:
        assert engine.plugin("prefix_cache").mempool_type == 2
        assert engine.workers[0].generator.generator_backend.model_wrapper.mempool_type == 2
        assert _native().opened[-2:] == ["worker", "scheduler"]
        engine.submit(range(10, 60), 4)
        engine.run()
        assert engine.plugin("kv_pool") is None
