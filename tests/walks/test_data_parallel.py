"""Data parallelism under one server: every rank gets the rows of all groups, in a device memory that is short.

Group and block ids tell where a sequence lies: each group counts its blocks from 0.  The runs are also made without a
guard of the plugin: then wrong blocks are served, or the ranks are told different lengths.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mindie_kvpool_plugin.host import step_view
from mindie_kvpool_plugin.simulator.data_parallel import DataParallelScheduler
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.traffic import Chat
from tests.walks.conftest import SHAPES, assert_recomputed, assert_right, assert_right_so_far, counts

DEPLOYMENTS = {
    "dp2": {"dp": 2},
    "dp3": {"dp": 3},
    "dp2-tp2": {"dp": 2, "tp": 2},
    "dp2-tp2-mla": {"dp": 2, "tp": 2, "shape": SHAPES["mla"]},
    "dp2-sp2": {"dp": 2, "tp": 2, "sp": 2, "shape": SHAPES["mla"]},
}
SCHEDULING = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
WRITING = pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
ONE_RANK_FAILS = parse_spec("get_fail=0.3,torn=0.2,rank=1")


def groups(name, *, async_scheduling, turns=3, **more):
    blocks = 48 if async_scheduling else 28  # of each group
    blocks //= DEPLOYMENTS[name].get("sp", 1)
    engine = {"hbm_blocks": blocks, "async_scheduling": async_scheduling, **DEPLOYMENTS[name], **more}
    return RunConfig(EngineConfig(**engine), lambda: Chat(9, turns))


@WRITING
@SCHEDULING
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_groups_are_right_with_a_pool(name, async_scheduling, async_write):
    """Only the own group's rows are touched, though all are seen."""
    result = run_with_pool(groups(name, async_scheduling=async_scheduling, async_write=async_write))
    assert_right(result)
    assert result.hook_errors == 0
    assert result.aborted == 0
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0


@WRITING
@SCHEDULING
@pytest.mark.parametrize("name", ["dp2", "dp2-tp2", "dp2-sp2"])
def test_groups_are_right_while_gets_fail_on_one_rank(name, async_scheduling, async_write):
    """A lowered hit gives the ranks of all groups the same lengths; with dp2 the other group has no such block."""
    config = groups(name, async_scheduling=async_scheduling, async_write=async_write)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert_recomputed(result)


@SCHEDULING
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_groups_are_right_without_a_pool(name, async_scheduling):
    """The simulated host does nothing wrong by itself."""
    result = run_without_pool(groups(name, async_scheduling=async_scheduling))
    assert_right(result)
    assert result.hbm_hit_tokens > 0


@SCHEDULING
def test_one_group_finds_what_the_other_left(async_scheduling):
    """Each has a memory of its own; the pool is shared.  Meanwhile the other group computes a made-up token."""
    with opened_pool(groups("dp2-tp2", async_scheduling=async_scheduling)) as config, Engine(config) as engine:
        prompt = list(range(10, 90))
        asked = []
        for _ in range(2):
            asked.append(engine.submit(prompt, 8))
            engine.run()
        assert [request.group for request in asked] == [0, 1]
        assert (asked[1].hbm_blocks, asked[1].pool_blocks) == (0, len(prompt) // config.block_size)
        assert isinstance(engine.scheduler, DataParallelScheduler)
        assert engine.scheduler.lonely_rounds > 0
        assert_right_so_far(engine)


def test_preempted_sequences_come_back():
    """The workers of all groups are told."""
    with opened_pool(groups("dp2", async_scheduling=False, hbm_blocks=22)) as config, Engine(config) as engine:
        for speaker in Chat(10, 1, answer_tokens=60).ready:
            engine.submit(speaker.tokens, speaker.answer_length)
        engine.run()
        assert engine.scheduler.preemptions > 0
        assert any(request.pool_blocks for request in engine.done)
        assert_right_so_far(engine)


def test_a_repaired_device_is_used_again():
    """All groups forget what they had."""
    config = dataclasses.replace(groups("dp2", async_scheduling=False), fail_after=8)
    result = run_with_pool(config)
    assert_right(result)
    assert result.recoveries == 1


def test_a_run_repeats():
    """The same configuration, the same counters."""
    config = groups("dp2", async_scheduling=True)
    assert counts(run_with_pool(config)) == counts(run_with_pool(config))


@SCHEDULING
def test_taking_all_rows_for_own_ones_serves_wrong_blocks(monkeypatch, async_scheduling):
    """The other groups' block ids mean other blocks here."""
    monkeypatch.setattr(step_view, "_is_own", lambda metadata, rank: np.ones(len(metadata.all_sequence_ids), np.bool_))
    result = run_with_pool(groups("dp2", async_scheduling=async_scheduling, turns=6, hbm_blocks=48))
    assert result.corruptions > 0
    assert result.wrong_answers > 0


@SCHEDULING
@pytest.mark.usefixtures("promises_believed")
def test_believing_promises_serves_wrong_blocks(async_scheduling):
    """The same failing gets, and the host is told that everything arrived."""
    config = groups("dp2", async_scheduling=async_scheduling, turns=6, hbm_blocks=48)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert result.failed_get_blocks > 0
    assert result.corruptions > 0
    assert result.wrong_answers > 0


@SCHEDULING
def test_oracle_sees_ranks_that_lower_own_rows_only(monkeypatch, async_scheduling):
    """The other groups' ranks would wait for more tokens than come."""
    lower_hits = step_view.lower_hits

    def lower_own(metadata, inputs, lengths, block_size, dp_rank, share):
        if metadata.remote_computed_blocks is not None:
            is_own = metadata.batch_dp_rank_ids == dp_rank
            lengths = np.where(is_own, lengths, metadata.remote_computed_blocks)
        lower_hits(metadata, inputs, lengths, block_size, dp_rank, share)

    monkeypatch.setattr(step_view, "lower_hits", lower_own)
    assert_lengths_differ(async_scheduling)


@SCHEDULING
def test_oracle_sees_lengths_that_were_not_corrected(monkeypatch, async_scheduling):
    """The host announced them with all pool hits taken off."""
    monkeypatch.setattr(step_view, "_give_back", lambda *arguments: None)
    assert_lengths_differ(async_scheduling)


@pytest.mark.parametrize("wrong", [{"cp": 2}, {"chunk_tokens": 32}, {"max_preempt_count": 1, "cpu_blocks": 8}])
def test_what_does_not_go_with_groups_is_refused(wrong):
    """At construction, with the reason."""
    with pytest.raises(ValueError, match="dp goes with neither"):
        EngineConfig(dp=2, **wrong)


def assert_lengths_differ(async_scheduling):
    config = groups("dp2", async_scheduling=async_scheduling)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert result.failed_get_blocks > 0
    assert result.corruptions > 0
