"""Ports that are named before anybody listens there: one process each, and free."""

import itertools
import os
import socket
import subprocess
import sys

import pytest

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.simulator import ports
from mindie_kvpool_plugin.simulator.mooncake_master import HOST
from mindie_kvpool_plugin.simulator.ports import named_port

OWN_FIRST = 30_000  # beside those that other tests are named meanwhile
OTHER = """
import itertools, sys
from mindie_kvpool_plugin.simulator import ports
ports.FIRST, ports._places = int(sys.argv[1]), itertools.count()
print(ports.named_port(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def own_ports(monkeypatch):
    """Those of this test alone, from the first one on."""
    monkeypatch.setattr(ports, "FIRST", OWN_FIRST)
    monkeypatch.setattr(ports, "NUM_PORTS", 1000)
    monkeypatch.setattr(ports, "_places", itertools.count())
    monkeypatch.setattr(ports, "_marks", marks := [])
    yield
    for mark in marks:
        os.close(mark)


@pytest.fixture
def other():
    """Processes that are named the first port that is free; (the process, the port)."""
    started = []

    def look():
        command = [sys.executable, "-c", OTHER, str(OWN_FIRST)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1], int(started[-1].stdout.readline())

    yield look
    for process in started:
        process.kill()
        process.communicate()


def test_a_port_is_named_once():
    """However often it is asked; each can be listened on."""
    named = [named_port() for _ in range(20)]
    assert len(set(named)) == 20
    for port in named:
        socket.create_server((HOST, port)).close()


def test_a_port_is_another_processes_only_when_the_one_it_was_named_has_ended(own_ports, other):
    """Nobody listens there all the while."""
    ours = named_port()
    process, theirs = other()
    assert theirs > ours
    process.kill()
    process.wait()
    assert other()[1] == theirs


def test_a_port_on_which_somebody_listens_is_passed_over(own_ports):
    """He has not asked for it here."""
    with socket.create_server((HOST, named_port())) as somebody:
        taken = somebody.getsockname()[1]
        os.close(ports._marks.pop())
        ports._places = itertools.count(taken - OWN_FIRST)
        assert named_port() > taken


def test_ports_lie_below_those_that_the_kernel_picks():
    """Whoever asks for any port is given none of them."""
    with socket.create_server((HOST, 0)) as picked:
        assert not ports.FIRST <= picked.getsockname()[1] < ports.FIRST + ports.NUM_PORTS


def test_no_port_left_is_an_error(monkeypatch):
    """With what to do."""
    monkeypatch.setattr(ports, "_places", iter(()))
    with pytest.raises(PoolError, match=r"none of the ports 20000 to 29972 of 127\.0\.0\.1 is free; end what listens"):
        named_port()
