"""Two hosts on one pool: what one stored is promised to the other, and right."""

import dataclasses

import pytest

from chaos.cells import run_config
from mindie_kvpool_plugin.simulator.client import Client
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.neighbour import Neighbour, run_with_neighbour
from mindie_kvpool_plugin.simulator.run import RunConfig, run_with_pool
from tests.walks.conftest import assert_right, chat

ROOMY = RunConfig(EngineConfig(hbm_blocks=400), chat(6, 2))
"""Nothing has to make room: a host alone finds nothing in the pool."""


@pytest.mark.parametrize("ahead", [None, 60], ids=["filled", "shared"])
def test_a_neighbours_blocks_are_promised_and_arrive(ahead):
    """Without it the pool has nothing that the device lacks."""
    assert run_with_pool(ROOMY).pool_hit_tokens == 0
    result, other = run_with_neighbour(ROOMY, Neighbour(chat(6, 2), ahead))
    for each in (result, other):
        assert_right(each)
        assert each.hook_errors == 0
        assert each.requests == 12
    assert result.reloaded_blocks > 0
    assert result.recomputed_blocks == 0


def test_hosts_that_take_turns_find_each_others_blocks():
    """Each computes half of the prompts first."""
    short = RunConfig(EngineConfig(hbm_blocks=48), chat(8, 3), gap=2)
    for each in run_with_neighbour(short, Neighbour(lambda: reversed_chat(8, 3), ahead=0)):
        assert_right(each)
        assert each.reloaded_blocks > 0


def test_a_pool_breaks_when_its_first_host_is_gone():
    """Who filled it stored everything; what the run is promised does not arrive."""
    broken = dataclasses.replace(ROOMY, faults=parse_spec("get_fail=1,put_fail=1"))
    result, before = run_with_neighbour(broken, Neighbour(chat(6, 2)))
    assert before.failed_put_blocks == 0 < before.spilled_blocks
    assert result.reloaded_blocks == 0 < result.recomputed_blocks
    assert result.faults["get_fail"] > 0
    assert_right(result)


def test_what_went_wrong_with_a_neighbour_counts(monkeypatch):
    """It may be this host's work."""
    results = run_with_neighbour(ROOMY, Neighbour(chat(1, 1)))
    wrong = dataclasses.replace(results[1], corruptions=2, wrong_answers=1)
    monkeypatch.setattr("chaos.cells.run_with_neighbour", lambda config, neighbour: (results[0], wrong))
    outcome = run_config("cell", ROOMY, Neighbour(chat(1, 1)))
    assert outcome.wrong == (2, 1, 0, 0)
    assert not outcome.is_clean


@pytest.mark.parametrize(("gap", "sent"), [(0, [4, 4, 4]), (1, [1, 2, 3]), (2, [1, 1, 2])])
def test_requests_arrive_with_a_gap(gap, sent):
    """So many turns from one to the next, while there is room for one."""
    with Engine(EngineConfig()) as engine, Client(engine, chat(6, 1)(), 4, gap=gap) as client:
        assert [client.turn() and len(client.asked) for _ in sent] == sent
        while client.turn():
            pass
        assert len(client.asked) == len(engine.done) == 6


def reversed_chat(speakers, turns):
    """The last speaker begins."""
    traffic = chat(speakers, turns)()
    traffic.ready.reverse()
    return traffic
