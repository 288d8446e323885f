"""One rank of two stumbles before it can say what it has: nobody waits, all recompute alike."""

import itertools

import pytest

from mindie_kvpool_plugin.host import step_view
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import drive, opened_pool
from tests.conftest import wait_until
from tests.walks.conftest import assert_right_so_far, chat, run_config

WAIT_S = 300.0  # ends within seconds


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("where", ["before loading", "while loading"])
def test_a_rank_that_raises_before_agreeing_does_not_hold_the_other(asynchronous, where):
    """Every other time rank 1 gets there it raises; no agreement runs into its bound, so none breaks."""
    stumbled = []
    config = run_config(EngineConfig(tp=2, hbm_blocks=48, async_scheduling=asynchronous), chat(turns=6))
    with opened_pool(config) as engine_config, Engine(engine_config) as engine:
        walks = engine.plugin("kv_pool", 1)._worker.walks
        owner, name = (walks.spill, "before_write") if where == "before loading" else (walks.prefill._reload, "_get")
        go_on, count = getattr(owner, name), itertools.count(1)

        def raise_sometimes(*args):
            number = next(count)
            if number % 2:
                stumbled.append(number)
                raise RuntimeError("planted")
            return go_on(*args)

        setattr(owner, name, raise_sometimes)
        drive(engine, chat(turns=6)(), concurrency=4)
        assert_right_so_far(engine)
        assert not any(engine.plugin("kv_pool", rank)._worker.agreement.broken for rank in (0, 1))
        assert engine.plugin("kv_pool", 0).counters.recomputed_blocks > 0
        assert engine.plugin("kv_pool", 0).counters.hook_errors == 0
        assert engine.plugin("kv_pool", 1).counters.hook_errors == len(stumbled)
    assert len(stumbled) > 5


def test_ranks_of_which_one_was_late_use_hits_again():
    """Rank 1 comes when rank 0 has given it up: no hit is used by anybody until both have met again."""
    config = run_config(EngineConfig(tp=2, hbm_blocks=48), chat(turns=6))
    with opened_pool(config) as engine_config, Engine(engine_config) as engine:
        agreements = [engine.plugin("kv_pool", rank)._worker.agreement for rank in (0, 1)]
        counters = engine.plugin("kv_pool", 0).counters
        minimum, usual_s = agreements[1].minimum, agreements[0]._timeout_s
        were_broken = []

        def wait_at_most(seconds):
            for agreement in agreements:
                agreement._timeout_s = seconds

        def come_late(lengths):
            agreements[1].minimum = minimum
            wait_until(lambda: agreements[0].broken, WAIT_S, "rank 0 has given rank 1 up")
            agreed = minimum(lengths)
            were_broken.extend(agreement.broken for agreement in agreements)
            wait_at_most(usual_s)
            return agreed

        agreements[1].minimum = come_late
        wait_at_most(0.3)

        def ask():
            drive(engine, chat(turns=6)(), concurrency=4)
            assert_right_so_far(engine)

        ask()
        assert were_broken == [True, True]
        assert counters.recomputed_ranks_disagree > 0
        used = counters.loaded_tokens
        wait_until(lambda: ask() or not agreements[0].broken, WAIT_S, "the ranks agree again")
        ask()
        assert [agreement.broken for agreement in agreements] == [False, False]
        assert counters.loaded_tokens > used
        assert counters.hook_errors == 0


def test_a_rank_that_stumbles_again_while_it_counts_does_not_hold_the_other(monkeypatch):
    """The others hear of it before anything is counted: none of them runs into its bound, and the batch goes on."""
    config = run_config(EngineConfig(tp=2, hbm_blocks=48), chat(turns=6))
    counted = []

    def cannot_count(*_):
        counted.append("planted")
        raise RuntimeError("planted")

    monkeypatch.setattr(step_view, "promised_blocks", cannot_count)
    with opened_pool(config) as engine_config, Engine(engine_config) as engine:
        engine.plugin("kv_pool", 1)._worker.walks.prefill._reload._get = None
        drive(engine, chat(turns=6)(), concurrency=4)
        assert_right_so_far(engine)
        assert not any(engine.plugin("kv_pool", rank)._worker.agreement.broken for rank in (0, 1))
        assert engine.plugin("kv_pool", 1).counters.hook_errors == 2 * len(counted)
    assert len(counted) > 5
