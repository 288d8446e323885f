"""A prefill node under context or sequence parallelism, and a decode node without, as the host's documents have it.

The prefill node's ranks hold a prompt's blocks by turns.  The decode node pulls all of the first rank's blocks, then
the next one's, so its tables are not in the order of the tokens: who reads them as if they were stores wrong blocks.
"""

import dataclasses

import pytest

from mindie_kvpool_plugin.host import block_writes
from mindie_kvpool_plugin.simulator.disaggregated import Disaggregated
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.pulls import PullFaults
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.speculation import mtp
from mindie_kvpool_plugin.simulator.traffic import Chat
from mindie_kvpool_plugin.simulator.two_nodes import TwoNodes
from tests.walks.conftest import assert_next_turn_hits, assert_recomputed, assert_right, assert_right_so_far

DEEPSEEK = ModelShape(num_kv_heads=1, mla=(32, 16), dtype="bfloat16", nz=True)
DEPLOYMENTS = {
    "cp2": {"cp": 2},
    "sp2": {"sp": 2, "tp": 2},
    "sp4": {"sp": 4, "tp": 4},
    "cp2-sp2": {"cp": 2, "sp": 2, "tp": 2},
}
NAMES = pytest.mark.parametrize("name", DEPLOYMENTS)
SCHEDULING = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
PUTS_FAIL = parse_spec("get_fail=0.2,torn=0.2,put_fail=0.4,rank=0")
"""What the prefill node could not store, the decode node does."""
PROMPT = list(range(10, 90))


def dealt_out(name, *, turns=3, two=None, **engine):
    ranks = DEPLOYMENTS[name].get("cp", 1) * DEPLOYMENTS[name].get("sp", 1)
    is_async = engine.get("async_scheduling", False)
    config = EngineConfig(hbm_blocks=64 // ranks, shape=DEEPSEEK, **DEPLOYMENTS[name], **engine)
    nodes = TwoNodes(**{"decode_blocks": 96 if is_async else 48, **(two or {})})
    return RunConfig(config, lambda: Chat(8, turns), two=nodes)


def assert_all_served(result):
    assert_right(result)
    assert result.hook_errors == 0
    assert result.aborted == 0
    assert result.pulled_blocks > 0


@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
@SCHEDULING
@NAMES
def test_dealt_out_prompts_are_decoded_right_with_a_pool(name, async_scheduling, async_write):
    """Each node stores what it computes, and finds what the other left."""
    result = run_with_pool(dealt_out(name, async_scheduling=async_scheduling, async_write=async_write))
    assert_all_served(result)
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0


@NAMES
def test_dealt_out_prompts_are_decoded_right_without_a_pool(name):
    """To attention the order of blocks is nothing."""
    assert_all_served(run_without_pool(dealt_out(name)))


@SCHEDULING
@NAMES
def test_blocks_that_only_the_decode_node_could_store_are_right(name, async_scheduling):
    """Under the tokens they hold, not under those of their place in its table."""
    config = dealt_out(name, turns=4, async_scheduling=async_scheduling)
    result = run_with_pool(dataclasses.replace(config, faults=PUTS_FAIL))
    assert_all_served(result)
    assert_recomputed(result)
    assert result.faults["put_fail"] > 0


@SCHEDULING
@NAMES
def test_drafts_behind_dealt_out_prompts_are_right(name, async_scheduling):
    """DeepSeek as its documents deploy it: cp, sp and mtp on the prefill node, mtp on the decode node."""
    config = dealt_out(name, async_scheduling=async_scheduling, speculation=mtp(1), two={"decode_blocks": 120})
    result = run_with_pool(dataclasses.replace(config, faults=PUTS_FAIL))
    assert_all_served(result)
    assert_recomputed(result)
    assert 0 < result.speculation["accepted"] < result.speculation["drafts"]


@NAMES
def test_dealt_out_prompts_are_decoded_right_while_pulls_fail(name):
    """From one of several ranks, half done; a pull of all asks each."""
    result = run_with_pool(dealt_out(name, two={"faults": PullFaults(every=11)}))
    assert_all_served(result)
    assert result.failed_pulls > 0


@NAMES
def test_sequences_that_make_room_are_swapped_or_prefilled_again(name):
    """Into other blocks, which stand in the same order."""
    config = dealt_out(name, max_preempt_count=0, two={"decode_blocks": 26})
    result = run_with_pool(dataclasses.replace(config, faults=PUTS_FAIL))
    assert_all_served(result)
    assert result.preemptions > 0


@NAMES
def test_a_prefill_node_that_stores_nothing_finds_what_the_decode_node_stored(monkeypatch, name):
    """Every full block of prompt and answer."""
    with opened_pool(dealt_out(name)) as config, Disaggregated(config, TwoNodes()) as host:
        for worker in host.nodes[0].workers:
            plugin = worker.plugin("kv_pool")
            monkeypatch.setattr(plugin, "sequences_finished", lambda sequence_ids: None)
            monkeypatch.setattr(plugin, "sequences_dropped", lambda sequence_ids: None)
        assert_next_turn_hits(host, PROMPT)


def test_a_decode_node_that_trusts_its_tables_stores_wrong_blocks(monkeypatch):
    """As if all blocks had come from one rank."""
    monkeypatch.setattr(block_writes, "counts_by_source", lambda block_ids, sources: [len(block_ids)])
    result = run_with_pool(dataclasses.replace(dealt_out("sp2", turns=4), faults=PUTS_FAIL))
    assert result.corruptions > 0
    assert result.wrong_answers > 0


def test_a_sequence_whose_blocks_came_in_no_known_order_is_not_stored(monkeypatch):
    """It is decoded as ever."""
    with opened_pool(dealt_out("sp2")) as config, Disaggregated(config, TwoNodes()) as host:
        monkeypatch.setattr(block_writes, "counts_by_source", lambda block_ids, sources: [1, 5])
        host.submit(PROMPT, 40)
        host.run()
        assert not host.nodes[1].workers[0].plugin("kv_pool").counters.spilled_blocks
        assert_right_so_far(host)


def test_nodes_that_both_prefill_and_decode_are_refused():
    """The host pulls from ranks by turns on separate nodes only."""
    with pytest.raises(ValueError, match="cp and sp are for prefill nodes"):
        Disaggregated(EngineConfig(cp=2, shape=DEEPSEEK), TwoNodes("flex"))
