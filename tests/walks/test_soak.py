"""A bounded slice of the soak; ``make soak`` runs 200,000 requests."""

import pytest

from chaos.soak import Held, SoakResult, main, soak

FAULTS = "get_fail=0.1,torn=0.05,put_fail=0.1,lie=0.1"
"""None that makes a whole call fail: those open the circuit breaker, and little would be reloaded."""


@pytest.mark.parametrize(("tp", "faults"), [(1, ""), (2, FAULTS)], ids=["sound", "broken"])
def test_soak_grows_nothing(tp, faults):
    """Threads, files, shared segments and memory after 1,500 requests are what they were after the warm-up."""
    result = soak(1500, tp=tp, faults=faults)
    assert result.is_right
    assert result.reloaded_blocks > 1000
    start, _, end = result.held
    assert (end.threads, end.files, end.shared_segments) == (start.threads, start.files, start.shared_segments)
    assert result.is_flat
    assert bool(result.faults) == bool(faults)


def test_soak_sees_growth():
    """One thread more is not flat, nor are 20 MiB."""
    start = Held(100.0, 5, 6, 0)
    for end in (Held(100.0, 6, 6, 0), Held(100.0, 5, 7, 0), Held(100.0, 5, 6, 1), Held(120.0, 5, 6, 0)):
        assert not SoakResult([start, start, end], 1, 1, 0, 0, 0, 0, 0, 1.0).is_flat
    assert SoakResult([start, start, Held(110.0, 4, 6, 0)], 1, 1, 0, 0, 0, 0, 0, 1.0).is_flat


def test_soak_prints_start_middle_and_end(capsys):
    """The command."""
    assert main(["--requests", "300"]) == 0
    output = capsys.readouterr().out
    assert all(word in output for word in ("start", "middle", "end", "open files", "0 corruptions"))
