"""A reload waits for the batch before, and for no batch that never comes back."""

import threading
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.host.in_flight import InFlight

JOIN_S = 10.0


def test_wait_returns_at_once_when_nothing_is_launched():
    """Synchronous scheduling never launches ahead."""
    assert InFlight().wait(0.0)


def test_wait_ends_when_the_launched_batch_lands():
    """The step thread goes on only after the forward thread has sampled."""
    flights, batch, waited = InFlight(), object(), threading.Event()
    flights.launch(batch)
    thread = threading.Thread(target=lambda: flights.wait(JOIN_S) and waited.set())
    thread.start()
    assert not flights.wait(0.0)
    flights.meet(batch)
    assert not flights.wait(0.0)
    flights.land(None)
    thread.join(JOIN_S)
    assert waited.is_set()


def test_a_batch_the_host_gave_up_is_stood_for_by_the_next():
    """A recovery drops a batch: only until the next one lands does anybody wait for it."""
    flights, lost, following = InFlight(), object(), object()
    flights.launch(lost)
    assert not flights.wait(0.0)
    flights.launch(following)
    flights.meet(following)
    flights.land(None)
    assert flights.wait(0.0)


def test_landing_with_an_event_waits_for_the_device():
    """Tokens that stay on the device: the event is synchronised before the wait returns."""

    class Event:
        synchronized = False

        def synchronize(self):
            self.synchronized = True

    flights, batch, event = InFlight(), object(), Event()
    flights.launch(batch)
    flights.meet(batch)
    flights.land(event)
    assert flights.wait(0.0)
    assert event.synchronized


def test_a_dummy_batch_does_not_land_a_real_one():
    """Dummy batches are sampled too, but were never launched here."""
    flights, real = InFlight(), object()
    flights.launch(real)
    flights.meet(object())
    flights.land(None)
    assert not flights.wait(0.0)


@pytest.mark.parametrize(
    ("error_code", "is_paused"), [("ECC", False), (None, True)], ids=["the device failed", "the host pauses"]
)
def test_a_batch_that_will_not_land_is_not_waited_for(error_code, is_paused):
    """The host knows before it says so; what has landed has landed all the same."""
    flights, manager = InFlight(), SimpleNamespace(error_code_collected_in_async=None, is_inference_pause=False)
    flights.follow(manager)
    flights.launch(object())
    answers = []
    thread = threading.Thread(target=lambda: answers.append(flights.wait(JOIN_S)))
    thread.start()
    assert not flights.wait(0.0)
    assert not flights.is_broken()
    manager.error_code_collected_in_async, manager.is_inference_pause = error_code, is_paused
    thread.join(JOIN_S / 2)
    assert answers == [False]
    assert flights.is_broken()
    flights.reset()
    assert flights.wait(0.0)
