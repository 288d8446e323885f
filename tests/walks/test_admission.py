"""``admission`` second_use: fewer blocks are written, all ranks decide alike, and nothing wrong is served.

After each run the pool holds every shard of a block or none of it, and an alias for exactly those it holds.
"""

from collections import defaultdict

import pytest

from mindie_kvpool_plugin.core.admission import SecondUse
from mindie_kvpool_plugin.pools.local_dram import pool_of
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, drive, opened_pool
from mindie_kvpool_plugin.simulator.traffic import Chat
from tests.walks.conftest import SHAPES, assert_right_so_far, chat

DRAIN_S = 30.0
SECOND_USE = {"admission": "second_use"}
PROMPT = list(range(10, 90))

MODES = {
    "tp1": {},
    "tp4": {"tp": 4},
    "tp2-async-write": {"tp": 2, "async_write": True},
    "tp2-async-async-write": {"tp": 2, "async_scheduling": True, "async_write": True, "hbm_blocks": 60},
    "mla-tp4-async-write": {"tp": 4, "shape": SHAPES["mla"], "async_write": True},
    "fewer-heads-than-ranks": {"tp": 4, "shape": SHAPES["gqa-fewer-heads-than-ranks"], "async_write": True},
    "dp2-tp2": {"dp": 2, "tp": 2, "hbm_blocks": 28},
    "dp2-async-write": {"dp": 2, "async_write": True, "hbm_blocks": 28},
    "cp2-tp2-async-write": {"cp": 2, "tp": 2, "async_write": True, "hbm_blocks": 24},
    "sp2": {"sp": 2, "tp": 2, "shape": SHAPES["mla"], "hbm_blocks": 24},
    "chunks": {"chunk_tokens": 48},
}


def run(engine_options, section, speakers=8, turns=4):
    """An engine that has served a chat in a memory that is short, its pool's keys and its ranks' counters."""
    config = RunConfig(EngineConfig(**{"hbm_blocks": 40, **engine_options}), chat(), section=section)
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        drive(engine, Chat(speakers, turns), 8)
        plugins = [engine.plugin("kv_pool", rank) for rank in range(pooled.num_ranks)]
        assert all(plugin.drain(DRAIN_S) for plugin in plugins)
        assert_right_so_far(engine)
        counters = [plugin.counters for plugin in plugins]
        assert not any(each.hook_errors for each in counters)
        return list(pool_of(pooled.pool_file).keys()), counters, sum(each.pool_blocks for each in engine.done)


def shards_of(keys):
    """Digest -> its shards in the pool."""
    found = defaultdict(set)
    for key in keys:
        if key.count("/") == 3:
            *_, digest, shard = key.split("/")
            found[digest].add(shard)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_all_ranks_decide_alike(mode):
    """No hole: each block that is there is there whole, and announced; and the pool is of use."""
    keys, counters, hits = run(MODES[mode], SECOND_USE)
    shards = shards_of(keys)
    count = int(next(iter(next(iter(shards.values())))).split("of")[1])
    assert {len(each) for each in shards.values()} == {count}
    assert len([key for key in keys if key.count("/") == 2]) == len(shards)
    assert hits > 0
    assert all(each.unadmitted_blocks for each in counters)
    assert sum(each.failed_get_blocks for each in counters) == 0


def test_ranks_that_do_not_decide_alike_leave_holes(monkeypatch):
    """Where one rank forgets what it saw, the check above fails: it tells."""
    note = SecondUse.note
    forgetful = []

    def forget(self, chain):
        if not forgetful:
            forgetful.append(self)
        if self is not forgetful[0]:
            note(self, chain)

    monkeypatch.setattr(SecondUse, "note", forget)
    keys, _, _ = run(MODES["tp4"], SECOND_USE)
    assert {len(each) for each in shards_of(keys).values()} == {3}


def test_an_alias_is_put_behind_its_data(monkeypatch):
    """When an alias is put, the pool has the announcing rank's shard of its group."""
    config = RunConfig(EngineConfig(hbm_blocks=40, tp=2, async_write=True), chat(), section=SECOND_USE)
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        pool, announced = pool_of(pooled.pool_file), []
        put = pool.put

        def noting(keys, buffers, groups=None):
            if keys[0].count("/") == 2:
                announced.extend(pool.exists([f"{group}/0of2" for group in groups]))
            return put(keys, buffers, groups)

        monkeypatch.setattr(pool, "put", noting)
        drive(engine, Chat(8, 3), 8)
        assert all(engine.plugin("kv_pool", rank).drain(DRAIN_S) for rank in range(2))
        assert announced
        assert all(announced)


def test_fewer_blocks_are_written():
    """What is said once is not stored."""
    written = []
    for section in ({}, SECOND_USE):
        _, (counters,), _ = run({}, section)
        written.append(counters.spilled_blocks + counters.renewed_blocks)
    assert 0 < written[1] < written[0]


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_the_third_asker_hits(async_scheduling):
    """The first leaves nothing, the second stores what both share, the third is promised it."""
    config = RunConfig(EngineConfig(async_scheduling=async_scheduling), chat(), section=SECOND_USE)
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        hits = []
        for turn in range(3):
            request = engine.submit([*PROMPT, 200 + turn, 3, 4], 3)
            engine.run()
            engine.drop_hbm()
            hits.append(request.pool_blocks)
        assert hits == [0, 0, len(PROMPT) // engine.config.block_size]
        assert_right_so_far(engine)


def test_a_preempted_sequence_counts_when_it_is_left():
    """What it computes again when it goes on is its second use."""
    config = RunConfig(EngineConfig(hbm_blocks=24), chat(), section=SECOND_USE)
    with opened_pool(config) as pooled, Engine(pooled) as engine:
        for first in range(3):
            engine.submit([first + 3, *PROMPT], 60)
        engine.run()
        assert engine.scheduler.preemptions > 0
        counters = engine.plugin("kv_pool").counters
        assert counters.spilled_blocks + counters.renewed_blocks > 0
        assert_right_so_far(engine)
