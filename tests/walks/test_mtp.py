"""Multi-token prediction: several tokens per sequence and step, out of a draft layer whose cache is one of the model's.

The last layer of the cache belongs to the draft layer and is spilled like the others.  Drafts are rejected as often as
accepted, so blocks hold KV of tokens that never were.  The runs are also made without a guard: then the oracle sees it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mindie_kvpool_plugin.host.device_memory import CacheLayout
from mindie_kvpool_plugin.host.in_flight import InFlight
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.oracle import reference_answer
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.speculation import mtp
from mindie_kvpool_plugin.simulator.traffic import Chat
from tests.walks.conftest import SHAPES, assert_right, assert_right_so_far, counts

SCHEDULING = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
WRITING = pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
DRAFTS = pytest.mark.parametrize("drafts", [1, 2, 3])
FAILS = parse_spec("get_fail=0.3,torn=0.2")
ONE_RANK_FAILS = parse_spec("get_fail=0.3,torn=0.2,rank=1")
DEPLOYMENTS = {
    "tp2": {"tp": 2},
    "tp2-mla": {"tp": 2, "shape": SHAPES["mla"]},
    "int8-keys": {"shape": SHAPES["int8-keys"]},
    "nz": {"shape": ModelShape(num_kv_heads=1, mla=(32, 16), dtype="bfloat16", nz=True)},
    "dp2": {"dp": 2},
    "dp2-tp2": {"dp": 2, "tp": 2},
}
HEADLINE = {"dp": 2, "tp": 8, "shape": DEPLOYMENTS["nz"]["shape"], "async_scheduling": True, "async_write": True}


def guessing(drafts, *, async_scheduling, speakers=8, turns=3, **more):
    blocks = 64 if async_scheduling else 28  # of each group
    if more.get("dp", 1) > 1:
        blocks -= 16 if async_scheduling else 0
    engine = {"hbm_blocks": blocks, "async_scheduling": async_scheduling, "speculation": mtp(drafts), **more}
    return RunConfig(EngineConfig(**engine), lambda: Chat(speakers, turns))


def assert_guessed(result):
    """Some drafts were right and some were not."""
    assert 0 < result.speculation["accepted"] < result.speculation["drafts"]


@WRITING
@SCHEDULING
@DRAFTS
def test_drafts_are_right_with_a_pool(drafts, async_scheduling, async_write):
    """Whatever was guessed, only KV of real tokens is served; the draft layer's comes along."""
    result = run_with_pool(guessing(drafts, async_scheduling=async_scheduling, async_write=async_write))
    assert_right(result)
    assert_guessed(result)
    assert result.hook_errors == 0
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0
    assert result.speculation["draft_checked"] > 1000
    assert result.speculation["draft_stale"] * 100 < result.speculation["draft_checked"]


@SCHEDULING
@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_drafts_are_right_in_other_deployments(name, async_scheduling):
    """Several ranks, data parallel groups, and every cache layout."""
    config = guessing(2, async_scheduling=async_scheduling, async_write=True, speakers=9, **DEPLOYMENTS[name])
    result = run_with_pool(config)
    assert_right(result)
    assert_guessed(result)
    assert result.hook_errors == 0
    assert result.reloaded_blocks > 0


@SCHEDULING
@DRAFTS
def test_drafts_are_right_while_gets_fail(drafts, async_scheduling):
    """What does not arrive is computed in the same step, draft layer and all."""
    config = guessing(drafts, async_scheduling=async_scheduling, turns=4)
    result = run_with_pool(dataclasses.replace(config, faults=FAILS))
    assert_right(result)
    assert_guessed(result)
    assert result.failed_get_blocks > 0
    assert result.recomputed_blocks > 0
    assert result.reloaded_blocks > 0
    assert result.hook_errors == 0


@SCHEDULING
def test_drafts_are_right_while_gets_fail_on_one_of_many_ranks(async_scheduling):
    """Two data parallel groups of two ranks each lower the hit alike."""
    config = guessing(1, async_scheduling=async_scheduling, speakers=9, turns=4, **DEPLOYMENTS["dp2-tp2"])
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert_right(result)
    assert result.failed_get_blocks > 0
    assert result.recomputed_blocks > 0


@pytest.mark.parametrize("faults", [None, ONE_RANK_FAILS], ids=["healthy", "one-rank-fails"])
def test_the_headline_deployment_is_right(faults):
    """DeepSeek-R1's shape: latent attention, mtp 1, dp 2 x tp 8, NZ, asynchronous scheduling and writing."""
    config = RunConfig(EngineConfig(hbm_blocks=36, speculation=mtp(1), **HEADLINE), lambda: Chat(10, 3))
    result = run_with_pool(dataclasses.replace(config, faults=faults))
    assert_right(result)
    assert_guessed(result)
    assert result.hook_errors == 0
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0
    assert (result.failed_get_blocks > 0) == (result.recomputed_blocks > 0) == (faults is not None)


@SCHEDULING
def test_pool_saves_computing(async_scheduling):
    """The same traffic without it computes more."""
    config = guessing(1, async_scheduling=async_scheduling)
    without, with_pool = run_without_pool(config), run_with_pool(config)
    assert_right(without)
    assert with_pool.computed_tokens < without.computed_tokens


