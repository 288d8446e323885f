"""Load or recompute on the whole way, while the pool is slowed and one rank's gets fail: ranks choose alike.

In simulated time, so that a slow pool is slow by what it moves and not by how busy this machine is.
"""

import contextlib
import dataclasses

import numpy as np
import pytest

from mindie_kvpool_plugin.simulator.cost import LINK_BYTES_PER_S, PROFILES, Costs, OwnPart
from mindie_kvpool_plugin.simulator.cost_clock import SimulatedTime
from mindie_kvpool_plugin.simulator.cost_pool import COSTED, costed
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import FAULTY, injected, parse_spec
from mindie_kvpool_plugin.simulator.run import DRAIN_TIMEOUT_S, RunConfig, drive, opened_pool
from mindie_kvpool_plugin.simulator.timed import TIMED
from mindie_kvpool_plugin.simulator.timed_service import FINE_SCALE
from mindie_kvpool_plugin.simulator.traffic import Chat
from tests.walks.conftest import assert_right_so_far, chat

SLOWER = 1000
TURNS = 4
IDLE_S = 12.0
"""Between two steps: the gate tries again after some seconds."""
ONE_RANK_FAILS = parse_spec("get_fail=0.15,torn=0.1,rank=1")
DEPLOYMENTS = {
    "tp2": {"tp": 2, "hbm_blocks": 28},
    "dp2": {"dp": 2, "hbm_blocks": 28},
    "dp2-tp2": {"dp": 2, "tp": 2, "hbm_blocks": 28},
    "dp2-tp2-prefill-node": {"dp": 2, "tp": 2, "servers": True, "role": "prefill", "hbm_blocks": 28},
}


class Slowed:
    """An engine whose pool gets slow and fast, and whose ranks are looked at after every step."""

    def __init__(self, engine, time):
        self.engine, self._time = engine, time
        self.workers = [worker.plugin("kv_pool")._worker for worker in engine.workers]
        self._step, engine.step = engine.step, self.step

    def step(self):
        self._step()
        for worker in self.workers:
            assert worker.walks.spill.drain(DRAIN_TIMEOUT_S)
        self._time.reach(self._time.meet() + IDLE_S)
        gates = [worker.walks.prefill._reload._load_gate for worker in self.workers]
        places = [[(place.is_on, place.figures) for place in (gate.own, gate.elsewhere)] for gate in gates]
        assert all(each == places[0] for each in places), "ranks choose by the same"

    def run(self, times_slower):
        """Blocks that each rank loaded and left to computing meanwhile."""
        costs = dataclasses.replace(self._time.costs, link_bytes_per_s=LINK_BYTES_PER_S / times_slower)
        for rank in self._time.ranks.values():
            rank.costs = costs
        before = self._figures()
        answer_tokens = 1 if self.engine.config.role == "prefill" else 24
        drive(self.engine, Chat(8, TURNS, answer_tokens=answer_tokens), concurrency=4)
        return self._figures() - before

    def _figures(self):
        counters = [worker.walks.counters for worker in self.workers]
        return np.array([(each.reloaded_blocks, each.recomputed_cheaper) for each in counters])


@contextlib.contextmanager
def slowed(own_part=None, **engine):
    """Behind modelled links, and behind faults that one rank meets; hooks take no time, so that it repeats."""
    time = SimulatedTime(Costs(PROFILES["qwen-7b"], FINE_SCALE, own_part=own_part), None)
    config = RunConfig(EngineConfig(async_write=True, time=time, **engine), chat(), section=TIMED)
    with (
        opened_pool(config) as pooled,
        injected(ONE_RANK_FAILS, pooled.backend, pooled.pool_file) as faults,
        costed(time, FAULTY, pooled.pool_file, pooled.block_size),
        Engine(dataclasses.replace(pooled, backend=COSTED)) as running,
    ):
        yield Slowed(running, time), faults


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_ranks_choose_alike_while_the_pool_is_slowed_and_gets_fail(name):
    """Loaded while that pays, left to computing while it does not, loaded again; never a wrong block."""
    with slowed(**DEPLOYMENTS[name]) as (it, faults):
        fast, slow, again = it.run(1), it.run(SLOWER), it.run(1)
        loaded, declined = fast.T
        assert (loaded > 0).all()
        assert not declined.any()
        loaded, declined = slow.T
        assert (declined > 0).all()
        assert loaded.sum() < declined.sum()
        loaded, declined = again.T
        assert (loaded > 0).all()
        assert loaded.sum() > declined.sum()
        assert faults.happened["get_fail"] > 0
        assert faults.happened["torn"] > 0
        assert it.workers[1].walks.counters.failed_get_blocks > 0
        assert not any(worker.agreement.broken for worker in it.workers)
        assert sum(worker.walks.counters.hook_errors for worker in it.workers) == 0
        assert_right_so_far(it.engine)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_what_lies_elsewhere_is_left_alone_and_the_own_part_is_loaded(name):
    """Elsewhere is a thousand times slower: every rank finds out, keeps to its own part, and no answer is wrong."""
    own_part = OwnPart(80, LINK_BYTES_PER_S / SLOWER)
    with slowed(own_part, **DEPLOYMENTS[name]) as (it, faults):
        it.run(1)
        loaded, declined = it.run(1).T
        assert (loaded > 0).all()
        assert (declined > 0).all()
        counters = [worker.walks.counters for worker in it.workers]
        assert {(each.load_is_on, each.load_elsewhere_is_on) for each in counters} == {(1, 0)}
        assert all(0 < 100 * each.load_block_seconds < each.load_elsewhere_block_seconds for each in counters)
        assert faults.happened["get_fail"] > 0
        assert sum(each.hook_errors for each in counters) == 0
        assert_right_so_far(it.engine)
