"""Context and sequence parallelism: the blocks of one sequence lie on several ranks, in a memory that is short.

Each rank's oracle checks the positions that lie there.  The runs are also made without a guard of the plugin: then
wrong blocks are served.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mindie_kvpool_plugin.host.block_share import BlockShare
from mindie_kvpool_plugin.simulator.dealt_out import DealtBlockManager, DealtTable
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.traffic import Chat
from tests.walks.conftest import SHAPES, assert_recomputed, assert_right, assert_right_so_far, counts

DEPLOYMENTS = {
    "cp2": {"cp": 2},
    "cp2-tp2": {"cp": 2, "tp": 2},
    "cp3": {"cp": 3, "block_size": 12},
    "sp2": {"sp": 2, "tp": 2, "shape": SHAPES["mla"]},
    "cp2-sp2": {"cp": 2, "sp": 2, "tp": 2, "shape": SHAPES["mla"]},
}
SCHEDULING = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
TWO_RANKS = pytest.mark.parametrize("name", ["cp2-tp2", "sp2"])
ONE_RANK_FAILS = parse_spec("get_fail=0.3,torn=0.2,rank=1")


def dealt(name, *, async_scheduling, **more):
    deployment = DEPLOYMENTS[name]
    shares = deployment.get("cp", 1) * deployment.get("sp", 1)
    blocks = (72 if async_scheduling else 48) // shares  # of each rank
    engine = EngineConfig(**{"hbm_blocks": blocks, "async_scheduling": async_scheduling, **deployment, **more})
    return RunConfig(engine, lambda: Chat(8, 3))


@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
@SCHEDULING
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_dealt_out_is_right_with_a_pool(name, async_scheduling, async_write):
    """Every rank stores and loads its own blocks, and hits begin at any rank."""
    result = run_with_pool(dealt(name, async_scheduling=async_scheduling, async_write=async_write))
    assert_right(result)
    assert result.hook_errors == 0
    assert result.aborted == 0
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0


@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
@SCHEDULING
@TWO_RANKS
def test_dealt_out_is_right_while_gets_fail_on_one_rank(name, async_scheduling, async_write):
    """All ranks compute a prefix that one of them has not got, each its own part."""
    config = dealt(name, async_scheduling=async_scheduling, async_write=async_write)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert_recomputed(result)


@SCHEDULING
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_dealt_out_is_right_without_a_pool(name, async_scheduling):
    """The simulated host does nothing wrong by itself."""
    result = run_without_pool(dealt(name, async_scheduling=async_scheduling))
    assert_right(result)
    assert result.hbm_hit_tokens > 0


@TWO_RANKS
def test_preempted_sequences_come_back(name):
    """Fewer blocks than the running sequences need: they are computed again, or found in the pool."""
    config = dealt(name, async_scheduling=False, hbm_blocks=13)
    with opened_pool(config) as engine_config, Engine(engine_config) as engine:
        for speaker in Chat(6, 1, answer_tokens=60).ready:
            engine.submit(speaker.tokens, speaker.answer_length)
        engine.run()
        assert engine.scheduler.preemptions > 0
        assert any(request.pool_blocks for request in engine.done)
        assert_right_so_far(engine)


@TWO_RANKS
def test_answers_come_back_from_the_pool(name):
    """The host's own cache holds prompts only here; the pool has all full blocks, on the ranks that computed them."""
    with opened_pool(dealt(name, async_scheduling=False)) as config, Engine(config) as engine:
        first = engine.submit([9] * 50, 60)
        engine.run()
        engine.drop_hbm()
        again = engine.submit(first.prompt + first.answer, 4)
        engine.run()
        assert again.pool_blocks == (len(first.prompt) + len(first.answer) - 1) // config.block_size
        assert_right_so_far(engine)


def test_a_whole_prompt_found_is_computed_from_its_last_block_on():
    """Something must be left to compute: the host takes a block from the rank that has the last one."""
    with opened_pool(dealt("cp2", async_scheduling=False)) as config, Engine(config) as engine:
        for _ in range(2):
            engine.submit([9] * 4 * config.block_size, 4)
            engine.run()
        computed = engine.computed_tokens
        engine.drop_hbm()
        engine.submit([9] * 4 * config.block_size, 4)
        engine.run()
        assert engine.computed_tokens == computed + config.block_size
        assert_right_so_far(engine)


def test_a_run_repeats():
    """The same configuration, the same counters."""
    config = dealt("cp2", async_scheduling=True)
    assert counts(run_with_pool(config)) == counts(run_with_pool(config))


@SCHEDULING
@TWO_RANKS
def test_taking_all_blocks_for_own_ones_serves_wrong_blocks(monkeypatch, name, async_scheduling):
    """A rank's table read as if it held the sequence's first blocks."""
    monkeypatch.setattr(BlockShare, "indexes", lambda self, prompt, count: np.arange(count, dtype=np.int64))
    result = run_with_pool(dealt(name, async_scheduling=async_scheduling))
    assert result.corruptions > 0
    assert result.wrong_answers > 0


@SCHEDULING
@TWO_RANKS
@pytest.mark.usefixtures("promises_believed")
def test_believing_promises_serves_wrong_blocks(name, async_scheduling):
    """The same failing gets, and the host is told that everything arrived."""
    config = dealt(name, async_scheduling=async_scheduling)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert result.failed_get_blocks > 0
    assert result.corruptions > 0
    assert result.wrong_answers > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_oracle_sees_damage_on_each_rank(rank):
    """A rank whose cache was wiped between two batches."""
    with Engine(dealt("cp2", async_scheduling=False).engine) as engine:
        engine.submit([9] * 60, 8)
        engine.step()
        for layer in engine.kv_cache(rank):
            for tensor in layer:
                tensor.zero_()
        engine.run()
        assert engine.oracle.corruptions > 0


@pytest.mark.parametrize(
    ("tokens", "owners"),
    [(10, [0]), (40, [0, 1, 2]), (64, [0, 1, 2, 2]), (70, [0, 1, 2, 0, 2]), (112, [0, 1, 2, 0, 1, 2, 2])],
)
def test_the_last_block_goes_to_the_last_rank(tokens, owners):
    """As soon as every rank has one; answers go on from there."""
    manager = DealtBlockManager(3, 8, 16)
    table = manager.allocate(list(range(tokens)))
    assert isinstance(table, DealtTable)
    assert table.owners == owners
    manager.append(table, [1] * 33)
    assert table.owners[: len(owners)] == owners
    assert table.owners[len(owners)] == (owners[-1] + 1) % 3
    assert sum(table.tokens_of(rank, 16) for rank in range(3)) == tokens + 33
    manager.free(table, 1.0)
    manager.check_integrity()
    assert manager.num_used == 0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"sp": 2, "tp": 2}, "an MLA shape"),
        ({"cp": 2, "chunk_tokens": 32}, "neither chunk_tokens nor swapping"),
        ({"cp": 2, "block_size": 6}, "a multiple of 2"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(wrong, why):
    """At construction, with the reason."""
    with pytest.raises(ValueError, match=why):
        EngineConfig(**wrong)
