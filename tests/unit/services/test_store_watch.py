"""What a store notices about its master, without one: health and segments are played."""

import threading

import pytest

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.admin import Segment
from mindie_kvpool_plugin.services import store
from mindie_kvpool_plugin.services.store import LOST, StoreWish, Watch

NAME = "10.0.0.2:12345"
MOUNTED = [Segment(NAME, "10.0.0.2:15000", 100, 40, "OK")]


class Played:
    """Memory, master and signals in one: each beat takes the next health; when none is left somebody asks to stop."""

    name = NAME
    number = 0

    def __init__(self, healths, segments):
        self._healths, self._segments = iter(healths), segments
        self._next = next(self._healths, None)

    def wait(self, timeout_s):
        return threading.Event().wait(timeout_s) or self._next is None

    def health(self):
        now, self._next = self._next, next(self._healths, None)
        return now

    def segments(self):
        if self._segments is None:
            raise PoolError("closed to this machine")
        return self._segments


@pytest.fixture
def watch(monkeypatch, caplog):
    """Runs a watch over what is played; its exit status, its counts and what it said."""
    monkeypatch.setattr(store, "BEAT_S", 0.001)
    monkeypatch.setattr(store, "ASK_S", 0.001)
    monkeypatch.setattr(store, "LOST_S", 0.05)
    monkeypatch.setattr(logger, "propagate", True)
    options = MooncakeOptions(local_hostname="10.0.0.2", master_server_address="10.0.0.1:50051")

    def run(healths, segments=None):
        played, counters = Played(healths, segments), Counters()
        wish = StoreWish(options, "kv_pool.json", 100, None, warms=False, drain_s=0, device=0, admin=played)
        return Watch(wish, played, None, counters).until(played), counters, caplog.text

    return run


def test_a_lost_master_is_told_once_each_way(watch):
    """However long it takes."""
    status, counters, said = watch(["good", *["no_master"] * 20, *["good"] * 5], MOUNTED)
    assert status == 0
    assert said.count("does not answer") == said.count("answers again") == 1
    assert (counters.store_master_losses, counters.store_master_answers, counters.store_used_bytes) == (1, 1, 40)


def test_memory_that_the_master_does_not_have_again_ends_the_store(watch):
    """Whoever supervises starts it anew; as long as nobody can ask the master it is believed."""
    status, _, said = watch(["good"] * 10_000, [])
    assert status == LOST
    assert said.count("the master does not have this memory") == 1
    assert watch(["good"] * 200, None)[0] == 0


def test_a_closed_client_ends_the_store_at_once(watch):
    """It would serve nobody."""
    assert watch(["good", "closed", "good"], MOUNTED)[0] == LOST


def test_memory_that_comes_back_in_time_is_not_lost(watch, monkeypatch):
    """The master's own client takes a second or two."""
    monkeypatch.setattr(store, "LOST_S", 60)
    segments = []
    answers = iter([[], [], *[MOUNTED] * 1000])
    monkeypatch.setattr(Played, "segments", lambda self: next(answers))
    status, counters, said = watch(["good"] * 20, segments)
    assert (status, counters.store_used_bytes) == (0, 40)
    assert said.count("the master does not have this memory") == 1
