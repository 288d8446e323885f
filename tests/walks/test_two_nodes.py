"""Prompts and answers computed on two nodes that share a pool, in device memories that are short.

Separate: a prefill node, whose blocks are freed once the decode node has pulled them, and a decode node with kv_pool
alone.  Flex: two nodes that do both, or that swap fixed roles.  Runs are also made without the announcement of pulls,
which must hurt, and without a pool, which shows what the host does wrong by itself.
"""

import dataclasses
import importlib

import pytest

from mindie_kvpool_plugin.host.idle_pool import IdlePool
from mindie_kvpool_plugin.host.plugin import KvPoolPlugin
from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup
from mindie_kvpool_plugin.simulator.disaggregated import Disaggregated
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.node import Node
from mindie_kvpool_plugin.simulator.node_schedulers import DecodeScheduler
from mindie_kvpool_plugin.simulator.pulls import PullFaults
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.traffic import Chat
from mindie_kvpool_plugin.simulator.two_nodes import TwoNodes
from tests.walks.conftest import (
    SHAPES,
    assert_next_turn_hits,
    assert_right,
    assert_right_so_far,
    counts,
    run_until_corrupt,
    run_with_slow_puts,
)

PUT_S = 0.01
PROMPT = list(range(10, 90))
DEPLOYMENTS = {
    "separate": TwoNodes(decode_blocks=36),
    "flex": TwoNodes("flex"),
    "switch": TwoNodes("flex", switch_every=8),
}
SHORT = {"separate": 44, "flex": 48, "switch": 44}
"""Device blocks; with fewer the host's flex nodes wait for each other."""

WRITING = pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
CASES = [
    pytest.param(name, scheduling, id=f"{name}-{'async' if scheduling else 'sync'}")
    for name in DEPLOYMENTS
    for scheduling in (False, True)
    if name == "separate" or not scheduling
]
ONE_RANK_FAILS = parse_spec("get_fail=0.2,torn=0.2,put_fail=0.2,rank=1")


def two_nodes(name, *, turns=3, two=None, **engine):
    config = EngineConfig(**{"hbm_blocks": SHORT[name], **engine})
    return RunConfig(config, lambda: Chat(8, turns), two=dataclasses.replace(DEPLOYMENTS[name], **(two or {})))


def assert_all_served(result):
    assert_right(result)
    assert result.hook_errors == 0
    assert result.aborted == 0
    assert result.pulled_blocks > 0


@pytest.mark.parametrize("tp", [1, 2])
@WRITING
@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_two_nodes_are_right_with_a_pool(name, async_scheduling, async_write, tp):
    """Nothing wrong is read or answered, nothing is lost, and the pool is of use."""
    result = run_with_pool(two_nodes(name, async_scheduling=async_scheduling, async_write=async_write, tp=tp))
    assert_all_served(result)
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_two_nodes_are_right_without_a_pool(name):
    """The simulated host does nothing wrong by itself, but for what is shown below."""
    result = run_without_pool(two_nodes(name))
    assert_all_served(result)
    assert result.hbm_hit_tokens > 0


@WRITING
@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_two_nodes_are_right_while_the_pool_fails_on_one_rank(name, async_scheduling, async_write):
    """Gets and puts, on the second rank of both nodes."""
    config = two_nodes(name, async_scheduling=async_scheduling, async_write=async_write, tp=2)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert_all_served(result)
    assert result.faults["get_fail"] > 0
    assert result.faults["put_fail"] > 0
    assert result.recomputed_blocks > 0
    assert result.reloaded_blocks > 0


@WRITING
@pytest.mark.parametrize("rank", [None, 1], ids=["all-ranks", "one-rank"])
@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_two_nodes_are_right_while_pulls_fail(name, async_scheduling, async_write, rank):
    """Half done, and every request is answered all the same: its prompt is computed again."""
    two = {"faults": PullFaults(every=4, rank=rank)}
    config = two_nodes(name, two=two, async_scheduling=async_scheduling, async_write=async_write, tp=2)
    result = run_with_pool(config)
    assert_all_served(result)
    assert result.failed_pulls > 0
    assert result.reloaded_blocks > 0


@WRITING
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("fails", [False, True], ids=["sound-pool", "one-rank-fails"])
def test_two_nodes_are_right_when_the_decode_nodes_device_is_repaired(async_scheduling, async_write, fails):
    """Its requests end; what comes afterwards is answered right."""
    config = two_nodes("separate", async_scheduling=async_scheduling, async_write=async_write, tp=2)
    result = run_with_pool(dataclasses.replace(config, fail_after=10, faults=ONE_RANK_FAILS if fails else None))
    assert_right(result)
    assert (result.recoveries, result.hook_errors) == (1, 0)
    assert result.aborted > 0
    assert result.reloaded_blocks > 0
    # of a sound pool too: the other rank's half may be on its way yet, or the repair begins in the middle of a load
    assert result.failed_get_blocks > 0 or not fails


