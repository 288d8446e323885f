"""The line of the log: what happened since the last one, and nothing when nothing did."""

import logging

import numpy as np
import pytest

from mindie_kvpool_plugin.observability import observer, tally, telling
from mindie_kvpool_plugin.observability.counters import OPEN, Counters
from mindie_kvpool_plugin.observability.identity import Identity, Settings
from mindie_kvpool_plugin.observability.part import Part
from mindie_kvpool_plugin.observability.report import Reporter
from tests.conftest import wait_until


def reporter(role="worker", interval_s=60.0):
    part = Part(Identity(role), "0", Counters(), Settings(report_interval_s=interval_s), lambda part: None)
    return part.counters, Reporter(part, now_s=100.0)


def test_a_minute_of_a_worker_in_one_line():
    """Hits, tokens, what they were worth, what was dropped and why; the next line begins anew."""
    counters, lines = reporter()
    counters.prompts, counters.freed_blocks = 20, 600
    counters.promised_tokens, counters.loaded_tokens = 45_056, 40_960
    for _ in range(12):
        counters.loaded_depth.add(26)
    counters.recomputed_not_delivered = 32
    counters.reload_seconds.add(0.213)
    counters.saved_seconds = 1.905
    counters.spilled_blocks, counters.dropped_queue_full, counters.withdrawn_blocks = 512, 2, 1
    assert lines.due_s == 160.0
    assert lines.line(160.0) == (
        "pool in the last 60 s, worker 0: 12 of 20 prompts hit, 40,960 of 45,056 promised tokens loaded (91 %), "
        "32 blocks recomputed (not_delivered 32); reloads took 0.213 s and saved 1.905 s of prefill; "
        "512 blocks spilled, 3 dropped (queue_full 2, withdrawn 1); pool fine"
    )
    assert lines.due_s == 220.0
    assert lines.line(220.0) is None
    counters.prompts += 1
    assert lines.line(250.0).startswith("pool in the last 30 s, worker 0: 0 of 1 prompts hit, 0 of 0 promised tokens")


def test_trouble_of_the_pool_ends_the_line():
    """What a look at the log should not have to look for."""
    counters, lines = reporter()
    counters.prompts, counters.breaker_openings, counters.refused_keys, counters.breaker_state = 1, 2, 70, OPEN
    counters.corrupt_blocks, counters.pool_failures["get", "service"] = 3, 4
    counters.pool_errors["get", "-704"] = 9
    assert lines.line(160.0).endswith(
        "; pool trouble: 2 times left alone, 70 keys refused meanwhile, 3 blocks damaged, "
        "4 calls failed (get service), it is left alone now"
    )


def test_a_service_without_its_pool_says_so():
    """With run_without."""
    counters, lines = reporter()
    counters.prompts, counters.pool_is_open = 1, 0
    assert lines.line(160.0).endswith("pool trouble: there is no pool yet")


def test_a_minute_of_a_scheduler_in_one_line():
    """Questions, answers, and how long they took."""
    counters, lines = reporter("scheduler")
    counters.answered_all, counters.answered_some, counters.answered_none = 1, 2, 7
    counters.asked_keys, counters.found_keys = 1000, 400
    counters.lookup_seconds.add(0.002)
    assert lines.line(160.0) == (
        "pool in the last 60 s, scheduler 0: 10 questions, 3 with hits; 400 of 1,000 keys in the pool; 0.20 ms each; "
        "pool fine"
    )
    assert lines.line(220.0) is None


def test_no_line_is_due_when_none_is_wanted():
    """report_interval_s 0."""
    _, lines = reporter(interval_s=0)
    assert lines.due_s == float("inf")


def test_lines_come_by_themselves(caplog, monkeypatch):
    """From the observer's thread, while there is traffic."""
    monkeypatch.setattr(telling.logger, "propagate", True)
    caplog.set_level(logging.INFO)
    counters = Counters()
    part = observer.observe(Identity("worker"), counters, Settings(report_interval_s=0.01))

    def told():
        counters.prompts += 1
        return caplog.text.count("pool in the last") > 2

    wait_until(told, 30.0, "three lines")
    part.forget()


@pytest.mark.parametrize("pace", [0.0, 0.001])
def test_the_first_pool_hit_has_a_line_of_its_own(monkeypatch, pace):
    """Once; what was loaded before the host's pace was known is priced as soon as it is."""
    told = []
    monkeypatch.setattr(tally.logger, "info", lambda message, *args: told.append(message % args))
    counters = Counters(prefill_token_seconds=pace)
    made = tally.Tally(counters, block_size=16)
    made.loaded(np.array([4, 2]), np.array([4, 2]), np.array([0, 0]), np.array([0, 0]))
    assert told == []
    made.loaded(np.array([4, 2]), np.array([4, 2]), np.array([4, 1]), np.array([3, 1]))
    made.loaded(np.array([1]), np.array([1]), np.array([1]), np.array([1]))
    assert told == ["first pool hit: 64 prompt tokens came from the pool and are not computed"]
    assert (counters.promised_tokens, counters.loaded_tokens) == (13 * 16, 5 * 16)
    assert (counters.recomputed_not_delivered, counters.recomputed_other_rank) == (7, 1)
    assert counters.saved_seconds == pytest.approx(pace * 80)
    counters.prefill_token_seconds = 0.001
    made.loaded(np.array([1]), np.array([1]), np.array([1]), np.array([1]))
    assert counters.saved_seconds == pytest.approx(0.096)
