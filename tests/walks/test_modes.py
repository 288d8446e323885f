"""Modes in which the host writes blocks between batches: several answers, beams, swap preemption, repair of a device.

The host does it all by itself here, in traffic that is short of device blocks.  Each mode runs with the plugin as it
is, and once without the seam of ``host.block_writes``: then wrong blocks are served.
"""

import dataclasses

import pytest

from mindie_kvpool_plugin.host.plugin import KvPoolPlugin
from mindie_kvpool_plugin.simulator import recovery
from mindie_kvpool_plugin.simulator.block_manager import BlockManager
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.run import RunConfig, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.traffic import Chat
from mindie_kvpool_plugin.simulator.worker import Worker
from tests.walks.conftest import assert_right, run_until_corrupt, run_with_slow_puts

PUT_S = 0.003

# the host's own clock hands the deepest blocks out first, also those that were freed a moment ago
SAMPLED = RunConfig(
    EngineConfig(hbm_blocks=56, clock="coarse", shape=ModelShape(eos_every=30)),
    lambda: Chat(10, 3, seed=1, sampled=0.6, samples=3),
)
SEARCHED = dataclasses.replace(SAMPLED, make_traffic=lambda: Chat(10, 3, seed=1, sampled=0.6, samples=3, beams=1.0))
SWAPPED = RunConfig(
    EngineConfig(hbm_blocks=40, clock="coarse", max_preempt_count=4, cpu_blocks=64),
    lambda: Chat(10, 3, seed=1, system_tokens=20, turn_tokens=24, answer_tokens=60),
)
REPAIRED = RunConfig(EngineConfig(hbm_blocks=48), lambda: Chat(8, 3), fail_after=10)
MODES = {"n": SAMPLED, "beams": SEARCHED, "swap": SWAPPED, "recovery": REPAIRED}

CASES = [
    pytest.param(name, scheduling, id=f"{name}-{'async' if scheduling else 'sync'}")
    for name in MODES
    for scheduling in (False, True)
    if not (name in {"n", "beams"} and scheduling)
]


def in_mode(name, **engine):
    mode = MODES[name]
    return dataclasses.replace(mode, engine=dataclasses.replace(mode.engine, **engine))


def assert_happened(name, result):
    if name in {"n", "beams"}:
        assert result.copied_blocks > 0
        assert (result.moved_beams > 0) is (name == "beams")
        assert result.aborted < result.requests / 2
    elif name == "swap":
        assert result.swapped_blocks > 0
        assert result.aborted == 0
    else:
        assert result.recoveries == 1
        assert result.aborted > 0


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_mode_is_right_with_a_pool(name, async_scheduling, async_write, tp):
    """Nothing wrong is read or answered, nothing is lost, and the pool is of use."""
    result = run_with_pool(in_mode(name, async_scheduling=async_scheduling, async_write=async_write, tp=tp))
    assert_right(result)
    assert result.hook_errors == 0
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0
    assert_happened(name, result)


@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_mode_is_right_without_a_pool(name, async_scheduling):
    """The simulated host does nothing wrong by itself."""
    result = run_without_pool(in_mode(name, async_scheduling=async_scheduling))
    assert_right(result)
    assert_happened(name, result)


@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_mode_is_right_with_a_slow_pool(monkeypatch, name, async_scheduling):
    """Spills are queued when the host writes."""
    config = in_mode(name, async_scheduling=async_scheduling, async_write=True)
    result = run_with_slow_puts(monkeypatch, config, PUT_S)
    assert_right(result)
    assert_happened(name, result)


@pytest.mark.parametrize(
    ("name", "async_scheduling"), [("n", False), ("beams", False), ("swap", False), ("swap", True)]
)
def test_writes_nobody_hears_of_serve_wrong_blocks(monkeypatch, name, async_scheduling):
    """The same runs without the seam."""
    monkeypatch.setattr(KvPoolPlugin, "blocks_overwritten", lambda self, find_blocks: None)
    result = run_until_corrupt(monkeypatch, in_mode(name, async_scheduling=async_scheduling, async_write=True))
    assert_happened(name, result)
    assert result.corruptions > 0
    assert result.wrong_answers > 0


@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
def test_repair_nobody_hears_of_serves_wrong_blocks(monkeypatch, async_write):
    """What the device was believed to hold is gone."""
    monkeypatch.setattr(KvPoolPlugin, "device_closing", lambda self: None)
    monkeypatch.setattr(KvPoolPlugin, "contexts_reset", lambda self: None)
    result = run_with_pool(in_mode("recovery", async_write=async_write))
    assert_happened("recovery", result)
    assert result.corruptions > 0
    assert result.wrong_answers > 0


@pytest.mark.parametrize("name", ["n", "beams", "swap"])
def test_oracle_sees_block_operations_that_were_not_done(monkeypatch, name):
    """Copies and swaps that the scheduler ordered and no device carried out."""
    monkeypatch.setattr(Worker, "move_blocks", lambda self, copies, swaps: self.call(lambda: None))
    result = run_without_pool(in_mode(name))
    assert_happened(name, result)
    assert result.corruptions > 0
    assert result.wrong_answers > 0


def test_oracle_sees_a_scheduler_that_trusts_a_repaired_device(monkeypatch):
    """The blocks it counts as computed were lost."""
    monkeypatch.setattr(BlockManager, "clear", keep_after_start())
    result = run_without_pool(in_mode("recovery"))
    assert result.recoveries == 1
    assert result.corruptions > 0


def test_memory_is_lost_in_a_repair(monkeypatch):
    """Every rank's cache is zeroed before its device is initialised again."""
    wiped = []
    wipe = recovery.wipe
    monkeypatch.setattr(recovery, "wipe", lambda worker: wiped.append(worker) or wipe(worker))
    assert run_without_pool(in_mode("recovery", tp=2)).recoveries == 1
    assert len(set(wiped)) == 2


def keep_after_start():
    """``BlockManager.clear`` for its construction only."""
    clear = BlockManager.clear

    def once(manager):
        if not hasattr(manager, "_free"):
            clear(manager)

    return once
