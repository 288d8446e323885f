"""A worker's last words: told once, in time, and never in the way of the host's end."""

import threading
import time
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.host import leaving

JOIN_S = 30.0


class Worker(SimpleNamespace):
    """One with a pool whose ``leave`` is a test's own."""

    __hash__ = object.__hash__

    def __init__(self, leave):
        super().__init__(walks=SimpleNamespace(pool=SimpleNamespace(leave=leave)))
        leaving.opened(self)

    def close(self):
        leaving.closed(self)


@pytest.fixture
def open_worker(monkeypatch):
    """Opens workers; as a rule the host has time enough to wait for what they do."""
    monkeypatch.setattr(leaving, "_departures", [])
    monkeypatch.setattr(leaving, "WAIT_S", JOIN_S)
    opened = []

    def open_one(leave):
        opened.append(Worker(leave))
        return opened[-1]

    yield open_one
    for worker in opened:
        worker.close()


def test_every_open_pool_is_told_once_however_often_the_host_stops(open_worker):
    """A SIGTERM, another one, and the exit that follows."""
    told = []
    for name in "ab":
        open_worker(lambda name=name: told.append(name))
    for _ in range(3):
        leaving.leave()
    assert sorted(told) == ["a", "b"]


def test_a_pool_that_was_closed_is_not_told(open_worker):
    """It has said good-bye."""
    told = []
    open_worker(lambda: told.append("closed")).close()
    leaving.leave()
    assert told == []


def test_the_host_waits_for_a_pool_that_hangs_no_longer_than_it_was_promised(open_worker, monkeypatch):
    """However many threads end the process: the time runs once, from the first of them on."""
    monkeypatch.setattr(leaving, "WAIT_S", 0.05)
    let_go, entered = threading.Event(), threading.Event()

    def hang():
        entered.set()
        let_go.wait(10 * JOIN_S)

    open_worker(hang)
    try:
        leaving.leave()
        assert entered.wait(JOIN_S)
        assert not let_go.is_set()  # it is still in there, and this thread went on
        # the second one finds the time over: had it any of its own, it would wait until let go
        monkeypatch.setattr(leaving, "WAIT_S", JOIN_S)
        second = threading.Thread(target=leaving.leave)
        second.start()
        second.join(JOIN_S / 2)
        assert not second.is_alive()
    finally:
        let_go.set()


def test_the_time_promised_is_within_the_hosts_own():
    """The host waits for a worker 10 times 50 ms after its SIGTERM (executor.cpp), and the exit takes some, too."""
    assert leaving.WAIT_S < 0.5


def test_who_comes_while_another_thread_tells_waits_for_it(open_worker):
    """Or the exit of the one would cut the other's question to the master off."""
    entered, let_go, heard = threading.Event(), threading.Event(), []

    def slow():
        entered.set()
        let_go.wait(JOIN_S)
        heard.append(time.monotonic())

    open_worker(slow)
    try:
        first = threading.Thread(target=leaving.leave)
        first.start()
        assert entered.wait(JOIN_S)
        threading.Thread(target=let_go.set).start()
        leaving.leave()
        assert len(heard) == 1
        first.join(JOIN_S)
    finally:
        let_go.set()


def test_a_pool_that_raises_is_told_of_in_the_log_and_stops_nobody(open_worker, caplog, monkeypatch):
    """Whatever the library does, the host ends."""
    monkeypatch.setattr(leaving.logger, "propagate", True)
    told = []

    def fail():
        raise OSError("no more sockets")

    open_worker(fail)
    open_worker(lambda: told.append("other"))
    leaving.leave()
    assert told == ["other"]
    assert "leaving the pool failed" in caplog.text


def test_a_process_out_of_threads_ends_all_the_same(open_worker, caplog, monkeypatch):
    """Nobody is told, and that is said."""
    monkeypatch.setattr(leaving.logger, "propagate", True)

    def no_more(*_, **__):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(leaving.threading, "Thread", no_more)
    open_worker(lambda: None)
    leaving.leave()
    assert "nobody could be told" in caplog.text
