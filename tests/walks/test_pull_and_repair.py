"""A decode node's device is repaired while blocks are pulled into it: nothing is stored that is not there.

The host ends every request then and lets pulls end before it repairs (CMD_CLEAR_TRANSER stands behind them in the
queue of transfers).  Here the sequences go on all the same, whenever their blocks come, so that what the plugin would
store of them shows.
"""

import threading

import numpy as np
import pytest

from mindie_kvpool_plugin.pools.local_dram import LocalDram
from mindie_kvpool_plugin.simulator.disaggregated import Disaggregated
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.recovery import wipe
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool
from mindie_kvpool_plugin.simulator.two_nodes import TwoNodes
from tests.conftest import wait_until
from tests.walks.conftest import chat

JOIN_S = 30.0
PROMPT = list(range(10, 90))
PROMPT_BLOCKS = 5


@pytest.fixture
def host():
    two = TwoNodes()
    run = RunConfig(EngineConfig(hbm_blocks=64, async_write=True), chat(), two=two)
    with opened_pool(run) as config, Disaggregated(config, two) as deployment:
        yield deployment


def pause(worker):
    worker.recover("CMD_PAUSE_ENGINE_ROCE")
    wipe(worker)


def reset(worker):
    worker.call(lambda: worker.recover("CMD_REINIT_NPU")).result(JOIN_S)


def start(worker):
    worker.call(lambda: worker.recover("CMD_START_ENGINE")).result(JOIN_S)


def arrive(node):
    assert node._pull.outcome()


def play(host, story):
    """Run the host up to and through a pull, with what ``story`` has happen around it; answers the decode worker."""
    node, (worker,) = host.nodes[1], host.nodes[1].workers
    host.submit(PROMPT, 40)
    while not node.decodes.has_candidates:
        host.nodes[0].step()
        for attempt in host.nodes[0].published():
            host._publish(attempt)
    for happening in story.split():
        if happening == "pull":
            assert node._transfer(may_pull=True)
            assert node.is_pulling
        elif happening == "arrive":
            arrive(node)
        else:
            {"pause": pause, "reset": reset, "start": start}[happening](worker)
    host.run()
    assert worker.plugin("kv_pool").drain(JOIN_S)
    return worker


def test_without_a_repair_all_of_it_is_stored(host):
    """Prompt and answer; the prompt's bytes are those of the prefill node."""
    worker = play(host, "pull arrive")
    assert worker.plugin("kv_pool").counters.freed_blocks == (len(PROMPT) + 40 - 1) // host.config.block_size


@pytest.mark.parametrize(
    "story",
    [
        "pull pause arrive reset start",
        "pull pause reset arrive start",
        "pull pause reset start arrive",
        "pause pull arrive reset start",
        "pause pull reset arrive start",
        "pause pull reset start arrive",
        "pause reset pull arrive start",
        "pause reset pull start arrive",
    ],
)
def test_what_a_repair_took_is_not_stored(host, story):
    """Half of the blocks came before the device lost them; or nobody can say what came while it was closed."""
    worker = play(host, story)
    counters = worker.plugin("kv_pool").counters
    assert host.pulled_blocks == PROMPT_BLOCKS
    assert (counters.freed_blocks, counters.spilled_blocks, counters.hook_errors) == (0, 0, 0)
    later = host.submit(PROMPT[::-1], 40)
    host.run()
    assert worker.plugin("kv_pool").drain(JOIN_S)
    assert later.state == "finished"
    assert counters.spilled_blocks > 0


def test_step_transfer_and_command_thread_let_go_of_each_other(host, monkeypatch):
    """A spill reads what a pull waits for, the device waits for the spill, and the step thread forgets all."""
    released, put = threading.Event(), LocalDram.put

    def held_put(pool, *args):
        assert released.wait(JOIN_S)
        return put(pool, *args)

    monkeypatch.setattr(LocalDram, "put", held_put)
    (worker,) = host.nodes[1].workers
    plugin = worker.plugin("kv_pool")
    gate = plugin._worker.walks.gate
    host.submit(PROMPT, 40)
    host.run()
    wait_until(lambda: gate._inside > 0, JOIN_S, "the spill is inside the gate")
    waited = plugin.counters.fence_waits
    everything = np.arange(host.config.hbm_blocks)
    threads = [
        threading.Thread(target=plugin.blocks_pulled, args=(lambda: everything,), name="transfer"),
        threading.Thread(target=worker.recover, args=("CMD_PAUSE_ENGINE_ROCE",), name="command"),
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: plugin.counters.fence_waits > waited, JOIN_S, "the pull waits for the spill")
    wait_until(lambda: not gate.is_open(), JOIN_S, "the device closes")
    assert all(thread.is_alive() for thread in threads)
    forgotten = worker.call(lambda: worker.recover("CMD_REINIT_NPU"))
    released.set()
    forgotten.result(JOIN_S)
    for thread in threads:
        thread.join(JOIN_S)
        assert not thread.is_alive()
    start(worker)
    plugin.check_integrity()
    later = host.submit(PROMPT[::-1], 40)
    host.run()
    assert (later.state, plugin.drain(JOIN_S), plugin.counters.hook_errors) == ("finished", True, 0)
