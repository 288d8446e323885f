"""Multi-token prediction under context and sequence parallelism, as DeepSeek is deployed for long prompts.

A step writes several tokens of a sequence, which may lie on two ranks, and the workers know whose a block is only from
what the scheduler tells them when it deals one out.
"""

import dataclasses

import pytest

from mindie_kvpool_plugin.host.block_share import BlockShare
from mindie_kvpool_plugin.simulator import dealt_out
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.speculation import mtp
from mindie_kvpool_plugin.simulator.traffic import Chat
from tests.walks.conftest import SHAPES, assert_recomputed, assert_right, counts

DEPLOYMENTS = {
    "cp2": {"cp": 2},
    "sp2": {"tp": 2, "sp": 2},
    "cp2-sp2": {"cp": 2, "tp": 2, "sp": 2, "hbm_blocks": 17},
    "sp2-dp2": {"tp": 2, "sp": 2, "dp": 2},
}
SCHEDULING = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
DRAFTS = pytest.mark.parametrize("drafts", [1, 2])
EACH = pytest.mark.parametrize("name", DEPLOYMENTS)
ONE_RANK_FAILS = parse_spec("get_fail=0.3,torn=0.2,rank=1")


def dealt(name, drafts, *, async_scheduling=False, **more):
    engine = {"hbm_blocks": 30, "shape": SHAPES["mla"], **DEPLOYMENTS[name], **more}
    engine["hbm_blocks"] *= 1 + async_scheduling  # there only starts what surely ends
    config = EngineConfig(speculation=mtp(drafts), async_scheduling=async_scheduling, **engine)
    return RunConfig(config, lambda: Chat(10, 3))


@SCHEDULING
@DRAFTS
@EACH
def test_drafts_of_dealt_out_sequences_are_right_with_a_pool(name, drafts, async_scheduling):
    """With as many drafts as the documents allow there, and one more."""
    result = run_with_pool(dealt(name, drafts, async_scheduling=async_scheduling, async_write=drafts == 1))
    assert_right(result)
    assert result.hook_errors == 0
    assert result.reloaded_blocks > 0
    assert 0 < result.speculation["accepted"] < result.speculation["drafts"]


@DRAFTS
@EACH
def test_dealt_out_sequences_cost_recomputing_while_gets_fail_on_one_rank(name, drafts):
    """All ranks give up what one did not get."""
    assert_recomputed(run_with_pool(dataclasses.replace(dealt(name, drafts), faults=ONE_RANK_FAILS)))


@EACH
def test_drafts_of_dealt_out_sequences_are_right_without_a_pool(name):
    """What is wrong with it is the plugin's."""
    assert_right(run_without_pool(dealt(name, 1)))


@pytest.mark.parametrize("name", ["cp2", "cp2-sp2"])
def test_answers_that_end_anywhere_are_found_again(name):
    """Of a rank's blocks those are stored that are full and certain, whatever was dealt out for guesses behind them."""
    with opened_pool(dealt(name, 2, hbm_blocks=40)) as config, Engine(config) as engine:
        for length in range(20, 60, 3):
            first = engine.submit([length] * 50, length)
            engine.run()
            engine.drop_hbm()
            second = engine.submit([*first.prompt, *first.answer, 9], 4)
            engine.run()
            engine.drop_hbm()
            assert second.pool_blocks == (50 + length - 1) // engine.config.block_size
        assert (engine.oracle.corruptions, engine.oracle.input_errors) == (0, 0)


def test_taking_blocks_for_another_ranks_serves_wrong_blocks(monkeypatch):
    """The plugin counts whose turn it was as the scheduler does; one off, and other tokens name a block."""

    def one_off(self, num_prompt_blocks, num_blocks):
        next_ones = right(self, num_prompt_blocks, num_blocks) + 1
        return next_ones[next_ones < num_blocks]

    right = BlockShare.indexes
    monkeypatch.setattr(BlockShare, "indexes", one_off)
    result = run_with_pool(dealt("cp2", 1))
    assert result.corruptions + result.hook_errors > 0


def test_the_oracle_sees_blocks_whose_rank_nobody_was_told(monkeypatch):
    """The workers put tokens nowhere then."""
    reserve = dealt_out.DealtBlockManager.reserve

    def tell_nobody(self, table, num_tokens):
        reserve(self, table, num_tokens)
        table.appended = None

    monkeypatch.setattr(dealt_out.DealtBlockManager, "reserve", tell_nobody)
    assert run_without_pool(dealt("cp2", 1)).corruptions > 0


def test_a_run_repeats():
    """The same configuration, the same counters."""
    config = dealt("cp2-sp2", 1, async_scheduling=True)
    assert counts(run_with_pool(config)) == counts(run_with_pool(config))


@pytest.mark.parametrize("wrong", [{"chunk_tokens": 32}, {"cp": 2, "max_preempt_count": 1, "cpu_blocks": 8}])
def test_what_the_host_does_not_do_is_refused(wrong):
    """At construction, with the reason."""
    with pytest.raises(ValueError, match="as in the host"):
        EngineConfig(speculation=mtp(1), **wrong)
