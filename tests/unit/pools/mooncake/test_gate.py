"""How many slices may be in flight."""

import threading
import time
from types import SimpleNamespace

from mindie_kvpool_plugin.pools.mooncake import gate as mooncake_gate
from mindie_kvpool_plugin.pools.mooncake.gate import SliceGate
from tests.conftest import wait_until


def test_gate_lets_through_what_fits():
    """Several calls may hold slices up to the limit together."""
    gate = SliceGate(10)
    with gate.passing(6, 1) as first, gate.passing(4, 1) as second:
        assert first
        assert second
        assert gate.in_flight == 10
    assert gate.in_flight == 0
    assert gate.peak == 10


def test_gate_refuses_in_time_when_there_is_no_room():
    """A call that finds no room waits its time and is told so; nothing stays counted."""
    gate = SliceGate(10)
    with gate.passing(6, 1):
        started = time.monotonic()
        with gate.passing(5, 0.05) as is_granted:
            assert not is_granted
        assert 0.05 <= time.monotonic() - started < 2
        with gate.passing(4, 1) as is_granted:
            assert is_granted
    assert gate.in_flight == 0


def test_gate_lets_a_call_above_the_limit_go_alone():
    """One block with more segments than the limit must still be moved."""
    gate = SliceGate(10)
    with gate.passing(50, 1) as is_granted:
        assert is_granted
        with gate.passing(1, 0.01) as second:
            assert not second
    with gate.passing(1, 1), gate.passing(50, 0.01) as is_granted:
        assert not is_granted


def test_gate_serves_in_order_so_that_a_large_call_is_not_starved():
    """Small calls that come later wait behind a large one."""
    gate, order = SliceGate(10), []

    def call(name, slices):
        with gate.passing(slices, 60):
            order.append(name)

    with gate.passing(5, 1):
        large = threading.Thread(target=call, args=("large", 10))
        large.start()
        wait_until(lambda: len(gate._turns) == 1, 60, "the large call waits")
        small = threading.Thread(target=call, args=("small", 5))
        small.start()
        wait_until(lambda: len(gate._turns) == 2, 60, "the small call waits behind it")
    large.join()
    small.join()
    assert order == ["large", "small"]


def test_gate_lets_the_next_go_when_the_first_in_line_gives_up(monkeypatch):
    """A waiter that ran out of time does not block those behind it."""
    gate, passed, gave_up, later = SliceGate(10), threading.Event(), threading.Event(), [0.0]
    monkeypatch.setattr(mooncake_gate, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later[0]))

    def patient():
        with gate.passing(5, 10_000) as is_granted:
            if is_granted:
                passed.set()

    def hasty():
        with gate.passing(10, 1000) as is_granted:
            if not is_granted:
                gave_up.set()

    with gate.passing(5, 1):
        first = threading.Thread(target=hasty)
        first.start()
        wait_until(lambda: len(gate._turns) == 1, 60, "the hasty call waits")
        second = threading.Thread(target=patient)
        second.start()
        wait_until(lambda: len(gate._turns) == 2, 60, "the patient call waits behind it")
        later[0] = 1000.0
        with gate._changed:
            gate._changed.notify_all()  # who waits looks at the clock
        assert passed.wait(60)
        first.join()
    second.join()
    assert gave_up.is_set()
