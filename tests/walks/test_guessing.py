"""Lookahead (la) and memory decoding: a step computes guesses next to each other, of which some turn out right.

A guess other than the first that is accepted has its KV elsewhere until the next step computes it again.  So of a
sequence that ends there, not all tokens but the last have their KV in place, and the plugin must not store them.
"""

from __future__ import annotations

import dataclasses

import pytest

from mindie_kvpool_plugin.host import modes
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.oracle import reference_answer
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.speculation import la, memory_decoding
from mindie_kvpool_plugin.simulator.traffic import Chat
from tests.walks.conftest import SHAPES, assert_right, counts

GUESSERS = {"la": la(4, 4, 4), "la-small": la(3, 2, 2), "memory_decoding": memory_decoding(8)}
EACH = pytest.mark.parametrize("name", GUESSERS)
BOTH = pytest.mark.parametrize("name", ["la", "memory_decoding"])
WRITING = pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
FAILS = parse_spec("get_fail=0.3,torn=0.2")
ONE_RANK_FAILS = parse_spec("get_fail=0.3,torn=0.2,rank=1")
DEPLOYMENTS = {
    "tp2": {"tp": 2},
    "tp2-mla": {"tp": 2, "shape": SHAPES["mla"]},
    "nz": {"shape": ModelShape(num_kv_heads=1, mla=(32, 16), dtype="bfloat16", nz=True)},
    "small-blocks": {"block_size": 8, "hbm_blocks": 90},
}
EVERY_ANSWER = [(token, length) for token in (7, 8, 9) for length in range(20, 36)]
"""What a prompt consists of, and the length of its answer: they end at every place in a block."""


def guessing(name, *, speakers=8, turns=3, **more):
    engine = {"hbm_blocks": 40, "speculation": GUESSERS[name], **more}
    return RunConfig(EngineConfig(**engine), lambda: Chat(speakers, turns))


def come_back_to_every_answer(engine):
    """Answers that end at every place in a block, each asked for again from the pool alone."""
    for token, length in EVERY_ANSWER:
        first = engine.submit([token] * (40 + token), length)
        engine.run()
        engine.drop_hbm()
        engine.submit([*first.prompt, *first.answer, 9], 4)
        engine.run()
        engine.drop_hbm()


@WRITING
@EACH
def test_guesses_are_right_with_a_pool(name, async_write):
    """Whatever was guessed, only KV of real tokens that is in place is served."""
    result = run_with_pool(guessing(name, async_write=async_write))
    assert_right(result)
    assert 0 < result.speculation["accepted"] < result.speculation["guesses"]
    assert (result.speculation["computed_again"] > 0) == (name != "memory_decoding")
    assert result.hook_errors == 0
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0


@BOTH
@pytest.mark.parametrize("deployment", DEPLOYMENTS)
def test_guesses_are_right_in_other_deployments(name, deployment):
    """Several ranks, and other cache layouts."""
    result = run_with_pool(guessing(name, async_write=True, **DEPLOYMENTS[deployment]))
    assert_right(result)
    assert result.speculation["accepted"] > 0
    assert result.hook_errors == 0
    assert result.reloaded_blocks > 0


@BOTH
@pytest.mark.parametrize("faults", [FAILS, ONE_RANK_FAILS], ids=["all", "one-rank"])
def test_guesses_are_right_while_gets_fail(name, faults):
    """What does not arrive is computed in the same step."""
    config = guessing(name, turns=4, tp=1 + (faults is ONE_RANK_FAILS))
    result = run_with_pool(dataclasses.replace(config, faults=faults))
    assert_right(result)
    assert result.speculation["accepted"] > 0
    assert result.failed_get_blocks > 0
    assert result.recomputed_blocks > 0
    assert result.reloaded_blocks > 0
    assert result.hook_errors == 0


