"""A program that runs for us: its end is ours, also when it does not want to end."""

import os
import signal
import sys

from mindie_kvpool_plugin.services import child as services_child
from mindie_kvpool_plugin.services.child import KILLED, running

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


def test_a_program_that_does_not_end_when_told_is_killed(monkeypatch, caplog, capfd):
    """As a master that hangs in its own shutdown; the signal was forwarded, and the time is over."""
    monkeypatch.setattr(services_child, "GRACE_S", 0.3)
    monkeypatch.setattr(services_child.logger, "propagate", True)
    with running([sys.executable, "-c", DEAF]) as program:
        program.wait_until(lambda: "deaf" in capfd.readouterr().out, 60, "it ignores the signal")
        os.kill(os.getpid(), signal.SIGTERM)
        assert program.wait() == KILLED + signal.SIGKILL
        assert program.told == signal.SIGTERM
    assert "did not end within 0.3 s of signal 15: killed" in caplog.text


def test_a_program_that_was_told_nothing_may_take_its_time(monkeypatch):
    """The time counts from the first signal."""
    monkeypatch.setattr(services_child, "GRACE_S", 0.0)
    with running([sys.executable, "-c", "import time; time.sleep(0.3); raise SystemExit(7)"]) as program:
        assert program.wait() == 7
