"""Data parallelism with a server per group: a rank gets batches of its own group only.

On a prefill node all groups go in step, and each rank is told what the others compute.  The oracle compares that with
what they do compute; on real devices ranks that are told wrong lengths hang or read each other's tokens.
"""

import dataclasses

import pytest

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host.told_lengths import ToldLengths
from mindie_kvpool_plugin.simulator import engine as engine_module
from mindie_kvpool_plugin.simulator import servers as servers_module
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.run import RunConfig, drive, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.speculation import la, memory_decoding, mtp
from mindie_kvpool_plugin.simulator.traffic import Chat
from tests.walks.conftest import SHAPES, assert_recomputed, assert_right, assert_right_so_far, counts

DEPLOYMENTS = {
    "dp2": {"dp": 2},
    "dp3": {"dp": 3},
    "dp2-tp2": {"dp": 2, "tp": 2},
    "dp2-tp2-mla": {"dp": 2, "tp": 2, "shape": SHAPES["mla"]},
}
ROLES = pytest.mark.parametrize("role", ["prefill", "standard"])
WRITING = pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
ONE_RANK_FAILS = parse_spec("get_fail=0.3,torn=0.2,rank=1")
LIVES = {
    "n": ({}, {"sampled": 0.6, "samples": 3}, lambda result: result.copied_blocks),
    "beams": ({}, {"sampled": 0.6, "samples": 3, "beams": 0.5}, lambda result: result.moved_beams),
    "swap": (
        {"max_preempt_count": 4, "cpu_blocks": 64, "hbm_blocks": 24},
        {"system_tokens": 20, "turn_tokens": 24, "answer_tokens": 60},
        lambda result: result.swapped_blocks,
    ),
    "mtp": ({"speculation": mtp(2)}, {}, lambda result: result.speculation["accepted"]),
    "la": ({"speculation": la(4, 2, 3)}, {}, lambda result: result.speculation["computed_again"]),
    "memory_decoding": ({"speculation": memory_decoding(8)}, {}, lambda result: result.speculation["accepted"]),
}
"""What a group does besides computing batches: the host's settings, the traffic, and how often it happened."""
WHOLE = list(range(10, 90))
"""A prompt of five blocks, and nothing more."""


def servers(name, *, role="prefill", turns=3, **more):
    engine = {"hbm_blocks": 28, "servers": True, "role": role, **DEPLOYMENTS[name], **more}
    return RunConfig(EngineConfig(**engine), lambda: traffic(role, turns))


def living(name, deployment):
    settings, chat, _ = LIVES[name]
    config = servers(deployment, role="standard", **{"hbm_blocks": 32, **settings})
    return dataclasses.replace(config, make_traffic=lambda: Chat(9, 3, **chat))


def traffic(role, turns=3):
    return Chat(9, turns, answer_tokens=1 if role == "prefill" else 24)


@WRITING
@ROLES
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_servers_are_right_with_a_pool(name, role, async_write):
    """Groups that know nothing of each other, and groups in step."""
    result = run_with_pool(servers(name, role=role, async_write=async_write))
    assert_right(result)
    assert result.hook_errors == 0
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0


@WRITING
@ROLES
@pytest.mark.parametrize("name", ["dp2", "dp2-tp2"])
def test_servers_are_right_while_gets_fail_on_one_rank(name, role, async_write):
    """What a group lost is heard by ranks that run another batch: with dp2 rank 1 is the other group's."""
    config = servers(name, role=role, async_write=async_write)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert_recomputed(result)


@pytest.mark.parametrize("faults", [None, ONE_RANK_FAILS], ids=["healthy", "one-rank-fails"])
def test_a_prefill_node_of_deepseek_is_right(faults):
    """Latent attention in NZ, mtp 1, dp 2 x tp 8: the draft layer's cache is stored and found with the model's."""
    shape = ModelShape(num_kv_heads=1, mla=(32, 16), dtype="bfloat16", nz=True)
    config = servers("dp2", tp=8, shape=shape, speculation=mtp(1), async_write=True)
    result = run_with_pool(dataclasses.replace(config, faults=faults))
    assert_right(result)
    assert result.hook_errors == 0
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0
    assert (result.failed_get_blocks > 0) == (result.recomputed_blocks > 0) == (faults is not None)
    assert result.speculation["draft_checked"] > 1000
    assert result.speculation["draft_stale"] == 0


