"""The walks over MemCache, of which a stand-in has the wheel's signatures and result codes."""

import json

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.run import POOL_PLUGINS, run_traffic
from tests.memcache_standin import loaded, standing_in
from tests.walks.conftest import assert_right, chat, run_config


def test_blocks_spill_to_memcache_and_come_back(tmp_path, monkeypatch):
    """Right answers, hits from the pool, each process's part opened as what it is, for the rank's device."""
    opened = []
    open_pool = assemble.open_pool

    def note(backend, pool_file, role):
        opened.append((role, pool_file.device_id))
        return open_pool(backend, pool_file, role)

    monkeypatch.setattr(assemble, "open_pool", note)
    monkeypatch.delenv("MMC_LOCAL_CONFIG_PATH", raising=False)
    with standing_in(64 << 20, tmp_path) as (_, config_path):
        path = tmp_path / "pool.json"
        path.write_text(json.dumps({"config_path": str(config_path), "kv_pool": {"load": "always"}}), encoding="utf-8")
        config = EngineConfig(tp=1, hbm_blocks=48, plugins=POOL_PLUGINS, backend="memcache", pool_file=str(path))
        result = run_traffic(run_config(config, chat()))
        calls = loaded().calls
    assert_right(result)
    assert result.pool_hit_tokens > 0
    assert {what for what, _ in calls} == {"put", "get"}
    assert sorted(opened) == [("scheduler", 0), ("worker", 0)]
