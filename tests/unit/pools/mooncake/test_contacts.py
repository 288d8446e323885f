"""Waiting for a peer that hangs is ended, and nothing else is, as sockets and pipes of this process play them."""

import contextlib
import os
import select
import socket
import threading

import pytest

from mindie_kvpool_plugin.options.mooncake import joined
from mindie_kvpool_plugin.pools.mooncake import contacts as mooncake_contacts
from mindie_kvpool_plugin.pools.mooncake import peers as mooncake_peers
from mindie_kvpool_plugin.pools.mooncake.address import remote_of
from mindie_kvpool_plugin.pools.mooncake.contacts import FirstContacts
from mindie_kvpool_plugin.pools.mooncake.peers import Peers
from tests.conftest import HOST, needs_told_system_calls, wait_until

JOIN_S = 30.0


class Call:
    """A thread in a call of the binding, which reads from a file descriptor as often as it is told to."""

    def __init__(self, contacts, *fds):
        self.found = []
        self.thread = threading.Thread(target=self._run, args=(contacts, fds), daemon=True)
        self.thread.start()

    def _run(self, contacts, fds):
        with contacts.bounded():
            for fd in fds:
                self.found.append(os.read(fd, 8))

    def end(self):
        self.thread.join(JOIN_S)
        assert not self.thread.is_alive()
        return self.found


@pytest.fixture
def contacts(monkeypatch):
    monkeypatch.setattr(mooncake_contacts, "LOOK_S", 0.02)
    monkeypatch.setattr(mooncake_peers, "ANSWER_TIMEOUT_S", 0.1)
    watching = FirstContacts(Peers())
    yield watching
    watching.close()


@pytest.fixture
def hanging():
    """A peer whose kernel accepts connections for it."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener


@needs_told_system_calls
def test_every_read_from_a_peer_that_hangs_is_ended(contacts, hanging):
    """Mooncake asks anew for every key; the peer is asked once."""
    connections = [socket.create_connection(hanging.getsockname()) for _ in range(3)]
    assert Call(contacts, *[each.fileno() for each in connections]).end() == [b"", b"", b""]
    wait_until(lambda: contacts.ended == 3, JOIN_S, "the last one is counted")
    for each in connections:
        each.close()


@needs_told_system_calls
def test_waiting_for_a_peer_that_takes_no_connection_is_ended(contacts):
    """As when its machine is off: the kernel goes on to knock."""
    with socket.create_server((HOST, 0), backlog=0) as listener, contextlib.ExitStack() as knocking:
        for _ in range(4):
            last = knocking.enter_context(socket.socket())
            last.setblocking(False)
            last.connect_ex(listener.getsockname())
        waiting = select.poll()
        waiting.register(last, select.POLLOUT)
        assert waiting.poll(0) == [], "nobody takes it"

        def wait():
            with contacts.bounded():
                found.extend(waiting.poll(JOIN_S * 1000))

        found = []
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        thread.join(JOIN_S / 2)
        assert [fd for fd, _ in found] == [last.fileno()]
        assert last.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, HOST), (socket.AF_INET6, "::1")])
def test_the_kernel_tells_where_a_socket_leads(family, host):
    """By its inode; nothing of one that leads nowhere."""
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listener, socket.socket(family) as connection:
        inode = os.fstat(connection.fileno()).st_ino
        assert remote_of(inode) is None
        connection.connect(listener.getsockname())
        assert remote_of(inode) == joined(host, listener.getsockname()[1])


@needs_told_system_calls
def test_a_read_from_a_peer_that_answers_goes_on(contacts, hanging, monkeypatch):
    """However long it takes."""
    monkeypatch.setattr(mooncake_peers, "ANSWER_TIMEOUT_S", JOIN_S)
    monkeypatch.setattr(mooncake_peers, "ANSWERS_FOR_S", JOIN_S)
    first = socket.create_connection(hanging.getsockname())
    theirs, _ = hanging.accept()
    call = Call(contacts, first.fileno())
    question, _ = hanging.accept()
    with question:
        assert question.recv(1) == b""
    looks = contacts.looks
    wait_until(lambda: contacts.looks > looks + 2, JOIN_S, "it is looked at again")
    assert call.found == []
    first.shutdown(socket.SHUT_RDWR)
    assert call.end() == [b""]
    assert contacts.ended == 0
    for each in (first, theirs):
        each.close()


def test_what_is_no_connection_to_a_peer_is_left_alone(contacts):
    """A pipe, and a socket without an address: both go on until somebody writes."""
    out, into = os.pipe()
    one, other = socket.socketpair()
    calls = [Call(contacts, out), Call(contacts, one.fileno())]
    wait_until(lambda: contacts.looks > 3, JOIN_S, "they are looked at")
    os.write(into, b"pipe")
    other.send(b"socket")
    assert [call.end() for call in calls] == [[b"pipe"], [b"socket"]]
    assert contacts.ended == 0
    for each in (one, other):
        each.close()
    for fd in (out, into):
        os.close(fd)


def test_a_thread_outside_of_a_call_is_left_alone(contacts, hanging):
    """It reads from a peer that hangs while another thread is in a call."""
    out, into = os.pipe()
    connection, found = socket.create_connection(hanging.getsockname()), []
    reader = threading.Thread(target=lambda: found.append(os.read(connection.fileno(), 8)), daemon=True)
    reader.start()
    call = Call(contacts, out)
    wait_until(lambda: contacts.looks > 3, JOIN_S, "calls are looked at")
    assert found == []
    os.write(into, b"pipe")
    assert call.end() == [b"pipe"]
    connection.shutdown(socket.SHUT_RDWR)
    reader.join(JOIN_S)
    connection.close()
    for fd in (out, into):
        os.close(fd)


@needs_told_system_calls
def test_file_descriptors_are_given_back(contacts, hanging):
    """Of what was looked at, ended or not."""
    out, into = os.pipe()
    before = set(os.listdir("/proc/self/fd"))
    connection = socket.create_connection(hanging.getsockname())
    call = Call(contacts, connection.fileno(), out)
    wait_until(lambda: contacts.ended == 1, JOIN_S, "the first read is ended")
    looks = contacts.looks
    wait_until(lambda: contacts.looks > looks + 2, JOIN_S, "the pipe is looked at")
    os.write(into, b"x")
    assert call.end() == [b"", b"x"]
    connection.close()
    assert set(os.listdir("/proc/self/fd")) - before == set()
    os.close(out)
    os.close(into)


def test_the_watching_thread_ends_with_the_pool(contacts):
    """And there is none before the first call, or without peers that can be asked."""
    before = set(threading.enumerate())

    def watching():
        return [each for each in set(threading.enumerate()) - before if each.name == "kvpool-contacts"]

    with FirstContacts(None).bounded():
        assert watching() == []
    with contacts.bounded():
        assert len(watching()) == 1
    contacts.close()
    wait_until(lambda: watching() == [], JOIN_S, "it ends")
