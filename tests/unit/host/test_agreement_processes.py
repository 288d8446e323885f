"""Ranks in processes of their own that die or hang: the others go on within the bound, all with the same answer."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.processes import freeze
from tests.conftest import free_port, wait_until

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 6.0  # nobody who is well is as late, on a busy machine either
BOUND_S = 2.0  # where one does
AT_ONCE_S = 0.5
MET_AGAIN_S = 300.0  # within seconds, as a rule
ENDED_S = 30.0  # an interpreter with torch goes down, on a busy machine; what is left of the agreement lasts a minute


class RankProcess:
    def __init__(self, rank, size, place, timeout_s):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.host.ranks", str(rank), str(size), place, str(timeout_s)],
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

    def leave(self):
        """End its input; its exit status."""
        self.process.communicate(timeout=ENDED_S)
        return self.process.returncode

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=[("127.0.0.1", TIMEOUT_S)])
def ranks(request):
    """Three of them that have met at an address, and how late each may be."""
    address, timeout_s = request.param
    place = f"tcp://{address}:{free_port()}"
    started = [RankProcess(rank, 3, place, timeout_s) for rank in range(3)]
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


in_a_moment = pytest.mark.parametrize("ranks", [("127.0.0.1", BOUND_S)], indirect=True)


@pytest.mark.parametrize("ranks", [("[::1]", TIMEOUT_S)], indirect=True)
def test_ranks_meet_at_an_ipv6_address(ranks):
    """Written in brackets, as everywhere a port follows."""
    assert [answer for answer, _, _ in agreed(ranks, [5], [4], [6])] == [[4]] * 3


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


@in_a_moment
def test_a_stopped_rank_holds_nobody_longer_than_the_bound_and_ends_with_the_same_answer(ranks):
    """SIGSTOP before it takes part: all give the hits up, the late one too when it goes on."""
    freeze(ranks[1].process.pid)
    for rank in ranks:
        rank.ask(7)
    others = [ranks[0].hear(), ranks[2].hear()]
    ranks[1].process.send_signal(signal.SIGCONT)
    for answer, seconds, broken in [*others, ranks[1].hear()]:
        assert (answer, broken) == ([0], True)
        assert seconds < 3 * BOUND_S + AT_ONCE_S


def test_ranks_meet_again_once_the_late_one_goes_on(ranks):
    """From one question on, which is the same for all; until then no hit is used."""
    freeze(ranks[1].process.pid)
    for rank in ranks:
        rank.ask(7)
    others = [ranks[0].hear(), ranks[2].hear()]
    ranks[1].process.send_signal(signal.SIGCONT)
    assert [broken for _, _, broken in (*others, ranks[1].hear())] == [True] * 3
    heard = []

    def ask():
        heard.append(agreed(ranks, [5], [4], [6]))
        return heard[-1][0][0] == [4]

    wait_until(ask, MET_AGAIN_S, "the ranks agree again")
    assert {tuple(answer[0] for answer, _, _ in one) for one in heard[:-1]} == {(0, 0, 0)}
    assert [(answer, broken) for answer, _, broken in heard[-1]] == [([4], False)] * 3
    assert [answer for answer, _, _ in agreed(ranks, [5, 1], [4, 3], [6, 2])] == [[4, 1]] * 3


@in_a_moment
def test_a_rank_that_gave_the_others_up_ends_at_once(ranks):
    """What is left of the failed agreement does not hold up its process."""
    freeze(ranks[1].process.pid)
    ranks[0].ask(7)
    ranks[2].ask(7)
    assert [rank.hear()[2] for rank in (ranks[0], ranks[2])] == [True, True]
    assert [rank.leave() for rank in (ranks[0], ranks[2])] == [0, 0]


AS_THE_DAEMON = ["--shm_name_prefix", "/llm_a"]


def daemons_ranks(command, wait_s):
    """Two ranks of one engine, started as the daemon starts them, each by the command; what each says first."""
    started = [
        subprocess.Popen(
            [*command, sys.executable, "-m", "tests.unit.host.ranks", str(rank), "2", "auto", "1", *AS_THE_DAEMON],
            cwd=ROOT,
            env={**os.environ, "MEETING_TIMEOUT_S": str(wait_s)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        return [rank.stdout.readline() for rank in started]
    finally:
        for rank in started:
            rank.communicate()  # its input ends, and it does


def test_ranks_of_one_daemon_find_each_other():
    """They share a parent process, and the prefix of their engine."""
    assert daemons_ranks([], ENDED_S) == ["met\n"] * 2


def test_ranks_with_parents_of_their_own_are_told_what_to_set():
    """A script between the daemon and each of its workers: they wait for each other at two places, and say so."""
    said = daemons_ranks(["sh", "-c", '"$@"; true', "sh"], 1)
    for rank, line in enumerate(said):
        assert line.startswith(f"rank {rank} of 2 could not meet the other ranks at ")
        assert 'kv_pool.agreement in the pool file to "tcp://' in line
