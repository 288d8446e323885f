"""Ranks in processes of their own that die or hang: the others go on within the bound, all with the same answer."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.processes import freeze
from tests.conftest import free_port

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 1.0
AT_ONCE_S = 0.5


class RankProcess:
    def __init__(self, rank, size, port):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.host.ranks", str(rank), str(size), str(port), str(TIMEOUT_S)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, *lengths):
        self.process.stdin.write(json.dumps(lengths) + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def ranks():
    port = free_port()
    started = [RankProcess(rank, 3, port) for rank in range(3)]
    try:
        assert [rank.process.stdout.readline() for rank in started] == ["met\n"] * 3
        yield started
    finally:
        for rank in started:
            rank.kill()


def agreed(ranks, *lengths):
    for rank, own in zip(ranks, lengths, strict=True):
        rank.ask(*own)
    return [rank.hear() for rank in ranks]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_ends_the_agreement_at_once(ranks, victim):
    """kill -9 while the others wait for it; also rank 0, whose store they met at."""
    assert [answer for answer, _, _ in agreed(ranks, [5], [4], [6])] == [[4]] * 3
    others = [rank for index, rank in enumerate(ranks) if index != victim]
    for rank in others:
        rank.ask(5)
    ranks[victim].kill()
    for answer, seconds, broken in [rank.hear() for rank in others]:
        assert (answer, broken) == ([0], True)
        assert seconds < TIMEOUT_S + AT_ONCE_S
    for answer, seconds, _ in agreed(others, [5], [5]):
        assert answer == [0]
        assert seconds < TIMEOUT_S, "no second wait"


def test_a_stopped_rank_holds_nobody_longer_than_the_bound_and_ends_with_the_same_answer(ranks):
    """SIGSTOP before it takes part: all give the hits up, the late one too when it goes on."""
    freeze(ranks[1].process.pid)
    for rank in ranks:
        rank.ask(7)
    others = [ranks[0].hear(), ranks[2].hear()]
    ranks[1].process.send_signal(signal.SIGCONT)
    for answer, seconds, broken in [*others, ranks[1].hear()]:
        assert (answer, broken) == ([0], True)
        assert seconds < 3 * TIMEOUT_S + AT_ONCE_S
