"""The host writes blocks outside a batch; each case runs with the seam, and without it to see that it would hurt.

Copies (copy-on-write), swap-in and the repair of a device go through the host's own functions on the simulated
host, at the worst moments: while a spill has not read yet, after it, and before the workers hear of an abort.
"""

import importlib
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from mindie_kvpool_plugin.core.device_gate import DeviceGate
from mindie_kvpool_plugin.host.in_flight import InFlight
from mindie_kvpool_plugin.host.plugin import KvPoolPlugin
from mindie_kvpool_plugin.pools.local_dram import LocalDram
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool
from tests.conftest import wait_until
from tests.walks.conftest import assert_right_so_far, chat

JOIN_S = 30.0
PROMPT = list(range(10, 90))
OWN = range(5)  # the blocks PROMPT gets on a fresh device
JUNK = 40  # a block nobody uses

guarded = pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "naive"])
scheduling = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])


@contextmanager
def running(**config):
    with opened_pool(RunConfig(EngineConfig(hbm_blocks=64, **config), chat())) as pooled, Engine(pooled) as engine:
        yield engine


class Held:
    """Puts wait until they are released."""

    def __init__(self, monkeypatch):
        self.entered, self.released = threading.Event(), threading.Event()
        put = LocalDram.put

        def held_put(pool, *args):
            self.entered.set()
            assert self.released.wait(JOIN_S)
            return put(pool, *args)

        monkeypatch.setattr(LocalDram, "put", held_put)


def copy_junk(engine):
    """As for a child of a sequence group: other bytes come into the blocks."""
    fill(engine, JUNK)
    on_worker(engine, lambda generator: generator.copy_blocks(np.array([[JUNK, block] for block in OWN])))


def swap_junk_in(engine):
    """A preempted sequence comes back into the blocks."""
    fill(engine, JUNK)
    out = [[1, JUNK, block] for block in OWN]
    on_worker(engine, lambda generator: generator.swap([out]))
    on_worker(engine, lambda generator: generator.swap([[[0, block, block] for block in OWN]]))


def fill(engine, block):
    for tensor in tensors(engine):
        tensor[block] = 7


def tensors(engine):
    return [tensor for layer in engine.kv_cache() for tensor in layer]


def on_worker(engine, call):
    return engine.workers[0].call(lambda: call(engine.workers[0].generator)).result(JOIN_S)


def pull_junk(engine):
    """Another node's blocks arrive, on a thread of their own, while the step thread may be busy or idle."""

    class Link:
        def pull_blocks(self, dst_block_table, **_):
            for block in dst_block_table:
                fill(engine, block)
            return importlib.import_module("mindie_llm.utils.status").MindieLlmStatusCode.SUCCESS

    generator = engine.workers[0].generator
    generator.separate_deployment_worker = Link()
    nobodys = SimpleNamespace(all_sequence_ids=np.zeros(0, np.int64), batch_dp_rank_ids=None, adapter_ids=None)
    sources = [(1, [0], list(OWN)[:2]), (2, [0], list(OWN)[2:])]
    pull = threading.Thread(target=generator.pull_kv, args=(nobodys, sources))
    pull.start()
    pull.join(JOIN_S)
    assert not pull.is_alive()


writes = pytest.mark.parametrize("write", [copy_junk, swap_junk_in, pull_junk], ids=["copy", "swap", "pull"])


def without_seam(monkeypatch):
    for place in ("blocks_overwritten", "blocks_pulled"):
        monkeypatch.setattr(KvPoolPlugin, place, lambda self, find_blocks: None)


def ask_again(engine):
    """The prompt once more, on a device whose cache nobody finds anything in."""
    engine.drop_hbm()
    again = engine.submit(PROMPT, 3)
    engine.run()
    return again


def judge(engine, is_guarded, pool_blocks=5):
    again = engine.done[-1]
    if is_guarded:
        assert again.pool_blocks == pool_blocks
        assert engine.plugin("kv_pool").counters.hook_errors == 0
        assert_right_so_far(engine)
    else:
        assert engine.oracle.corruptions > 0


@guarded
@writes
def test_a_write_waits_for_the_spill_that_reads(monkeypatch, write, is_guarded):
    """asyncWrite: the freed blocks are still in the queue when the host writes into them."""
    held = Held(monkeypatch)
    with running(async_write=True) as engine:
        engine.submit(PROMPT, 3)
        engine.run()
        assert held.entered.wait(JOIN_S)
        if not is_guarded:
            without_seam(monkeypatch)
            write(engine)
            held.released.set()
        else:
            counters = engine.plugin("kv_pool").counters
            writer = threading.Thread(target=write, args=(engine,))
            writer.start()
            wait_until(lambda: counters.fence_waits > 0, JOIN_S, "the write waits")
            held.released.set()
            writer.join(JOIN_S)
        assert engine.plugin("kv_pool").drain(JOIN_S)
        ask_again(engine)
        judge(engine, is_guarded)


@guarded
@writes
def test_what_was_overwritten_is_not_taken_to_be_there(monkeypatch, write, is_guarded):
    """The directory knew the blocks' content; a hit into the same blocks must load them all the same."""
    if not is_guarded:
        without_seam(monkeypatch)
    with running() as engine:
        engine.submit(PROMPT, 3)
        engine.run()
        write(engine)
        ask_again(engine)
        judge(engine, is_guarded)


