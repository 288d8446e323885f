"""Peers that answer, that accept and stay silent, and that are gone, as sockets of this process play them."""

import socket
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.pools.mooncake import peers as mooncake_peers
from mindie_kvpool_plugin.pools.mooncake.peers import Peers, ask
from mindie_kvpool_plugin.pools.mooncake.places import Places
from tests.conftest import HOST, free_port, wait_until

PATIENT_S = 60.0  # for whoever answers at once, on a busy machine, too


class Peer:
    """Accepts connections, and while it answers reads each to its end and hangs up, as Mooncake's daemon does."""

    def __init__(self):
        self.listener = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self.listener.getsockname()[1]}"
        self.is_well = threading.Event()
        self.is_well.set()
        self.questions = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.questions += 1
            self.is_well.wait(60)
            with connection:
                connection.recv(1)


@pytest.fixture
def peers():
    running = [Peer(), Peer()]
    yield running
    for peer in running:
        peer.is_well.set()
        peer.listener.close()


def test_slow_look_up_of_one_name_does_not_make_the_others_silent(peers, monkeypatch):
    """What names take does not count against the time to answer, and is paid once."""
    real = mooncake_peers.look_up
    looked_up, later = [], [0.0]
    monkeypatch.setattr(mooncake_peers, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later[0]))

    def slow(host, port):
        looked_up.append(host)
        if host == "slow.example":
            later[0] += 2 * PATIENT_S
            return real(HOST, peers[1].listener.getsockname()[1])
        return real(host, port)

    monkeypatch.setattr(mooncake_peers, "look_up", slow)
    assert ask([peers[0].address, "slow.example:1"], PATIENT_S) == dict.fromkeys(
        [peers[0].address, "slow.example:1"], "answers"
    )
    assert ask(["slow.example:1"], PATIENT_S) == {"slow.example:1": "answers"}
    assert looked_up.count("slow.example") == 1


def test_nobody_is_met_for_the_first_time_without_being_asked(peers, monkeypatch):
    """Out of file descriptors: who is known is believed, a stranger is not."""
    known = Peers()
    known.heard([peers[0].address])
    monkeypatch.setattr(mooncake_peers, "ANSWERS_FOR_S", 0.0)
    known.heard([peers[0].address])
    monkeypatch.setattr(
        mooncake_peers.socket, "socket", lambda *_: (_ for _ in ()).throw(OSError(24, "Too many open files"))
    )
    assert known.not_answering([peers[0].address, peers[1].address]) == {peers[1].address}


@pytest.fixture
def found_silent(monkeypatch):
    """What makes a peer that does not answer a silent one soon; all others have their time."""
    monkeypatch.setattr(mooncake_peers, "ANSWER_TIMEOUT_S", PATIENT_S)
    monkeypatch.setattr(mooncake_peers, "ANSWERS_FOR_S", 0.0)
    monkeypatch.setattr(mooncake_peers, "SILENT_FOR_S", 3600.0)

    def find(known, peer):
        peer.is_well.clear()
        with monkeypatch.context() as soon:
            soon.setattr(mooncake_peers, "ANSWER_TIMEOUT_S", 0.1)
            assert known.not_answering([peer.address]) == {peer.address}
        wait_until(lambda: peer.questions, PATIENT_S, "its question has come")
        return known

    return find


def test_all_are_asked_at_once_and_told_apart(peers):
    """The silent ones cost their time limit once, however many they are."""
    peers[1].is_well.clear()
    silent = [socket.create_server((HOST, 0)) for _ in range(3)]
    names = [f"{HOST}:{listener.getsockname()[1]}" for listener in silent]
    gone = [f"{HOST}:{free_port()}", "no-such-host.invalid:1", "no address"]
    began = time.monotonic()
    found = ask([peers[0].address, peers[1].address, *names, *gone], 3.0)
    assert 3.0 <= time.monotonic() - began < 6.7, "not once for each of the four"
    assert found == {peers[0].address: "answers", peers[1].address: "silent"} | dict.fromkeys(
        names, "silent"
    ) | dict.fromkeys(gone, "gone")
    for listener in silent:
        listener.close()


def test_peer_that_was_heard_is_not_asked(peers, monkeypatch):
    """A transfer that worked is answer enough, for a moment."""
    monkeypatch.setattr(mooncake_peers, "ANSWERS_FOR_S", 60.0)
    known = Peers()
    known.heard([peers[0].address])
    assert known.not_answering([peers[0].address, peers[1].address]) == set()
    assert known.not_answering([peers[1].address]) == set()
    assert [peer.questions for peer in peers] == [0, 1]