@WRITING
def test_a_repair_that_meets_a_pull_ends_its_requests(monkeypatch, async_write):
    """Half of the blocks came before the device lost everything, half while it is closed."""
    config = two_nodes("separate", async_write=async_write, tp=2)
    met, end = [], Node._end_transfers
    monkeypatch.setattr(Node, "_end_transfers", lambda node: met.append(node.is_pulling) or end(node))
    with opened_pool(config) as pooled, Disaggregated(pooled, config.two) as host:
        requests = [host.submit(PROMPT, 40)]
        while not host.nodes[1].scheduler.running:
            host.step()
        monkeypatch.setattr(DecodeScheduler, "ordered", lambda scheduler, pulled: met or host.fail_device())
        requests.append(host.submit(PROMPT[::-1], 40))
        host.run()
        assert met == [True]
        assert [request.state for request in requests] == ["aborted", "aborted"]
        again = [host.submit(request.prompt, 40) for request in requests]
        host.run()
        assert [request.state for request in again] == ["finished", "finished"]
        assert host.leaked_blocks == 0
        assert sum(worker.plugin("kv_pool").counters.hook_errors for worker in host.workers) == 0
        assert_right_so_far(host)


@pytest.mark.parametrize("shape", ["mla", "int8-keys", "sparse"])
def test_two_nodes_are_right_with_other_caches(shape):
    """Tensors of other shapes and types travel from node to node, too."""
    assert_all_served(run_with_pool(two_nodes("separate", shape=SHAPES[shape], tp=2, async_write=True)))


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
def test_answers_that_the_decode_node_stores_are_hits_of_the_next_turn(async_scheduling):
    """A prefill node alone can store prompts only."""
    config = two_nodes("separate", async_scheduling=async_scheduling)
    alone = run_with_pool(two_nodes("separate", two={"decode_plugins": ""}))
    both = run_with_pool(config)
    assert_all_served(both)
    assert both.pool_hit_tokens > alone.pool_hit_tokens > 0
    assert both.computed_tokens < alone.computed_tokens


def test_an_answer_is_found_by_the_prefill_node():
    """Every full block of prompt and answer, on a prefill node that never had them."""
    with opened_pool(two_nodes("separate", hbm_blocks=64)) as config, Disaggregated(config, TwoNodes()) as host:
        assert_next_turn_hits(host, PROMPT)


def test_sequences_that_make_room_are_prefilled_again():
    """The decode node has too few blocks: what it stored of them is found."""
    config = two_nodes("separate", two={"decode_blocks": 28})
    with opened_pool(config) as engine, Disaggregated(engine, config.two) as host:
        for speaker in Chat(10, 1, answer_tokens=60).ready:
            host.submit(speaker.tokens, speaker.answer_length)
        host.run()
        assert host.recomputed > 0
        assert any(request.pool_blocks for request in host.done)
        assert_right_so_far(host)


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@WRITING
def test_sequences_of_a_decode_node_come_back_from_host_memory(async_scheduling, async_write):
    """Into other blocks than the pulled ones, and beside pulls."""
    config = two_nodes(
        "separate",
        two={"decode_blocks": 30},
        max_preempt_count=4,
        cpu_blocks=64,
        async_scheduling=async_scheduling,
        async_write=async_write,
    )
    traffic = {"system_tokens": 20, "turn_tokens": 24, "answer_tokens": 60}
    result = run_with_pool(dataclasses.replace(config, make_traffic=lambda: Chat(10, 3, **traffic)))
    assert_all_served(result)
    assert result.swapped_blocks > 0
    assert result.reloaded_blocks > 0


@pytest.mark.parametrize("rank", [None, 1], ids=["sound", "one-rank-fails"])
@pytest.mark.parametrize("name", ["flex", "switch"])
def test_sequences_of_flex_nodes_come_back_from_host_memory(name, rank):
    """Decodes of what was pulled, and those of a node's own; prompts for the other node stay."""
    config = two_nodes(name, hbm_blocks=46, max_preempt_count=4, cpu_blocks=64, tp=2, async_write=True)
    traffic = {"system_tokens": 20, "turn_tokens": 24, "answer_tokens": 60}
    config = dataclasses.replace(config, make_traffic=lambda: Chat(10, 3, **traffic))
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS if rank else None))
    assert_all_served(result)
    assert result.swapped_blocks > 0
    assert result.reloaded_blocks > 0


