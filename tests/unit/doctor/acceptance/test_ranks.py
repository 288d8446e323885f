"""Each rank's blocks through the pool, and lookups: with a pool, without a master, with a holder that stands still."""

import pytest

from chaos.processes import frozen
from mindie_kvpool_plugin.doctor.acceptance import copies, ranks
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests.conftest import wait_until
from tests.unit.doctor.acceptance.conftest import told, troubles
from tests.unit.doctor.conftest import state_of
from tests.unit.pools.mooncake.conftest import run_child  # noqa: F401 - a fixture

BAD_CHILDREN = "tests.unit.doctor.acceptance.bad_children"
POOL = ("libraries", "pool_file", "address", "client", "admin", "capacity", "transfer", "ranks", "lookup")


def test_every_rank_gets_every_byte_back_and_nothing_is_left(beside, settled):
    """With figures, and the figures for the plot."""
    before = state_of(settled)
    case = beside(metrics_port=settled.metrics_port)
    lines = told(case, *POOL)
    assert troubles(lines) == []
    assert [line.params["device"] for line in lines["ranks.verified"]] == [0, 1]
    assert {"put", "get"} <= case.speeds[0].keys()
    assert sorted(case.lookups) == [1, 256]
    assert case.keys == set()
    assert state_of(settled) == before


def test_ranks_lend_memory_to_a_pool_that_has_none(alone):
    """And take it away again."""
    with MooncakeMaster() as empty:
        lines = told(alone(empty, devices=(3,), metrics_port=empty.metrics_port), *POOL)
        assert troubles(lines) == []
        assert lines["ranks.verified"][0].params["device"] == 3
        wait_until(lambda: state_of(empty) == (0, []), 60, "nothing in the pool")


def test_without_a_master_nothing_of_the_pool_is_tried(alone, only_masters):
    """The address is the trouble, once; the rest depends on it."""
    only_masters()
    with MooncakeMaster() as gone:
        pass
    lines = told(alone(gone), *POOL)
    assert troubles(lines) == ["address.refused"]
    assert lines["ranks.not_tried"][0].verdict == lines["lookup.not_tried"][0].verdict == "skipped"


def test_a_holder_that_cannot_be_reached_is_named_and_ranks_do_not_wait_for_it(alone, run_child):  # noqa: F811
    """A broken link looks like this: the master knows the memory, and nobody answers where it lies."""
    with MooncakeMaster("--client_ttl=60") as running:
        child = run_child("peer", running.address, str(32 << 20), "0", "7")
        child.hear()
        with frozen(child.process.pid):
            lines = told(alone(running, metrics_port=running.metrics_port), *POOL)
    assert troubles(lines) == ["capacity.dead"]
    assert "ranks.not_tried" in lines


@pytest.mark.parametrize(
    ("how", "name"),
    [("damaged", "ranks.damaged"), ("lost", "ranks.lost"), ("refused", "ranks.refused"), ("died", "ranks.died"),
     ("hangs", "ranks.hangs")],
)  # fmt: skip
def test_what_becomes_of_a_ranks_child_is_told(alone, monkeypatch, tmp_path, hurried, how, name):
    """By device, with what to do; one that hangs has its time."""
    monkeypatch.setattr(ranks, "CHILD", BAD_CHILDREN)
    limits = hurried(lambda process: (tmp_path / str(process.pid)).exists())
    monkeypatch.setattr(ranks, "remove", lambda case, keys: iter(()))
    case = alone(env={"HOW": how, "HANGS": str(tmp_path)})
    told(case, "pool_file")
    lines = list(ranks.ranks(case))
    assert ranks.RANK_TIMEOUT_S in limits
    found = {line.id: line for line in lines}
    assert found[name].params["device"] == 1
    assert found[name].verdict == "trouble"
    assert found[name].fix("en")
    assert found[name].fix("zh")


@pytest.mark.parametrize(
    ("how", "name"),
    [("damaged", "copies.damaged"), ("refused", "copies.refused"), ("died", "copies.died"), ("hangs", "copies.hangs")],
)
def test_what_becomes_of_a_copying_child_is_told(alone, monkeypatch, tmp_path, hurried, how, name):
    """By device and layout; one that hangs has its time."""
    monkeypatch.setattr(copies, "CHILD", BAD_CHILDREN)
    monkeypatch.setattr(copies, "version_of", lambda package: "2.6.0")
    limits = hurried(lambda process: (tmp_path / str(process.pid)).exists())
    lines = told(alone(env={"HOW": how, "HANGS": str(tmp_path)}), "copies")
    assert copies.COPIES_TIMEOUT_S in limits
    assert troubles(lines) == [name]
    assert [line.params["device"] for line in lines[name]] == [0, 1]
    assert lines[name][0].fix("en")


def test_a_torch_that_cannot_be_loaded_is_told_once_with_what_is_missing(alone, monkeypatch):
    """The shell without CANN's environment: not a line for each device."""
    for module in (copies, ranks):
        monkeypatch.setattr(module, "CHILD", BAD_CHILDREN)
        monkeypatch.setattr(module, "version_of", lambda package: "2.6.0")
    monkeypatch.setattr(ranks, "remove", lambda case, keys: iter(()))
    case = alone(env={"HOW": "unloaded"})
    told(case, "pool_file")
    for lines in (list(copies.copies(case)), list(ranks.ranks(case))):
        assert [line.params for line in lines] == [{"error": "libhccl.so: cannot open shared object file"}]
        assert "set_env.sh" in lines[0].fix("en")


def test_without_torch_npu_copies_are_not_possible(alone, monkeypatch):
    """With the interpreter that has it."""
    monkeypatch.setattr(copies, "version_of", lambda package: "")
    lines = told(alone(), "copies")
    assert lines["copies.no_torch_npu"][0].verdict == "skipped"
    assert "mindie-kvpool status" in lines["copies.no_torch_npu"][0].fix("en")