@ROLES
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_servers_are_right_without_a_pool(name, role):
    """No prompt of this traffic is found as a whole, so the simulated host does nothing wrong by itself."""
    result = run_without_pool(servers(name, role=role))
    assert_right(result)
    assert result.hbm_hit_tokens > 0


def test_a_group_without_a_prompt_takes_part_with_a_dummy_batch():
    """One request at a time; the pool is shared, so each group finds what the other left."""
    with opened_pool(servers("dp2-tp2")) as config, Engine(config) as engine:
        asked = []
        for _ in range(4):
            asked.append(engine.submit([*WHOLE, 5], 1))
            engine.run()
        assert [request.group for request in asked] == [0, 1, 0, 1]
        assert (asked[1].hbm_blocks, asked[1].pool_blocks) == (0, 5)
        assert engine.scheduler.lonely_rounds == 4
        assert not broken(engine)
        assert_right_so_far(engine)


@pytest.mark.parametrize("is_pooled", [False, True])
def test_a_prompt_cached_as_a_whole_is_put_right(is_pooled):
    """The host announces no tokens of it and computes a block: with the pool that is told, too."""
    config = servers("dp2")
    with opened_pool(config) as pooled, Engine(pooled if is_pooled else config.engine) as engine:
        for _ in range(4):
            engine.submit(WHOLE, 1)
            engine.run()
        assert [request.hbm_blocks for request in engine.done] == [0, 0, 5, 5]
        assert [request.pool_blocks for request in engine.done] == [0, 5 * is_pooled, 0, 0]
        assert bool(engine.oracle.input_errors) != is_pooled


def test_sequence_parallel_lengths_are_put_right():
    """There the host takes off what was found on the last rank only."""
    config = servers("dp2-tp2-mla", sp=2)
    assert run_without_pool(config).corruptions > 0
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert_right(result)
    assert result.recomputed_blocks > 0


@ROLES
def test_a_rank_that_stumbles_costs_recomputing_and_nothing_else(role):
    """Every other load of rank 1 raises: its group recomputes, and the other one hears it."""
    with opened_pool(servers("dp2-tp2", role=role)) as config, Engine(config) as engine:
        stumbled = stumble(engine, rank=1)
        drive(engine, traffic(role, turns=5), concurrency=4)
        assert len(stumbled) > 5
        assert engine.plugin("kv_pool", 1).counters.hook_errors == len(stumbled)
        assert engine.plugin("kv_pool", 0).counters.recomputed_blocks > 0
        assert not broken(engine)
        assert_right_so_far(engine)


@pytest.mark.parametrize("name", LIVES)
@pytest.mark.parametrize("deployment", ["dp2", "dp2-tp2"])
def test_each_group_lives_as_one_alone(name, deployment):
    """It copies, swaps and guesses for itself, while gets fail on one rank."""
    result = run_with_pool(dataclasses.replace(living(name, deployment), faults=ONE_RANK_FAILS))
    assert_recomputed(result)
    assert LIVES[name][2](result) > 0


@pytest.mark.parametrize("name", ["n", "swap"])
def test_oracle_sees_moves_that_reach_all_groups(monkeypatch, name):
    """As they do with one scheduler in the host, where a block id means another block in another group."""

    def everywhere(batch, scheduler, config):
        moved = servers_module.block_moves(batch, scheduler, config)
        return [(part, range(config.num_ranks)) for part, _ in moved]

    monkeypatch.setattr(engine_module, "block_moves", everywhere)
    assert run_without_pool(living(name, "dp2")).corruptions > 0