@guarded
@writes
@scheduling
def test_an_aborted_sequence_is_saved_before_the_write(monkeypatch, write, async_scheduling, is_guarded):
    """The host writes into its blocks before the workers hear that it is gone."""
    if not is_guarded:
        without_seam(monkeypatch)
    with running(async_scheduling=async_scheduling) as engine:
        request = engine.submit(PROMPT, 30)
        engine.step()
        engine.step()
        engine.abort(request)
        write(engine)
        engine.run()
        ask_again(engine)
        judge(engine, is_guarded)


@guarded
def test_a_repaired_device_is_not_read(monkeypatch, is_guarded):
    """The host replaces pages while spills are queued: what was not read before is given up."""
    held = Held(monkeypatch)
    if not is_guarded:
        monkeypatch.setattr(KvPoolPlugin, "device_closing", lambda self: None)
        monkeypatch.setattr(KvPoolPlugin, "contexts_reset", lambda self: None)
    with running(async_write=True) as engine:
        for first in range(3):
            engine.submit([first + 3, *PROMPT], 3)
        engine.run()
        assert held.entered.wait(JOIN_S)
        closing = threading.Thread(target=command, args=(engine, "CMD_PAUSE_ENGINE_ROCE"))
        closing.start()
        if is_guarded:
            gate = engine.plugin("kv_pool")._worker.walks.gate
            wait_until(lambda: not gate.is_open(), JOIN_S, "the device is closed")
        else:
            closing.join(JOIN_S)
            wipe(engine)
        held.released.set()
        closing.join(JOIN_S)
        wipe(engine)
        repair(engine)
        assert engine.plugin("kv_pool").drain(JOIN_S)
        for first in range(3):
            engine.drop_hbm()
            engine.submit([first + 3, *PROMPT], 3)
            engine.run()
        if is_guarded:
            counters = engine.plugin("kv_pool").counters
            assert counters.withdrawn_blocks + counters.failed_put_blocks > 0
            assert_right_so_far(engine)
        else:
            assert engine.oracle.corruptions > 0


@scheduling
def test_pool_hits_come_back_after_a_repair(monkeypatch, async_scheduling):
    """Nothing is loaded while the device is closed, also before the host has paused; afterwards the pool serves."""
    monkeypatch.setattr(InFlight, "is_broken", lambda self: False)
    with running(async_scheduling=async_scheduling) as engine:
        engine.submit(PROMPT, 3)
        engine.run()
        command(engine, "CMD_PAUSE_ENGINE_ROCE")
        wipe(engine)
        loaded = engine.plugin("kv_pool").counters.reloaded_blocks
        assert ask_again(engine).pool_blocks == 5
        assert engine.plugin("kv_pool").counters.reloaded_blocks == loaded
        wipe(engine)
        repair(engine)
        ask_again(engine)
        assert engine.plugin("kv_pool").counters.reloaded_blocks == loaded + 5
        assert_right_so_far(engine)


@guarded
def test_a_batch_that_never_ends_does_not_hold_up_the_next_hit(monkeypatch, is_guarded):
    """A device fault under asynchronous scheduling: the batch in flight is gone for good."""
    waited = []
    wait = InFlight.wait
    monkeypatch.setattr(InFlight, "wait", lambda self, timeout_s: waited.append(wait(self, 0.05)) or waited[-1])
    if not is_guarded:
        monkeypatch.setattr(InFlight, "reset", lambda self: None)
    with running(async_scheduling=True) as engine:
        engine.submit(PROMPT, 3)
        engine.run()
        on_worker(engine, lambda generator: generator.plugin_manager.kv_pool._worker.in_flight.launch(object()))
        on_worker(engine, lambda generator: generator.plugin_manager.kv_pool.contexts_reset())
        waited.clear()
        ask_again(engine)
        assert waited[0] is is_guarded
        assert_right_so_far(engine)


def command(engine, name):
    for worker in engine.workers:
        assert worker.generator.execute_recover_command(name)["command_result"] == 0


def repair(engine):
    for name in ("CMD_REINIT_NPU", "CMD_START_ENGINE"):
        on_worker(engine, lambda generator, name=name: generator.execute_recover_command(name))


def wipe(engine):
    engine.workers[0].device.synchronize()  # the batch that an ended sequence was still part of
    for tensor in tensors(engine):
        tensor.zero_()


def test_closing_the_gate_waits_for_those_inside_and_keeps_others_out():
    """One copy is under way when the device is closed; the next one is not let in."""
    gate, inside, leave = DeviceGate(), threading.Event(), threading.Event()

    def copy():
        with gate.passing() as may_enter:
            assert may_enter
            inside.set()
            leave.wait(JOIN_S)

    copying = threading.Thread(target=copy)
    copying.start()
    assert inside.wait(JOIN_S)
    closing = threading.Thread(target=gate.close)
    closing.start()
    wait_until(lambda: not gate.is_open(), JOIN_S, "the gate is closed")
    with gate.passing() as may_enter:
        assert not may_enter
    assert closing.is_alive()
    leave.set()
    closing.join(JOIN_S)
    copying.join(JOIN_S)
    gate.open()
    with gate.passing() as may_enter:
        assert may_enter
