"""Numbers on a command line that are none."""

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main

WHERE = [
    ("doctor", "--timeout"),
    ("acceptance", "--timeout"),
    ("stats", "--interval"),
    ("plan", "--prefill-rate"),
    ("plan", "--bytes-per-token"),
    ("plan", "--watermark"),
    ("plan", "--eviction-ratio"),
    ("demo", "--pool-bandwidth"),
    ("demo", "--load"),
]


@pytest.mark.parametrize("number", ["nan", "inf", "1e999"])
@pytest.mark.parametrize(("command", "option"), WHERE, ids=[" ".join(where) for where in WHERE])
def test_what_is_no_number_is_refused(command, option, number):
    """Before anything is looked at: a bound of nan seconds bounds nothing."""
    run = CliRunner().invoke(main, [command, option, number, "nothing.json"])
    assert run.exit_code == 2
    assert f"Invalid value for '{option}'" in run.stderr


@pytest.mark.parametrize("command", ["doctor", "acceptance"])
def test_a_time_that_no_clock_has_is_refused(command):
    """Every probe would end with an overflow."""
    run = CliRunner().invoke(main, [command, "--timeout", "1e300", "nothing.json"])
    assert run.exit_code == 2
    assert "Invalid value for '--timeout'" in run.stderr