def test_silent_peer_is_left_alone_and_then_asked_again(peers, found_silent, caplog, monkeypatch):
    """While it is left alone nothing waits for it; when it answers it is used again; each told once."""
    peer = peers[0]
    known = found_silent(Peers(), peer)
    for _ in range(20):
        assert known.not_answering([peer.address, peers[1].address]) == {peer.address}
    assert peer.questions == 1
    assert peers[1].questions == 20
    peer.is_well.set()
    assert known.not_answering([peer.address]) == {peer.address}
    monkeypatch.setattr(
        mooncake_peers, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + mooncake_peers.SILENT_FOR_S)
    )
    wait_until(lambda: known.not_answering([peer.address]) == set(), 60, "it answers again")
    said = [record.getMessage() for record in caplog.records if peer.address in record.getMessage()]
    assert [("does not answer" in text, "answers again" in text) for text in said] == [(True, False), (False, True)]


def test_nobody_waits_twice_for_a_peer_that_hangs(peers, monkeypatch):
    """It is asked again beside the caller: the second question is left open, and the call is over all the same."""
    monkeypatch.setattr(mooncake_peers, "SILENT_FOR_S", 0.0)
    monkeypatch.setattr(mooncake_peers, "ANSWER_TIMEOUT_S", 0.05)
    known, peer = Peers(), peers[0]
    peer.is_well.clear()
    assert known.not_answering([peer.address]) == {peer.address}
    monkeypatch.setattr(mooncake_peers, "ANSWER_TIMEOUT_S", 3600.0)
    assert known.not_answering([peer.address]) == {peer.address}
    wait_until(lambda: len([each for each in threading.enumerate() if each.name == "kvpool-peers"]), 60, "it is asked")
    peer.is_well.set()
    wait_until(lambda: known.not_answering([peer.address]) == set(), 60, "it answers again")


def test_a_forgotten_peer_does_not_come_back_by_a_late_verdict(peers, monkeypatch):
    """Else puts would be refused for as long again."""
    monkeypatch.setattr(mooncake_peers, "SILENT_FOR_S", 0.0)
    monkeypatch.setattr(mooncake_peers, "ANSWER_TIMEOUT_S", 0.05)
    known, peer = Peers(), peers[0]
    peer.is_well.clear()
    assert known.not_answering([peer.address]) == {peer.address}
    asked, told = mooncake_peers.ask, threading.Event()

    def late(names, timeout_s):
        told.wait(60)
        return asked(names, timeout_s)

    monkeypatch.setattr(mooncake_peers, "ask", late)
    assert known.not_answering([peer.address]) == {peer.address}
    asking = [each for each in threading.enumerate() if each.name == "kvpool-peers"]
    assert asking
    monkeypatch.setattr(mooncake_peers, "LISTED_S", 0.0)
    assert not known.any_is_silent()
    told.set()
    for each in asking:
        each.join(60)
    assert not known.any_is_silent()


def test_puts_wait_for_silent_peers_but_not_for_gone_ones(peers, found_silent, monkeypatch):
    """Nothing hangs on a peer that is gone; one that is silent is forgotten when the master has dropped it."""
    known, peer = Peers(), peers[0]
    assert not known.any_is_silent()
    known.heard([peer.address, f"{HOST}:{free_port()}"])
    assert not known.any_is_silent()
    assert found_silent(known, peer).any_is_silent()
    monkeypatch.setattr(mooncake_peers, "LISTED_S", 0.0)
    assert not known.any_is_silent()
    asked = peer.questions
    assert not known.any_is_silent()
    assert peer.questions == asked, "a forgotten peer is not asked"


def test_who_holds_what_existed_already_was_not_heard(peers, caplog, monkeypatch):
    """A put of it counts as stored, and nothing was sent: a peer that is silent or gone stays so, a new one is met."""
    monkeypatch.setattr(mooncake_peers, "ANSWERS_FOR_S", 3600.0)
    monkeypatch.setattr(mooncake_peers, "SILENT_FOR_S", 3600.0)
    silent, well = peers
    silent.is_well.clear()
    gone = f"{HOST}:{free_port()}"
    known = Peers()
    assert known.not_answering([silent.address, gone]) == {silent.address, gone}
    client = SimpleNamespace(lent=lambda: nullcontext(SimpleNamespace(endpoints=frozenset())))
    places = Places(client, known)
    holders = {"a": silent.address, "b": gone, "c": well.address}
    places.of = lambda names: [holders[name] for name in names]
    places.note_puts(["a", "b", "c"])
    assert known.not_answering([silent.address, gone, well.address]) == {silent.address, gone}
    assert well.questions == 0
    assert not places.are_safe_for_puts()
    assert "answers again" not in caplog.text
