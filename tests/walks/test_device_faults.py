"""A device fails under asynchronous scheduling: between the failure and its report the host prepares one batch more."""

import time

import pytest

from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool
from tests.walks.conftest import assert_right_so_far, chat

PROMPT, OTHER = list(range(10, 90)), list(range(300, 340))
PROMPT_BLOCKS = 5
WAIT_S = 30.0  # in_flight_timeout_s, by default


@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_hit_after_a_device_fault_is_dropped_at_once(tp, async_write):
    """The failed batch never reports, but the host knows of it: nobody waits, and nothing is loaded."""
    config = EngineConfig(tp=tp, hbm_blocks=64, async_scheduling=True, async_write=async_write)
    with opened_pool(RunConfig(config, chat())) as pooled, Engine(pooled) as engine:
        engine.submit(PROMPT, 3)
        engine.run()
        assert engine.plugin("kv_pool").drain(WAIT_S)
        engine.drop_hbm()
        engine.submit(OTHER, 20)
        engine.step()
        engine.step()
        engine.fail_device()
        engine.step()
        hit = engine.submit(PROMPT, 3)
        began = time.monotonic()
        assert engine.step()
        assert time.monotonic() - began < WAIT_S / 2
        assert engine.recoveries == 1
        assert (hit.state, hit.pool_blocks) == ("aborted", PROMPT_BLOCKS)
        counters = engine.plugin("kv_pool").counters
        assert (counters.reloaded_blocks, counters.recomputed_blocks) == (0, PROMPT_BLOCKS)
        again = engine.submit(PROMPT, 3)
        engine.run()
        assert (again.state, again.pool_blocks) == ("finished", PROMPT_BLOCKS)
        assert (counters.reloaded_blocks, counters.hook_errors) == (PROMPT_BLOCKS, 0)
        assert_right_so_far(engine)