@SCHEDULING
def test_a_whole_answer_is_found_again(async_scheduling):
    """Of n tokens n - 1 have their KV in place, however many came in the last step."""
    config = guessing(3, async_scheduling=async_scheduling)
    with opened_pool(config) as engine_config, Engine(engine_config) as engine:
        first = engine.submit([9] * 50, 60)
        engine.run()
        engine.drop_hbm()
        again = engine.submit(first.prompt + first.answer, 4)
        engine.run()
        assert again.pool_blocks == (len(first.prompt) + len(first.answer) - 1) // engine_config.block_size
        assert_right_so_far(engine)


@SCHEDULING
def test_an_aborted_request_leaves_only_what_is_certain(async_scheduling):
    """Its blocks hold guesses behind the tokens it got."""
    config = guessing(3, async_scheduling=async_scheduling)
    with opened_pool(config) as engine_config, Engine(engine_config) as engine:
        first = engine.submit(list(range(10, 60)), 60)
        for _ in range(8):
            engine.step()
        engine.abort(first)
        engine.run()
        engine.drop_hbm()
        prompt = [*first.prompt, *reference_answer(first.prompt, 60, engine_config.shape.vocab_size)]
        again = engine.submit(prompt, 4)
        engine.run()
        assert 0 < again.pool_blocks <= (len(first.prompt) + len(first.answer)) // engine_config.block_size
        assert not engine.oracle.events


@SCHEDULING
def test_a_run_repeats(async_scheduling):
    """The same configuration, the same counters."""
    config = guessing(2, async_scheduling=async_scheduling)
    assert counts(run_with_pool(config)) == counts(run_with_pool(config))


@SCHEDULING
@DRAFTS
def test_a_pool_without_the_draft_layer_brings_none_back(monkeypatch, drafts, async_scheduling):
    """Most positions of the blocks that were reloaded are stale then, and only drafts suffer."""
    build = CacheLayout.__init__
    monkeypatch.setattr(CacheLayout, "__init__", lambda self, cache, num_blocks: build(self, cache[:-1], num_blocks))
    result = run_with_pool(guessing(drafts, async_scheduling=async_scheduling))
    assert_right(result)
    assert result.reloaded_blocks > 0
    assert result.speculation["draft_stale"] >= result.reloaded_blocks * EngineConfig().block_size // 2


@DRAFTS
def test_reload_that_does_not_wait_for_the_batch_in_flight_is_a_corruption(monkeypatch, drafts):
    """A batch in flight writes its guesses over blocks that were loaded too early."""
    monkeypatch.setattr(InFlight, "wait", lambda self, timeout_s: True)
    result = run_with_pool(guessing(drafts, async_scheduling=True, speakers=12, turns=4, hold_s=5.0))
    assert result.corruptions > 0
    assert result.wrong_answers > 0


@SCHEDULING
@pytest.mark.usefixtures("promises_believed")
def test_believing_promises_serves_wrong_blocks(async_scheduling):
    """The same failing gets, and the host is told that everything arrived."""
    result = run_with_pool(dataclasses.replace(guessing(1, async_scheduling=async_scheduling, turns=4), faults=FAILS))
    assert result.failed_get_blocks > 0
    assert result.corruptions > 0
    assert result.wrong_answers > 0


def test_storing_guesses_serves_wrong_blocks(monkeypatch):
    """A worker that takes the places behind the known tokens for computed, which hold rejected drafts."""
    from mindie_kvpool_plugin.host.sequence_table import SequenceTable

    class Ahead:
        def __init__(self, context):
            self._context = context

        def get_seq_lens(self, handles):
            return self._context.get_seq_lens(handles) + 3

        def get_all_input_ids(self, handle):
            length = int(self._context.get_seq_lens(handle))
            tokens = np.array(self._context.get_all_input_ids(handle), dtype=np.int64)
            known = tokens[:length].tolist()
            tokens[length : length + 3] = reference_answer(known, 3, ModelShape().vocab_size)
            return tokens

    build = SequenceTable.__init__
    monkeypatch.setattr(
        SequenceTable, "__init__", lambda self, context, *args, **more: build(self, Ahead(context), *args, **more)
    )
    config = guessing(3, async_scheduling=False)
    with opened_pool(config) as engine_config, Engine(engine_config) as engine:
        for length in range(50, 66):
            first = engine.submit([length] * length, 20)
            engine.run()
            engine.drop_hbm()
            prompt = [*first.prompt, *reference_answer(first.prompt, 40, engine_config.shape.vocab_size)]
            engine.submit(prompt, 4)
            engine.run()
        assert engine.oracle.corruptions > 0


@SCHEDULING
def test_the_oracle_sees_damage(async_scheduling):
    """A cache that was wiped between two batches."""
    with Engine(guessing(2, async_scheduling=async_scheduling).engine) as engine:
        request = engine.submit([9] * 60, 20)
        for _ in range(3):
            engine.step()
        for layer in engine.kv_cache():
            for tensor in layer:
                tensor.zero_()
        engine.run()
        assert engine.oracle.corruptions > 0
        assert request.answer != reference_answer(request.prompt, 20, engine.config.shape.vocab_size)


@pytest.mark.parametrize("accept_rate", [0.0, 1.0])
def test_answers_do_not_depend_on_the_guesses(accept_rate):
    """None right, or all: the same tokens in more or fewer steps."""
    with Engine(EngineConfig(speculation=mtp(3, accept_rate))) as engine:
        request = engine.submit([9] * 60, 21)
        steps = 0
        while engine.step():
            steps += 1
        assert request.answer == reference_answer([9] * 60, 21, engine.config.shape.vocab_size)
        assert engine.oracle.counts["accepted"] == engine.oracle.counts["drafts"] * accept_rate
        assert steps == (6 if accept_rate else 21)
