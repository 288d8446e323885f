"""A step waits for a spill, and all steps together for a small share of the time."""

import pytest

from mindie_kvpool_plugin.core.patience import SHARE, Patience

from .test_load_gate import Clock


def test_a_single_wait_may_take_the_longest():
    """At first, and again after a while without any."""
    clock = Clock()
    patience = Patience(1.0, clock)
    assert patience.left_s() == 1.0
    patience.spend(1.0)
    assert patience.left_s() == 0.0
    clock.now += 1 / SHARE
    assert patience.left_s() == pytest.approx(1.0)
    clock.now += 1000.0
    assert patience.left_s() == 1.0


def test_all_waits_together_take_a_share_of_the_time():
    """Each step waits for as long as it may."""
    clock = Clock()
    patience, waited = Patience(1.0, clock), 0.0
    for _ in range(10_000):
        left_s = patience.left_s()
        patience.spend(left_s)
        waited += left_s
        clock.now += 0.03 + left_s
    assert waited <= 1.0 + SHARE * clock.now


def test_a_wait_that_could_not_be_ended_in_time_is_not_owed():
    """What was being read is waited for, however long; the next wait is as short as any."""
    clock = Clock()
    patience = Patience(1.0, clock)
    patience.spend(60.0)
    clock.now += 0.5 / SHARE
    assert patience.left_s() == pytest.approx(0.5)
