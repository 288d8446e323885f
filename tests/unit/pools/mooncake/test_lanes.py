"""Parts of a call move on two threads: each once, stopped together, and never waiting for a busy helper."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from mindie_kvpool_plugin.pools.mooncake.lanes import Lanes, Part


def _parts(count: int, *, goes_alone: bool = False) -> list[Part]:
    return [Part(np.array([number]), goes_alone) for number in range(count)]


@pytest.fixture
def lanes():
    opened = Lanes("test-lane")
    yield opened
    opened.close()


@pytest.mark.parametrize(("both", "num_threads"), [(False, 1), (True, 2)])
def test_every_part_moves_once(lanes, both, num_threads) -> None:
    """One lane or two, which meet at the first part each."""
    meet = threading.Barrier(num_threads)
    moved: list[int] = []
    threads: set[int] = set()

    def move(part: Part) -> bool:
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            meet.wait(10)
        moved.append(int(part.rows[0]))
        return True

    assert lanes.run(iter(_parts(50)), move, both=both)
    assert sorted(moved) == list(range(50))
    assert len(threads) == num_threads


def test_parts_that_go_alone_never_meet(lanes) -> None:
    """The other lane prepares its part, and waits."""
    inside = threading.Lock()
    threads: set[int] = set()

    def move(part: Part) -> bool:
        threads.add(threading.get_ident())
        assert inside.acquire(blocking=False), "two at once"
        threading.Event().wait(0.001)  # long enough for the other lane to come
        inside.release()
        return True

    lanes.run(iter(_parts(100, goes_alone=True)), move, both=True)
    assert len(threads) == 2


def test_nothing_is_begun_after_a_part_that_stops_the_call(lanes) -> None:
    """What the other lane has in hand is finished, the rest is left."""
    moved: list[int] = []
    meet = threading.Barrier(2)

    def move(part: Part) -> bool:
        meet.wait(10)
        moved.append(int(part.rows[0]))
        return False

    assert not lanes.run(iter(_parts(50)), move, both=True)
    assert sorted(moved) == [0, 1]


def test_one_lane_does_it_when_no_thread_can_be_started(lanes, monkeypatch) -> None:
    """At the process's limit of threads the call takes longer, and that is all."""
    monkeypatch.setattr(threading.Thread, "start", lambda _: (_ for _ in ()).throw(RuntimeError("can't start")))
    moved: list[int] = []
    assert lanes.run(iter(_parts(20)), lambda part: moved.append(int(part.rows[0])) is None, both=True)
    assert moved == list(range(20))
    monkeypatch.undo()
    threads: set[str] = set()
    meet = threading.Barrier(2)
    lanes.run(
        iter(_parts(2)), lambda _: (threads.add(threading.current_thread().name), meet.wait(10))[1] >= 0, both=True
    )
    assert "test-lane" in threads, "later it can"


def test_busy_helper_is_not_waited_for(lanes) -> None:
    """Two calls at once: the one that finds the helper at work moves all its parts itself."""
    entered, leave = threading.Event(), threading.Event()
    caller_is_done = threading.Event()

    def stuck(part: Part) -> bool:
        if threading.current_thread().name == "test-lane":
            entered.set()
            leave.wait(30)
        else:
            assert entered.wait(10)
        return True

    first = threading.Thread(target=lambda: (lanes.run(iter(_parts(2)), stuck, both=True), caller_is_done.set()))
    first.start()
    assert entered.wait(10)
    moved: list[int] = []
    lanes.run(iter(_parts(20)), lambda part: moved.append(int(part.rows[0])) is None, both=True)
    assert sorted(moved) == list(range(20))
    assert not caller_is_done.is_set(), "the first call waits for what its helper is moving"
    leave.set()
    first.join(10)
    assert caller_is_done.is_set()


def test_failure_on_the_second_lane_reaches_the_caller(lanes) -> None:
    """It ends the call and does not vanish with the thread, which goes on serving."""

    def move(part: Part) -> bool:
        if threading.current_thread().name == "test-lane":
            raise RuntimeError("on the second lane")
        return True

    def endless():
        while True:
            yield from _parts(1)

    with pytest.raises(RuntimeError, match="on the second lane"):
        lanes.run(endless(), move, both=True)
    threads = set()
    meet = threading.Barrier(2)

    def again(part: Part) -> bool:
        meet.wait(10)
        threads.add(threading.current_thread().name)
        return True

    lanes.run(iter(_parts(2)), again, both=True)
    assert "test-lane" in threads
