"""One rank of two stumbles before it can say what it has: nobody waits, all recompute alike."""

from __future__ import annotations

import time

import pytest

from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import drive, opened_pool
from tests.walks.conftest import assert_right_so_far, chat, run_config


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_rank_that_raises_before_agreeing_does_not_hold_the_other(asynchronous):
    """Every other pool hit of rank 1 raises; no agreement runs into its bound and none breaks."""
    stumbled = []
    config = run_config(EngineConfig(tp=2, hbm_blocks=48, async_scheduling=asynchronous), chat())
    with opened_pool(config) as engine_config, Engine(engine_config) as engine:
        worker = engine.plugin("kv_pool", 1)._worker
        wait = worker.walks.spill.before_write

        def raise_sometimes(sequence_id, block_ids):
            if sequence_id % 2:
                stumbled.append(sequence_id)
                raise RuntimeError("planted")
            wait(sequence_id, block_ids)

        worker.walks.spill.before_write = raise_sometimes
        began = time.monotonic()
        drive(engine, chat()(), concurrency=4)
        seconds = time.monotonic() - began
        assert_right_so_far(engine)
        assert not any(engine.plugin("kv_pool", rank)._worker.agreement.broken for rank in (0, 1))
        assert engine.plugin("kv_pool", 0).counters.recomputed_blocks > 0
        assert engine.plugin("kv_pool", 0).counters.hook_errors == 0
    assert len(stumbled) > 5
    assert seconds < 60
