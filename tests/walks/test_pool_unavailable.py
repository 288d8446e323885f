"""The pool cannot be opened at start: refuse, or serve right answers without it."""

import dataclasses
import json
import threading

import pytest

from mindie_kvpool_plugin import assemble
from mindie_kvpool_plugin.errors import ConfigError, PoolError
from mindie_kvpool_plugin.pools.local_dram import forget_pool
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import POOL_PLUGINS, run_traffic
from tests.conftest import HOST, free_port
from tests.walks.conftest import assert_right, chat, counts, run_config


def engine_config(tmp_path, policy, backend="local_dram", tp=1, **keys):
    path = tmp_path / "pool.json"
    path.write_text(json.dumps({**keys, "kv_pool": {"on_pool_unavailable": policy}}), encoding="utf-8")
    return EngineConfig(tp=tp, hbm_blocks=48, plugins=POOL_PLUGINS, backend=backend, pool_file=str(path))


def mooncake_keys_without_master():
    return {
        "local_hostname": HOST,
        "master_server_address": f"{HOST}:{free_port()}",
        "global_segment_size": 16 << 20,
        "local_buffer_size": 0,
        "protocol": "tcp",
    }


def test_refuse_ends_the_start_with_the_address(tmp_path):
    """The default."""
    keys = mooncake_keys_without_master()
    with pytest.raises(PoolError, match=keys["master_server_address"]):
        Engine(engine_config(tmp_path, "refuse", "mooncake", **keys))


def test_run_without_never_covers_a_configuration_error(tmp_path):
    """A wrong key ends the start whatever the option says."""
    keys = mooncake_keys_without_master() | {"global_segment_size": 5}
    with pytest.raises(ConfigError, match="global_segment_size"):
        Engine(engine_config(tmp_path, "run_without", "mooncake", **keys))


def test_run_without_serves_as_a_host_without_pool(tmp_path):
    """No master: the same counts as without the pool."""
    keys = mooncake_keys_without_master()
    config = engine_config(tmp_path, "run_without", "mooncake", **keys)
    result = run_traffic(run_config(config, chat()))
    assert_right(result)
    without = dataclasses.replace(config, plugins="prefix_cache", backend="", pool_file="")
    assert counts(result) == counts(run_traffic(run_config(without, chat())))


@pytest.mark.parametrize("without", [0, 1])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_one_rank_without_the_pool_lowers_every_promise_on_all_ranks(tmp_path, monkeypatch, asynchronous, without):
    """Rank 0 announces blocks, so without rank 1 promises are made and lowered; without rank 0 none are made."""
    config = engine_config(tmp_path, "run_without", tp=2, capacity=64 << 20)
    config = dataclasses.replace(config, async_scheduling=asynchronous)
    open_pool = assemble.open_pool

    def open_or_fail(backend, pool_file, role):
        if threading.current_thread().name == f"inference-{without}":
            raise PoolError("planted")
        return open_pool(backend, pool_file, role)

    monkeypatch.setattr(assemble, "open_pool", open_or_fail)
    try:
        result = run_traffic(run_config(config, chat()))
    finally:
        forget_pool(config.pool_file)
    assert_right(result)
    assert (result.pool_hit_tokens > 0) == (without == 1)
    assert result.spilled_blocks > 0