@pytest.mark.parametrize("rank", [None, 1], ids=["sound", "one-rank-fails"])
def test_prompts_in_chunks_are_pulled_when_the_last_one_is_done(rank):
    """SplitFuse on the prefill node."""
    config = two_nodes("separate", chunk_tokens=50, tp=2)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS if rank else None))
    assert_all_served(result)
    assert result.reloaded_blocks > 0
    assert (result.failed_get_blocks > 0) is (rank is not None)


def test_roles_are_switched_and_both_nodes_find_what_the_other_left():
    """A node with a prefix cache decodes what it pulled, then prefills."""
    config = two_nodes("switch")
    with opened_pool(config) as engine, Disaggregated(engine, config.two) as host:
        for turn in range(3):
            for speaker in range(8):
                host.submit([speaker + 3, *PROMPT, turn], 20)
            host.run()
        assert host.switches == 2
        assert [rank.generator.pd_config.model_role for rank in host.workers] == ["prefill", "decoder"]
        assert_right_so_far(host)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_run_repeats(name):
    """The same configuration, the same counters; who of two threads spills a block that both may is not decided."""
    config, spills = two_nodes(name), {"spilled_blocks", "spilled_bytes"}
    first, second = (counts(run_with_pool(config)) for _ in range(2))
    assert {kind for kind in first if first[kind] != second[kind]} <= spills


# -- the client goes away ---------------------------------------------------------------------------------


def steps_until(host, condition):
    for _ in range(100):
        if condition():
            return
        host.step()
    raise AssertionError("it did not come to that")


def decode_of(host, front):
    attempt = host._current.get(front.sequence_id)
    return attempt if attempt is not None and attempt.prefill is not None else None


MOMENTS = {
    "before-the-prefill": lambda host, front: True,
    "before-the-pull": lambda host, front: decode_of(host, front) is not None and not front.is_over,
    "during-the-pull": lambda host, front: host.nodes[1].is_pulling,
    "after-the-pull": lambda host, front: host.nodes[1].scheduler.running,
}


@WRITING
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_abort_costs_nobody_else_anything(monkeypatch, moment, async_scheduling, async_write):
    """All blocks come back on both nodes, and another request may have them."""
    if moment == "before-the-pull":
        # published, and no room on the other node yet
        may_pull = DecodeScheduler._may_pull
        monkeypatch.setattr(DecodeScheduler, "_may_pull", lambda self, request: bool(go) and may_pull(self, request))
    go = []
    with (
        opened_pool(two_nodes("separate", async_scheduling=async_scheduling, async_write=async_write)) as config,
        Disaggregated(config, TwoNodes(decode_blocks=24)) as host,
    ):
        first = host.submit(PROMPT, 40)
        steps_until(host, lambda: MOMENTS[moment](host, first))
        host.abort(first)
        go.append(True)
        second = host.submit([*PROMPT, 5], 20)
        host.run()
        assert [first.state, second.state] == ["aborted", "finished"]
        again = host.submit(PROMPT + second.answer, 3)
        host.run()
        assert again.state == "finished"
        assert_right_so_far(host)


@pytest.mark.parametrize("name", ["flex", "switch"])
def test_aborts_in_all_states_cost_nobody_else_anything(name):
    """Every third request, wherever it is by then."""
    config = two_nodes(name)
    with opened_pool(config) as engine, Disaggregated(engine, config.two) as host:
        asked = []
        for turn in range(6):
            for speaker in Chat(6, 1, seed=turn).ready:
                asked.append(host.submit(speaker.tokens, speaker.answer_length))
                host.step()
                if len(asked) % 3 == 0:
                    host.abort(asked[-1 - turn % 3])
        host.run()
        assert {request.state for request in asked} == {"aborted", "finished"}
        assert_right_so_far(host)


# -- what keeps it right ----------------------------------------------------------------------------------


def begin_of_a_pull_alone(plugin, find_blocks):
    """No block is given up; what arrives is still known not to have met a repair."""
    worker = plugin._worker
    if worker is not None:
        worker.pull_began = worker.walks.gate.mark()


@pytest.mark.parametrize("is_announced", [True, False], ids=["announced", "not-announced"])
@pytest.mark.parametrize(("name", "async_scheduling"), CASES)
def test_pulls_nobody_hears_of_serve_wrong_blocks(monkeypatch, name, async_scheduling, is_announced):
    """Spills are queued when another node's blocks come: what they would store is something else by then."""
    if not is_announced:
        monkeypatch.setattr(KvPoolPlugin, "blocks_pulled", begin_of_a_pull_alone)
    two = {"decode_blocks": 30} if name == "separate" and not async_scheduling else {}
    blocks = 40 if name != "flex" else 60
    config = two_nodes(name, turns=4, two=two, hbm_blocks=blocks, async_scheduling=async_scheduling, async_write=True)
    if is_announced:
        assert_all_served(run_with_slow_puts(monkeypatch, config, PUT_S))
    else:
        assert run_until_corrupt(monkeypatch, config).corruptions > 0


