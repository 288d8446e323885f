"""Multi-token prediction where prompts and answers are computed on two nodes: the DeepSeek deployments.

The draft layer's cache is pulled with the model's; hidden states stay on the prefill node, so a sequence's first drafts
are made from zeros.  Blocks that the decode node stores hold rejected drafts behind the tokens that count.
"""

import dataclasses

import numpy as np
import pytest

from mindie_kvpool_plugin.simulator import draft_device
from mindie_kvpool_plugin.simulator.disaggregated import Disaggregated
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.pulls import HeldWire, PullFaults
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.speculation import la, mtp
from mindie_kvpool_plugin.simulator.traffic import Chat
from mindie_kvpool_plugin.simulator.two_nodes import TwoNodes
from tests.walks.conftest import assert_next_turn_hits, assert_recomputed, assert_right, assert_right_so_far

DEPLOYMENTS = {"separate": TwoNodes(), "flex": TwoNodes("flex"), "switch": TwoNodes("flex", switch_every=8)}
CASES = [
    pytest.param("separate", False, id="separate-sync"),
    pytest.param("separate", True, id="separate-async"),
    pytest.param("flex", False, id="flex"),
    pytest.param("switch", False, id="switch"),
]
ROOM = {"separate": 48, "flex": 64, "switch": 52}
DRAFTS = pytest.mark.parametrize("drafts", [1, 2, 3])
DEEPSEEK = ModelShape(num_kv_heads=1, mla=(32, 16), dtype="bfloat16", nz=True)
ONE_RANK_FAILS = parse_spec("get_fail=0.3,torn=0.2,put_fail=0.2,rank=1")
PROMPT = list(range(10, 90))


def guessing(name, drafts=2, *, two=None, turns=3, **engine):
    blocks = ROOM[name] * (2 if engine.get("async_scheduling") else 1)  # no preemption there
    config = EngineConfig(**{"hbm_blocks": blocks, "speculation": mtp(drafts), "async_write": True, **engine})
    return RunConfig(config, lambda: Chat(8, turns), two=dataclasses.replace(DEPLOYMENTS[name], **(two or {})))


def assert_guessed(result):
    assert_right(result)
    assert 0 < result.speculation["accepted"] < result.speculation["drafts"]
    assert result.hook_errors == 0
    assert result.pulled_blocks > 0


@DRAFTS
@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_drafts_on_two_nodes_are_right_with_a_pool(name, async_scheduling, drafts):
    """Whatever was guessed on whichever node, only KV of real tokens is served, and the draft layer's comes along."""
    result = run_with_pool(guessing(name, drafts, async_scheduling=async_scheduling))
    assert_guessed(result)
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0
    assert result.speculation["draft_stale"] * 50 < result.speculation["draft_checked"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_drafts_on_two_nodes_are_right_without_a_pool(name):
    """The simulated host does nothing wrong by itself."""
    result = run_without_pool(guessing(name))
    assert_guessed(result)
    assert result.hbm_hit_tokens > 0


@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_drafts_on_two_nodes_are_right_while_the_pool_fails_on_one_rank(name, async_scheduling, async_write):
    """DeepSeek's shape in NZ, on the second rank of both nodes."""
    config = guessing(
        name, 1, turns=4, tp=2, shape=DEEPSEEK, async_scheduling=async_scheduling, async_write=async_write
    )
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert_guessed(result)
    assert_recomputed(result)
    assert result.faults["put_fail"] > 0


@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_drafts_on_two_nodes_are_right_while_pulls_fail(name, async_scheduling):
    """Half done, on one rank: the prompt is computed again, and what it leaves is found."""
    two = {"faults": PullFaults(every=4, rank=1)}
    result = run_with_pool(guessing(name, two=two, async_scheduling=async_scheduling, tp=2))
    assert_guessed(result)
    assert result.failed_pulls > 0


@DRAFTS
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_an_answer_that_was_guessed_is_found_by_the_prefill_node(drafts, async_scheduling):
    """Every full block of prompt and answer, however many tokens came in the last step."""
    config = guessing("separate", drafts, hbm_blocks=64, async_scheduling=async_scheduling, async_write=False)
    with opened_pool(config) as engine, Disaggregated(engine, TwoNodes(decode_plugins="kv_pool")) as host:
        assert_next_turn_hits(host, PROMPT)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_an_aborted_decode_leaves_only_what_is_certain(async_scheduling):
    """Behind its tokens its blocks hold guesses, and nobody is ever given those."""
    config = guessing("separate", 3, async_scheduling=async_scheduling, async_write=False)
    with opened_pool(config) as engine, Disaggregated(engine, TwoNodes()) as host:
        first = host.submit(PROMPT, 60)
        while not host.nodes[1].scheduler.running:
            host.step()
        for _ in range(4):
            host.step()
        host.abort(first)
        host.run()
        second = host.submit(PROMPT, 60)
        host.run()
        host.drop_hbm()
        again = host.submit(PROMPT + second.answer, 3)
        host.run()
        assert first.state == "aborted"
        assert again.pool_blocks > 0
        assert_right_so_far(host)


def test_sequences_that_make_room_are_prefilled_again():
    """With the tokens they have by then; guesses are no tokens."""
    config = guessing("separate", two={"decode_blocks": 34})
    traffic = {"system_tokens": 20, "turn_tokens": 24, "answer_tokens": 60}
    result = run_with_pool(dataclasses.replace(config, make_traffic=lambda: Chat(10, 3, **traffic)))
    assert_guessed(result)
    assert result.preemptions > 0
    assert result.reloaded_blocks > 0


def test_the_draft_layers_cache_is_pulled(monkeypatch):
    """Without it the draft layer of the decode node finds nothing of the prompt."""
    pull = HeldWire.pull_blocks

    def leave_drafts(wire, theirs, own, *blocks):
        return pull(wire, list(theirs)[:-2], list(own)[:-2], *blocks)

    whole = run_with_pool(guessing("switch"))
    monkeypatch.setattr(HeldWire, "pull_blocks", leave_drafts)
    result = run_with_pool(guessing("switch"))
    assert_guessed(result)
    assert result.speculation["draft_stale"] > 3 * whole.speculation["draft_stale"]


def test_the_oracle_sees_hidden_states_that_nobody_had(monkeypatch):
    """It expects zeros of a sequence that was pulled, and the model's of all others."""
    monkeypatch.setattr(
        draft_device, "_hidden_of", lambda truth, begin, end: truth.written[begin:end].astype(np.uint64)
    )
    config = guessing("separate")
    with opened_pool(config) as engine, Disaggregated(engine, TwoNodes()) as host:
        host.submit(PROMPT, 20)
        host.run()
        assert host.oracle.input_errors == 1


def test_what_guesses_from_its_own_prompts_is_refused():
    """As by the plugin's start."""
    with pytest.raises(ValueError, match="la guesses from the prompts of its own node"):
        Disaggregated(EngineConfig(speculation=la(4, 2, 3)), TwoNodes())
