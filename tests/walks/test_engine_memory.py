"""What an engine held is free when it is closed: a test run has hundreds of them."""

import gc
import weakref

import pytest

from mindie_kvpool_plugin.pools.local_dram import LocalDram
from mindie_kvpool_plugin.simulator.device import Device
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, run_with_pool
from mindie_kvpool_plugin.simulator.two_nodes import TwoNodes
from tests.walks.conftest import assert_right, chat


@pytest.fixture
def born(monkeypatch):
    """Whatever of these was made during the test, while nothing but counting references frees it."""
    found = []

    def noting(begin):
        def note(self, *args, **kwargs):
            found.append(weakref.ref(self))
            begin(self, *args, **kwargs)

        return note

    for kind in (Engine, Device, LocalDram):
        monkeypatch.setattr(kind, "__init__", noting(kind.__init__))
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


@pytest.mark.parametrize(
    ("engine", "two"),
    [
        (EngineConfig(tp=2), None),
        (EngineConfig(tp=2, async_scheduling=True), None),
        (EngineConfig(tp=2, async_write=True), None),
        (EngineConfig(), TwoNodes()),
    ],
    ids=["sync", "async", "async write", "two nodes"],
)
def test_closed_engine_is_free_without_the_collector(engine, two, born):
    """Engine, devices and pool, which make nearly all of its bytes."""
    assert_right(run_with_pool(RunConfig(engine, chat(4, 2), two=two)))
    assert len(born) >= 3
    assert not [kept for kept in born if kept() is not None]
