"""A pool that answers slowly holds the scheduler up for a small share of the time."""

import pytest

from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup
from mindie_kvpool_plugin.host.slow_lookups import SHARE, SLOW_S, SlowLookups
from tests.unit.core.test_load_gate import Clock

from .test_scheduler_lookup import AskedPool, host_keys

BUDGET_S = 0.5


class SlowPool(AskedPool):
    """Each question takes a while."""

    def __init__(self, present, clock, seconds):
        super().__init__(present)
        self.clock, self.seconds = clock, seconds

    def exists(self, keys):
        self.clock.now += self.seconds
        return super().exists(keys)


def slow_lookup(seconds):
    clock = Clock()
    pool = SlowPool([f"ns/my_model/{value}" for value in (11, 12)], clock, seconds)
    return pool, SchedulerLookup(pool, "ns", 32, slow=SlowLookups(BUDGET_S, clock))


def ask(pool, scheduler, times, between_s=0.05):
    """One prompt after the other; the answers, and how long they took together."""
    answers, began_s = [], pool.clock.now
    for _ in range(times):
        answers.append(scheduler.batch_exist(host_keys([11, 12], ranks=1)))
        pool.clock.now += between_s
    return answers, pool.clock.now - began_s - times * between_s


@pytest.mark.parametrize("seconds", [0.03, 0.1, 0.3, 0.49])
def test_slow_answers_take_a_share_of_the_time(seconds):
    """Beside a second of it at first; nobody would see them late."""
    pool, scheduler = slow_lookup(seconds)
    answers, held_s = ask(pool, scheduler, 2000)
    assert held_s <= 2 * BUDGET_S + SHARE * pool.clock.now
    assert [False, False] in answers
    assert len(pool.calls) >= SHARE * pool.clock.now / seconds / 2, "it is asked as often as it may be"
    assert scheduler.counters.refused_keys == 2 * answers.count([False, False])


def test_a_pool_that_is_fast_again_is_asked_every_time():
    """One answer tells."""
    pool, scheduler = slow_lookup(0.3)
    ask(pool, scheduler, 10)
    pool.seconds = 0.0
    ask(pool, scheduler, int(0.3 / SHARE / 0.05) + 1)
    pool.calls.clear()
    answers, _ = ask(pool, scheduler, 20)
    assert answers == [[True, True]] * 20
    assert len(pool.calls) == 20


@pytest.mark.parametrize("seconds", [0.0, SLOW_S / 2, 2 * BUDGET_S])
def test_fast_answers_and_those_that_come_too_late_cost_no_question(seconds):
    """The first are what is wanted, the others are the breaker's."""
    pool, scheduler = slow_lookup(seconds)
    ask(pool, scheduler, 50)
    assert len(pool.calls) == 50


def test_a_slow_answer_now_and_then_costs_no_question():
    """As where the machine is busy."""
    pool, scheduler = slow_lookup(0.0)
    for _ in range(50):
        pool.seconds = 0.1
        ask(pool, scheduler, 1)
        pool.seconds = 0.0
        answers, _ = ask(pool, scheduler, 50)
        assert answers == [[True, True]] * 50
