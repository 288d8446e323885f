"""What a prompt token takes, from steps that overlap, stall or are tiny."""

import pytest

from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.prefill_clock import MAX_LAUNCHED, STEPS, PrefillClock, weighted_median


class Steps:
    def __init__(self):
        self.now = 0.0
        self.counters = Counters()
        self.clock = PrefillClock(self.counters, lambda: self.now)

    def run(self, seconds, tokens):
        batch = object()
        self.clock.launch(batch, tokens)
        self.clock.meet(batch)
        self.now += seconds
        self.clock.land()

    @property
    def pace(self):
        return self.counters.prefill_token_seconds


def test_pace_is_seconds_per_token():
    """Not known before the first step."""
    steps = Steps()
    assert steps.pace == 0.0
    steps.run(2.0, 1000)
    assert steps.pace == pytest.approx(0.002)


def test_a_stall_or_a_row_of_tiny_steps_does_not_move_it():
    """The median over tokens."""
    steps = Steps()
    for _ in range(8):
        steps.run(1.0, 1000)
    steps.run(60.0, 1000)
    for _ in range(8):
        steps.run(1.0, 70)
    steps.run(1.0, 1)  # too small to count at all
    assert steps.pace == pytest.approx(0.001)


def test_old_steps_are_forgotten():
    """The traffic changes."""
    steps = Steps()
    for seconds in (1.0, 3.0):
        for _ in range(STEPS):
            steps.run(seconds, 1000)
    assert steps.pace == pytest.approx(0.003)


def test_a_batch_begins_when_the_one_before_it_landed():
    """Under asynchronous scheduling it is launched while that one runs."""
    steps = Steps()
    first, second = object(), object()
    steps.clock.launch(first, 1000)
    steps.now = 0.5
    steps.clock.launch(second, 1000)
    steps.clock.meet(first)
    steps.now = 1.0
    steps.clock.land()
    steps.clock.meet(second)
    steps.now = 2.0
    steps.clock.land()
    assert steps.pace == pytest.approx(0.001)


def test_decodes_and_lost_batches_are_not_measured():
    """Nor do batches that never land pile up."""
    steps = Steps()
    steps.clock.meet(object())
    steps.clock.land()
    for _ in range(3 * MAX_LAUNCHED):
        steps.clock.launch(object(), 1000)
    assert len(steps.clock._launched) <= MAX_LAUNCHED
    batch = object()
    steps.clock.launch(batch, 1000)
    steps.clock.meet(batch)
    steps.clock.lose_track()
    steps.clock.land()
    assert steps.pace == 0.0


def test_the_median_counts_tokens_not_steps():
    """Half of all tokens were computed faster."""
    assert weighted_median([(1.0, 100), (1.0, 100), (9.0, 900)]) == pytest.approx(0.01)
    assert weighted_median([(1.0, 1000), (9.0, 100)]) == pytest.approx(0.001)
    assert weighted_median([]) == 0.0


def test_a_token_takes_what_a_longer_step_takes_longer():
    """20 ms for any step and 50 us for each token, some steps stalled; short ones are most of them."""
    steps = Steps()
    assert steps.clock.token_s() == 0.0
    sizes = [4096, 8192, 2000, 4096, 1000, 6000] + [100] * 90
    for number, tokens in enumerate(sizes):
        steps.run(0.02 + tokens * 50e-6 + (1.0 if number % 17 == 3 else 0.0), tokens)
    assert steps.clock.token_s() == pytest.approx(50e-6, rel=0.1)
    assert steps.pace > 4 * steps.clock.token_s()


def test_steps_of_one_size_are_all_tokens():
    """Nothing tells what they would take with fewer."""
    steps = Steps()
    for _ in range(8):
        steps.run(0.07, 1000)
    assert steps.clock.token_s() == pytest.approx(70e-6)


def test_decode_steps_are_measured_beside_prefills():
    """A stall counts for nothing, and nothing of it is a token's."""
    steps = Steps()
    assert steps.clock.decode_s() == 0.0
    for seconds in (0.03, 0.03, 9.0, 0.03):
        steps.run(seconds, 0)
    assert steps.clock.decode_s() == pytest.approx(0.03)
    assert steps.clock.token_s() == steps.pace == 0.0