def test_arrivals_nobody_hears_of_are_not_stored(monkeypatch):
    """Then the decode node stores nothing: the sequences' blocks are nobody's it knows."""
    heard = run_with_pool(two_nodes("separate"))
    monkeypatch.setattr(KvPoolPlugin, "blocks_arrived", lambda self, metadata, sources: None)
    unheard = run_with_pool(two_nodes("separate"))
    assert_all_served(unheard)
    assert unheard.spilled_blocks < heard.spilled_blocks


# -- what the host does by itself -------------------------------------------------------------------------


@pytest.mark.parametrize("is_pooled", [False, True], ids=["without-pool", "with-pool"])
def test_host_pulls_into_blocks_that_a_batch_in_flight_still_writes(is_pooled):
    """Asynchronous: a sequence that has ended takes part in one batch more.  With kv_pool the pull waits for it."""
    config = two_nodes("separate", async_scheduling=True, hold_s=0.02)
    result = run_with_pool(config) if is_pooled else run_without_pool(config)
    assert (result.corruptions > 0) is not is_pooled


@pytest.mark.parametrize("overlaps", [False, True])
def test_host_serves_blocks_that_are_still_on_the_way_to_a_flex_node(overlaps):
    """It takes a pulled sequence's blocks for computed as soon as they are allocated, and lets prompts hit them."""
    config = EngineConfig(hbm_blocks=64)
    with Disaggregated(config, TwoNodes("flex", overlaps_flex=overlaps)) as host:
        host.submit(PROMPT[::-1], 1)
        host.run()
        host.submit(PROMPT, 10)  # decoded on the second node
        steps_until(host, lambda: host.nodes[1].is_pulling or host.nodes[1].decodes.running)
        host.submit(PROMPT, 5)  # the second node's own: the third request
        host.run()
        assert (host.oracle.corruptions > 0) is overlaps


def test_the_oracle_sees_blocks_that_were_released_before_they_were_pulled(monkeypatch):
    """The prefill node gives them to other prompts meanwhile."""
    publish = Disaggregated._publish

    def publish_and_release(host, prefill):
        publish(host, prefill)
        host._release(prefill)

    monkeypatch.setattr(Disaggregated, "_publish", publish_and_release)
    result = run_without_pool(two_nodes("separate", turns=4, hbm_blocks=30, two={"decode_blocks": 30}))
    assert result.corruptions > 0
    assert result.wrong_answers > 0


# -- what each role is told -------------------------------------------------------------------------------


def test_pools_are_created_as_each_role_asks(monkeypatch):
    """The schedulers of both nodes get our lookup; the client that a decode node's worker opens holds nothing."""
    mempool = None
    with opened_pool(two_nodes("separate")) as config, Disaggregated(config, TwoNodes()) as host:
        mempool = importlib.import_module("mindie_llm.text_generator.mempool.native_mempool").NativeMempool
        opened = len(mempool.opened)
        prefill, decode = host.nodes
        assert isinstance(prefill._lookup, SchedulerLookup)
        assert isinstance(decode._lookup, SchedulerLookup)
        assert not hasattr(prefill.workers[0].generator, "m_store")
        assert isinstance(decode.workers[0].generator.m_store, IdlePool)
        assert decode.workers[0].generator.plugin_manager.plugin_list == ["kv_pool"]
        assert prefill.workers[0].generator.plugin_manager.plugin_list == ["kv_pool", "prefix_cache"]
        host.submit(PROMPT, 5)
        host.run()
        assert len(mempool.opened) == opened


def test_prefix_cache_is_refused_on_a_decode_node():
    """As by the host."""
    with opened_pool(two_nodes("separate")) as config:
        two = TwoNodes(decode_plugins="kv_pool,prefix_cache")
        with pytest.raises(ValueError, match="prefix_cache is not for the decode nodes"):
            Disaggregated(config, two)


@pytest.mark.parametrize(
    ("engine", "two", "reason"),
    [
        ({"dp": 2}, TwoNodes(), "without dp"),
        ({"chunk_tokens": 32}, TwoNodes("flex"), "the host drops what they answer"),
        ({"async_scheduling": True}, TwoNodes("flex"), "asynchronous scheduling is for decode nodes"),
    ],
)
def test_what_does_not_go_with_two_nodes_is_refused(engine, two, reason):
    """At construction, with the reason."""
    with pytest.raises(ValueError, match=reason):
        Disaggregated(EngineConfig(**engine), two)


def test_roles_that_were_told_once_cannot_be_switched():
    """Only flex nodes can."""
    with pytest.raises(ValueError, match='needs roles "flex"'):
        TwoNodes(switch_every=3)
