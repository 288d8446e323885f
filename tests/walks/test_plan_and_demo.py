"""The planner says what the whole engine does: hashing, spilling and reloading real bytes."""

import functools

import pytest

from mindie_kvpool_plugin.planning import admitted, device_side, pool_side
from mindie_kvpool_plugin.planning.asked import from_trace
from mindie_kvpool_plugin.planning.pool_side import PoolRules
from mindie_kvpool_plugin.simulator import run
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from mindie_kvpool_plugin.simulator.run import RunConfig, run_with_pool
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE, read_trace
from mindie_kvpool_plugin.simulator.traffic import replay
from tests.walks.conftest import assert_right

REQUESTS = 200
BLOCK = 16
ONE_POINT, TWO_POINTS = 0.01, 0.02


@pytest.mark.parametrize("pool_blocks", [80, 160, 320, 640, 1280])
@pytest.mark.parametrize(("concurrency", "device_blocks"), [(1, 60), (8, 160)])
def test_plan_agrees_with_the_demo(concurrency, device_blocks, pool_blocks):
    """Within one point at every size, on the device and in total; the demo's own concurrency and device included."""
    trace = read_trace(BUNDLED_TRACE, REQUESTS)
    config = RunConfig(
        EngineConfig(hbm_blocks=device_blocks), lambda: replay(trace), concurrency=concurrency, pool_blocks=pool_blocks
    )
    result = run_with_pool(config)
    assert_right(result)
    loaded = result.hbm_hit_tokens + result.pool_hit_tokens - BLOCK * result.recomputed_blocks

    traffic = from_trace(trace)
    log = device_side.replay(traffic, device_blocks, concurrency=concurrency)
    found = pool_side.replay(log.events, pool_blocks, rules=PoolRules("lru"))
    share = traffic.unit_tokens / log.prompt_tokens
    assert abs(loaded / result.prompt_tokens - (log.device_hits + found.memory) * share) < ONE_POINT
    assert abs(result.hbm_hit_tokens / result.prompt_tokens - log.device_hits * share) < ONE_POINT
    assert loaded > 0.2 * result.prompt_tokens


@pytest.mark.parametrize("pool_blocks", [160, 640])
def test_plan_agrees_with_the_demo_about_what_is_admitted(pool_blocks):
    """With second_use: hits within one point, blocks written within a hundredth."""
    trace, device_blocks = read_trace(BUNDLED_TRACE, REQUESTS), 60
    engine, section = EngineConfig(hbm_blocks=device_blocks), {"admission": "second_use"}
    config = RunConfig(engine, lambda: replay(trace), concurrency=1, pool_blocks=pool_blocks, section=section)
    result = run_with_pool(config)
    assert_right(result)
    loaded = result.hbm_hit_tokens + result.pool_hit_tokens - BLOCK * result.recomputed_blocks

    traffic = from_trace(trace)
    log = device_side.replay(traffic, device_blocks)
    rules, share = PoolRules("lru"), traffic.unit_tokens / log.prompt_tokens
    every = pool_side.replay(log.events, pool_blocks, rules=rules)
    found = pool_side.replay(admitted.second_use(log, rules.stored_at, 1.0), pool_blocks, rules=rules)
    assert abs(loaded / result.prompt_tokens - (log.device_hits + found.memory) * share) < ONE_POINT
    assert 0 < found.writes < every.writes
    assert result.spilled_blocks <= found.writes


def test_plan_knows_how_a_real_master_makes_room(monkeypatch):
    """Its watermark and share; the lease, which keeps what was looked up a moment ago, is made short."""
    rules, pool_blocks, device_blocks = PoolRules("mooncake", 0.8, 0.05), 400, 60
    flags = ("--eviction_high_watermark_ratio=0.8", "--eviction_ratio=0.05", "--default_kv_lease_ttl=50ms")
    monkeypatch.setattr(run, "MooncakeMaster", functools.partial(MooncakeMaster, *flags))
    trace = read_trace(BUNDLED_TRACE, REQUESTS)
    # blocks so large that the pool is more than the smallest segment
    shape = ModelShape(num_kv_heads=8, head_size=256)
    engine = EngineConfig(shape=shape, hbm_blocks=device_blocks)
    config = RunConfig(engine, lambda: replay(trace), concurrency=1, pool_blocks=pool_blocks, pool="mooncake")
    result = run_with_pool(config)
    assert_right(result)
    loaded = result.hbm_hit_tokens + result.pool_hit_tokens - BLOCK * result.recomputed_blocks

    log = device_side.replay(from_trace(trace), device_blocks)

    def planned(rules):
        found = pool_side.replay(log.events, pool_blocks, rules=rules)
        return (log.device_hits + found.memory) * 512 / log.prompt_tokens

    assert abs(loaded / result.prompt_tokens - planned(rules)) < TWO_POINTS
    assert planned(PoolRules("lru")) - planned(rules) > TWO_POINTS
