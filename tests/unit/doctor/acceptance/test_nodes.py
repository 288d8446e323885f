"""Nodes that exchange blocks: two that do, one that is alone, one that does not read, one whose bytes are others."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from mindie_kvpool_plugin.doctor.acceptance import nodes as probe
from mindie_kvpool_plugin.doctor.child import Told
from tests.conftest import wait_until
from tests.unit.doctor.acceptance.conftest import told, troubles
from tests.unit.doctor.conftest import state_of

ENDING_S = 60.0
NODES = ("pool_file", "address", "client", "nodes")


@pytest.fixture
def node_of_two(alone, monkeypatch):
    """A case of each of two nodes of this machine."""
    monkeypatch.setattr(probe, "ENDING_S", ENDING_S)
    return lambda node: alone(node=node, nodes=2)


def test_two_nodes_get_each_others_blocks_and_leave_nothing(node_of_two, settled):
    """At the same time, through the pool alone."""
    before = state_of(settled)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda node: told(node_of_two(node), *NODES), (1, 2)))
    assert [troubles(lines) for lines in found] == [[], []]
    assert [lines["nodes.exchanged"][0].params["other"] for lines in found] == [2, 1]
    wait_until(lambda: state_of(settled) == before, 60, "nothing left")


def test_a_node_that_is_alone_says_who_is_missing(node_of_two, settled, monkeypatch):
    """Within its time, with the command for the other one."""
    before = state_of(settled)
    monkeypatch.setattr(probe, "NODES_TIMEOUT_S", 2 * ENDING_S + 3.0)
    lines = told(node_of_two(2), *NODES)
    assert troubles(lines) == ["nodes.nobody"]
    assert "--node 1/2" in lines["nodes.nobody"][0].fix("en")
    wait_until(lambda: state_of(settled) == before, 60, "nothing left")


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ([{"step": "got", "node": 2, "seconds": 0.1, "is_same": True}], "nodes.one_way"),
        ([{"step": "got", "node": 2, "seconds": 0.1, "is_same": False}], "nodes.damaged"),
    ],
)
def test_half_an_exchange_is_none(node_of_two, monkeypatch, steps, name):
    """A block without a receipt, or with other bytes."""
    put = [{"step": "put", "code": 0}, *steps, {"step": "removed", "left": 0}]
    monkeypatch.setattr(probe, "run_child", lambda *_: Told(put, ""))
    assert troubles(told(node_of_two(1), *NODES)) == [name]


def test_a_child_that_dies_has_its_block_removed(node_of_two, settled, monkeypatch):
    """By its parent."""
    swept = []
    monkeypatch.setattr(probe, "run_child", lambda *_: Told([{"step": "put", "code": 0}], "SIGKILL"))
    monkeypatch.setattr(probe, "remove", lambda case, keys: swept.extend(keys) or iter(()))
    told(node_of_two(1), *NODES)
    assert sorted(swept) == sorted(f"default/acceptance/node1of2{end}" for end in ("", "/done", "/got2"))


def test_several_nodes_are_told_how(alone, monkeypatch):
    """Not possible here without a number."""
    monkeypatch.setattr(probe, "node_count", lambda view: 3)
    lines = told(alone(), *NODES)
    assert lines["nodes.not_asked"][0].verdict == "skipped"
    assert "--node 1/3" in lines["nodes.not_asked"][0].fix("en")
