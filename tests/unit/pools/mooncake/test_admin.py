"""The master's admin server, asked as the doctor and the commands ask it."""

import itertools
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.pools.mooncake import admin as mooncake_admin
from mindie_kvpool_plugin.pools.mooncake.admin import Admin, parse_metrics
from mindie_kvpool_plugin.simulator.mooncake_master import HOST
from tests.conftest import free_port

PATIENT_S = 60.0  # for who answers at once, on a busy machine, too


@pytest.fixture
def admin(master):
    return Admin(HOST, master.metrics_port, PATIENT_S)


def test_health_of_a_running_master(admin):
    """A master that serves says so."""
    health = admin.health()
    assert (health.is_ready, health.role, health.state) == (True, "leader", "serving")


def test_metrics_agree_with_the_segments(admin, shared_mooncake):
    """The client's memory shows in both, with the same size."""
    segments = admin.segments()
    assert {each.status for each in segments} == {"OK"}
    metrics = admin.metrics()
    assert sum(each.size_bytes for each in segments) == metrics["master_total_capacity_bytes"]
    for each in segments:
        assert metrics[f'segment_total_capacity_bytes{{segment="{each.name}"}}'] == each.size_bytes


def test_metrics_text_is_read_with_labels_and_without_remarks():
    """Remarks and broken lines are left out; labels may hold blanks; exponents and infinities are numbers."""
    text = '# HELP a words 1\n# TYPE a gauge\na 3\nb{c="d e",f="g"} 1.5e3\nlast +Inf\nbroken\nworse x\n\n'
    assert parse_metrics(text) == {"a": 3.0, 'b{c="d e",f="g"}': 1500.0, "last": float("inf")}


def test_closed_port_is_told_with_its_address():
    """The message names the address and the flag it comes from."""
    port = free_port()
    with pytest.raises(PoolError, match=rf"http://127\.0\.0\.1:{port}/health: .*--metrics_port"):
        Admin(HOST, port, PATIENT_S).health()


def test_missing_page_is_told_with_its_status(admin):
    """A page that is not there is an error, not an empty answer."""
    with pytest.raises(PoolError, match="HTTP status 404"):
        admin.page("/nothing")


def test_server_that_never_answers_is_left_in_time():
    """It accepts and is silent, as a master that hangs is."""
    with socket.create_server((HOST, 0)) as silent:
        began = time.monotonic()
        with pytest.raises(PoolError, match="timed out"):
            Admin(HOST, silent.getsockname()[1], timeout_s=0.2).health()
        assert time.monotonic() - began < 5


def answered_by(*pieces, endless=b""):
    """An HTTP server of one connection."""
    server = socket.create_server((HOST, 0))

    def serve():
        with server, server.accept()[0] as connection:
            connection.recv(4096)
            try:
                for piece in pieces:
                    connection.sendall(piece)
                while endless:
                    connection.sendall(endless)
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    return server.getsockname()[1]


def test_answer_without_end_is_left_in_time(monkeypatch):
    """Bytes keep coming, so no silence is ever too long; the page as a whole is bounded."""
    readings = itertools.chain([0.0], itertools.repeat(PATIENT_S + 1))  # when it asks, and whenever it looks again
    monkeypatch.setattr(mooncake_admin, "time", SimpleNamespace(monotonic=lambda: next(readings)))
    port = answered_by(b"HTTP/1.1 200 OK\r\n\r\n", endless=b"x" * 4096)
    with pytest.raises(PoolError, match="and no end"):
        Admin(HOST, port, PATIENT_S).page("/")


@pytest.mark.parametrize("body", [b"[1]", b"hello", b"{", b""])
def test_answer_of_another_service_is_told(body):
    """Whatever else listens there is not taken for a master."""
    port = answered_by(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    with pytest.raises(PoolError, match="expected a JSON object"):
        Admin(HOST, port, PATIENT_S).health()


def test_answer_that_is_no_http_is_told():
    """A port of another protocol."""
    port = answered_by(b"SSH-2.0-OpenSSH\r\n")
    with pytest.raises(PoolError, match="--metrics_port"):
        Admin(HOST, port, PATIENT_S).health()