@BOTH
def test_pool_saves_computing(name):
    """The same traffic without it computes more."""
    config = guessing(name)
    without, with_pool = run_without_pool(config), run_with_pool(config)
    assert_right(without)
    assert with_pool.computed_tokens < without.computed_tokens


@EACH
def test_answers_that_end_anywhere_are_stored_as_far_as_they_are_certain(name):
    """Nothing wrong comes back, and answers do come back."""
    with opened_pool(guessing(name)) as config, Engine(config) as engine:
        come_back_to_every_answer(engine)
        assert not engine.oracle.events
        found = [request.pool_blocks * config.block_size for request in engine.done[1::2]]
        prompts = [40 + token for token, _ in EVERY_ANSWER]
        assert all(tokens > prompt for tokens, prompt in zip(found, prompts, strict=True))


def test_taking_all_but_the_last_token_for_certain_serves_wrong_blocks(monkeypatch):
    """As with the other plugins that guess: then KV is stored that la would have computed again."""
    monkeypatch.setattr(modes, "settles_late", lambda active: False)
    with opened_pool(guessing("la")) as config, Engine(config) as engine:
        come_back_to_every_answer(engine)
        assert engine.oracle.corruptions > 0


@BOTH
@pytest.mark.usefixtures("promises_believed")
def test_believing_promises_serves_wrong_blocks(name):
    """The same failing gets, and the host is told that everything arrived."""
    result = run_with_pool(dataclasses.replace(guessing(name, turns=4), faults=FAILS))
    assert result.failed_get_blocks > 0
    assert result.corruptions > 0
    assert result.wrong_answers > 0


@EACH
def test_the_oracle_sees_damage(name):
    """A cache that was wiped between two steps."""
    with Engine(guessing(name).engine) as engine:
        request = engine.submit([9] * 60, 30)
        for _ in range(3):
            engine.step()
        for layer in engine.kv_cache():
            for tensor in layer:
                tensor.zero_()
        engine.run()
        assert engine.oracle.corruptions > 0
        assert request.answer != reference_answer(request.prompt, 30, engine.config.shape.vocab_size)


@BOTH
def test_the_oracle_sees_a_mask_that_hides_a_token(monkeypatch, name):
    """A row that does not see the token before it."""
    with Engine(guessing(name).engine) as engine:
        plugin = engine.plugin(name)
        build = plugin.with_guesses

        def hide(*args):
            inputs, counts_, mask = build(*args)
            mask[0, 40] = mask.min()
            return inputs, counts_, mask

        monkeypatch.setattr(plugin, "with_guesses", hide)
        engine.submit([9] * 60, 4)
        engine.run()
        assert any("mask" in event for event in engine.oracle.events)


@pytest.mark.parametrize("accept_rate", [0.0, 1.0])
@BOTH
def test_answers_do_not_depend_on_the_guesses(name, accept_rate):
    """None right, or all: the same tokens in more or fewer steps."""
    guesser = dataclasses.replace(GUESSERS[name], accept_rate=accept_rate)
    with Engine(EngineConfig(speculation=guesser)) as engine:
        request = engine.submit([9] * 60, 21)
        steps = 0
        while engine.step():
            steps += 1
        assert request.answer == reference_answer([9] * 60, 21, engine.config.shape.vocab_size)
        assert (engine.oracle.counts["accepted"] > 0) == (accept_rate > 0)
        assert (steps == 21) == (accept_rate == 0)


@BOTH
def test_a_run_repeats(name):
    """The same configuration, the same counters."""
    config = guessing(name)
    assert counts(run_with_pool(config)) == counts(run_with_pool(config))


@pytest.mark.parametrize("wrong", [{"async_scheduling": True}, {"dp": 2}])
@BOTH
def test_what_is_not_simulated_together_is_refused(name, wrong):
    """At construction, with the reason."""
    with pytest.raises(ValueError, match="la and memory_decoding go neither"):
        EngineConfig(speculation=GUESSERS[name], **wrong)