def test_a_rank_that_is_gone_ends_the_step_on_all_others():
    """Nobody computes with lengths that may be others', and nobody waits beyond the bound."""
    with opened_pool(servers("dp2-tp2")) as config, Engine(config) as engine:
        engine.submit(WHOLE, 1)
        engine.run()
        computed, failures = engine.computed_tokens, []
        for rank, worker in enumerate(engine.workers):
            end_step(engine, rank, worker, failures)
        engine.submit(WHOLE, 1)
        with pytest.raises((HostCompatError, ConnectionError)):
            engine.step()
        assert sorted(failures) == [0, 1, 2]
        assert broken(engine) == [0, 1, 2]
        assert engine.computed_tokens == computed


def test_a_repaired_device_is_used_again():
    """All groups forget what they had."""
    result = run_with_pool(dataclasses.replace(servers("dp2"), fail_after=8))
    assert_right(result)
    assert result.recoveries == 1
    assert result.pool_hit_tokens > 0


def test_a_run_repeats():
    """The same configuration, the same counters."""
    config = servers("dp2")
    assert counts(run_with_pool(config)) == counts(run_with_pool(config))


@pytest.mark.usefixtures("promises_believed")
def test_believing_promises_serves_wrong_blocks():
    """The same failing gets, and the host is told that everything arrived."""
    assert wrong_with_failing_gets(turns=6).wrong_answers > 0


def test_oracle_sees_ranks_that_are_not_told(monkeypatch):
    """They agree, and other ranks' lengths stay those the host announced."""
    monkeypatch.setattr(ToldLengths, "finish", untold(ToldLengths.finish))
    assert wrong_with_failing_gets().wrong_answers == 0, "each rank by itself does nothing wrong"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"servers": True}, "dp above 1"),
        ({"servers": True, "dp": 2, "async_scheduling": True}, "synchronously"),
        ({"servers": True, "dp": 2, "role": "decoder"}, "standard and prefill"),
    ],
)
def test_what_is_not_simulated_is_refused(wrong, why):
    """At construction, with the reason."""
    with pytest.raises(ValueError, match=why):
        EngineConfig(**wrong)


def test_a_prefill_node_answers_with_one_token():
    """The rest is another node's."""
    with Engine(servers("dp2").engine) as engine, pytest.raises(ValueError, match="first token"):
        engine.submit(WHOLE, 2)


def wrong_with_failing_gets(turns=3):
    result = run_with_pool(dataclasses.replace(servers("dp2", turns=turns), faults=ONE_RANK_FAILS))
    assert result.failed_get_blocks > 0
    assert result.corruptions > 0
    return result


def untold(finish):
    """``ToldLengths.finish`` without what it is for."""

    def leave(self, metadata, model_inputs):
        announced = metadata.seq_lens
        finish(self, metadata, model_inputs)
        metadata.seq_lens = model_inputs.seq_lens = announced

    return leave


def broken(engine):
    """Ranks whose agreement failed."""
    workers = [engine.plugin("kv_pool", rank)._worker for rank in range(engine.config.num_ranks)]
    return [rank for rank, worker in enumerate(workers) if worker.agreement.broken]


def stumble(engine, rank):
    """Let every other load of a rank raise; when it did."""
    reload, stumbled, calls = engine.plugin("kv_pool", rank)._worker.walks.prefill._reload, [], []
    get = reload._get

    def raise_sometimes(*args):
        calls.append(None)
        if len(calls) % 2:
            stumbled.append(len(calls))
            raise RuntimeError("planted")
        return get(*args)

    reload._get = raise_sometimes
    return stumbled


def end_step(engine, rank, worker, failures):
    """The last rank dies before it can say anything; of the others note which ended the step with an error."""
    plugin = engine.plugin("kv_pool", rank)
    plugin._worker.agreement._timeout_s = 0.3
    update = plugin.model_inputs_update

    def die(*args, **kwargs):
        raise ConnectionError("planted")

    def watch(*args, **kwargs):
        try:
            return update(*args, **kwargs)
        except HostCompatError:
            failures.append(rank)
            raise

    plugin.model_inputs_update = die if rank == len(engine.workers) - 1 else watch
