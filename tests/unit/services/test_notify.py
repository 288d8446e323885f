"""What systemd hears."""

import socket

import pytest

from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.services.notify import notify


@pytest.mark.parametrize("is_abstract", [False, True])
def test_state_arrives_as_lines(tmp_path, monkeypatch, is_abstract):
    """Over a socket file, or an abstract address as containers use it."""
    place = f"@kvpool-{tmp_path.name}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + place[1:] if is_abstract else place)
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", place)
        notify(READY=1, STATUS="serves")
        assert systemd.recv(1024) == b"READY=1\nSTATUS=serves"


def test_nothing_happens_without_systemd(monkeypatch):
    """As on a laptop."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify(READY=1)


def test_a_broken_socket_stops_nobody(tmp_path, monkeypatch, caplog):
    """It is logged."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    monkeypatch.setattr(logger, "propagate", True)
    notify(READY=1)
    assert "cannot tell systemd READY=1" in caplog.text
