"""Unit tests of simulator/recovery.py and of the stand-in's recovery commands."""

import threading

import pytest

from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import wrong_answers
from mindie_kvpool_plugin.simulator.worker import Worker

PROMPT = list(range(10, 40))

modes = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


@modes
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("after", range(1, 6))
def test_engine_serves_again_after_a_device_fault(async_scheduling, tp, after):
    """All requests end; new ones are answered right, whatever was in flight."""
    config = EngineConfig(async_scheduling=async_scheduling, tp=tp, max_seq_len=128)
    with Engine(config) as engine:
        before = [engine.submit([first + 3, *PROMPT], 20) for first in range(6)]
        for _ in range(after):
            engine.step()
        assert engine.recoveries == 0
        engine.fail_device()
        while engine.recoveries == 0:
            assert engine.step()
        assert engine.done == sorted(before, key=engine.done.index)
        assert {request.state for request in before} == {"aborted"}
        assert engine.scheduler.idle
        assert engine.leaked_blocks == 0
        later = [engine.submit([first + 3, *PROMPT], 20) for first in range(6)]
        engine.run()
        assert {request.state for request in later} == {"finished"}
        assert later[0].hbm_blocks == 0
        assert not [request for request in engine.done if wrong_answers(request, config.shape)]
        assert (engine.oracle.corruptions, engine.oracle.input_errors, engine.leaked_blocks) == (0, 0, 0)


@modes
def test_commands_between_batches_leave_nothing_behind(async_scheduling):
    """Without a failed batch: the last answer of the time before is not taken for one of the next batch."""
    with Engine(EngineConfig(async_scheduling=async_scheduling)) as engine:
        engine.submit(PROMPT, 5)
        engine.run()
        for command in ("CMD_PAUSE_ENGINE_ROCE", "CMD_CLEAR_TRANSER", "CMD_REINIT_NPU", "CMD_START_ENGINE"):
            engine.workers[0].call(lambda command=command: engine.workers[0].recover(command)).result()
        engine.drop_hbm()
        request = engine.submit(PROMPT, 5)
        engine.run()
        assert wrong_answers(request, engine.config.shape) == 0
        assert not engine.oracle.events


@modes
def test_commands_come_in_the_hosts_order_and_on_its_threads(monkeypatch, async_scheduling):
    """Pause on the command thread, initialisation and start on the inference thread."""
    said = []
    recover = Worker.recover

    def noted(worker, command):
        said.append((command, threading.current_thread().name))
        recover(worker, command)

    monkeypatch.setattr(Worker, "recover", noted)
    with Engine(EngineConfig(async_scheduling=async_scheduling)) as engine:
        engine.submit(PROMPT, 5)
        engine.fail_device()
        engine.run()
    assert said == [
        ("CMD_PAUSE_ENGINE_ROCE" if async_scheduling else "CMD_PAUSE_ENGINE", "command"),
        ("CMD_CLEAR_TRANSER", "command"),
        ("CMD_REINIT_NPU", "inference"),
        ("CMD_START_ENGINE", "inference"),
    ]


def test_memory_is_zero_and_nothing_is_cached_afterwards():
    """What the device held is lost."""
    with Engine(EngineConfig()) as engine:
        engine.submit(PROMPT, 5)
        engine.run()
        assert engine.manager.num_cached > 0
        assert engine.kv_cache()[0][0].any()
        engine.submit(PROMPT, 5)
        engine.fail_device()
        engine.run()
        assert engine.recoveries == 1
        assert engine.manager.num_cached == 0
        assert not any(tensor.any() for layer in engine.kv_cache() for tensor in layer)


def test_groups_and_swapped_requests_end_too():
    """Blocks on both sides come back."""
    with Engine(EngineConfig()) as engine:
        engine.submit(PROMPT, 20, n=3)
        engine.step()
        engine.step()
        engine.fail_device()
        engine.run()
        assert (engine.recoveries, engine.leaked_blocks, len(engine.done)) == (1, 0, 1)
    with Engine(EngineConfig(hbm_blocks=8, max_preempt_count=1, cpu_blocks=32)) as engine:
        for first in range(2):
            engine.submit([first + 3, *PROMPT], 60)
        while not engine.scheduler.swapper.waiting:
            engine.step()
        engine.fail_device()
        engine.run()
        assert (engine.recoveries, engine.leaked_blocks, len(engine.done)) == (1, 0, 2)


def test_other_failures_are_not_repaired(monkeypatch):
    """A mistake of a plugin, say, stops the engine as before."""
    with Engine(EngineConfig()) as engine:
        monkeypatch.setattr(engine.workers[0].generator.plugin_manager, "preprocess", _fail)
        engine.submit(PROMPT, 5)
        with pytest.raises(ZeroDivisionError):
            engine.step()
        assert engine.recoveries == 0


def _fail(*_, **__):
    raise ZeroDivisionError


def test_unknown_command_fails():
    """With its name."""
    with Engine(EngineConfig()) as engine, pytest.raises(RuntimeError, match="CMD_DANCE"):
        engine.workers[0].recover("CMD_DANCE")
