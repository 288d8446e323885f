"""Work on two threads: both end before the call does, and a busy helper is not waited for."""

import threading

import pytest

from mindie_kvpool_plugin.pools.mooncake.lanes import Lanes


@pytest.fixture
def lanes():
    opened = Lanes("test-lane")
    yield opened
    opened.close()


def _name():
    return threading.current_thread().name


@pytest.mark.parametrize(("both", "num_threads"), [(False, 1), (True, 2)])
def test_work_is_done_in_one_lane_or_two(lanes, both, num_threads):
    """Each lane's result comes back."""
    meet = threading.Barrier(num_threads)

    def work():
        meet.wait(10)
        return _name()

    found = lanes.run(work, both=both)
    assert len(found) == len(set(found)) == num_threads


def test_one_lane_does_it_when_no_thread_can_be_started(lanes, monkeypatch):
    """At the process's limit of threads the call takes longer, and that is all."""
    monkeypatch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("can't start")))
    assert lanes.run(_name, both=True) == [_name()]
    monkeypatch.undo()
    meet = threading.Barrier(2)
    found = lanes.run(lambda: (meet.wait(10), _name())[1], both=True)
    assert "test-lane" in found, "later it can"


def test_busy_helper_is_not_waited_for(lanes):
    """Two calls at once: the one that finds the helper at work goes on alone."""
    entered, leave = threading.Event(), threading.Event()
    caller_is_done = threading.Event()

    def stuck():
        if _name() == "test-lane":
            entered.set()
            leave.wait(30)
        else:
            assert entered.wait(10)

    first = threading.Thread(target=lambda: (lanes.run(stuck, both=True), caller_is_done.set()))
    first.start()
    assert entered.wait(10)
    assert lanes.run(_name, both=True) == [_name()]
    assert not caller_is_done.is_set(), "the first call waits for what its helper is doing"
    leave.set()
    first.join(10)
    assert caller_is_done.is_set()


@pytest.mark.parametrize("where", ["test-lane", "MainThread"])
def test_failure_reaches_the_caller_when_both_lanes_have_ended(lanes, where):
    """Whoever owns the buffers gets them back with the exception, and the helper goes on serving."""
    meet = threading.Barrier(2)
    ended = []

    def work():
        meet.wait(10)
        if _name() == where:
            raise RuntimeError("in one lane")
        threading.Event().wait(0.05)  # long enough for the other lane to be over first
        ended.append(_name())

    with pytest.raises(RuntimeError, match="in one lane"):
        lanes.run(work, both=True)
    assert len(ended) == 1
    assert "test-lane" in lanes.run(lambda: (meet.wait(10), _name())[1], both=True)
