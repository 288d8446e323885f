"""Unit tests of simulator/mooncake_master.py."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.pool_file import read_pool_file
from mindie_kvpool_plugin.simulator import mooncake_master
from mindie_kvpool_plugin.simulator.mooncake_master import running_master, write_pool_file


def test_master_runs_for_the_length_of_the_block() -> None:
    """It accepts connections on loopback, and its process is gone afterwards."""
    with running_master() as master:
        host, port = master.address.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        os.kill(master.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(master.pid, 0)


def test_missing_binary_is_named_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing and the command that installs it."""
    monkeypatch.setattr(mooncake_master, "BINARY", "no_such_master")
    with pytest.raises(PoolError, match=r"no_such_master was not found .* pip install"), running_master():
        pass


def test_master_that_ends_at_once_is_an_error() -> None:
    """A flag it does not know, for instance."""
    with pytest.raises(PoolError, match="did not stay up after"), running_master("--no_such_flag"):
        pass


def test_pool_file_is_one_the_plugin_reads(tmp_path: Path) -> None:
    """Mooncake's keys for loopback TCP, a kv_pool section, and a segment Mooncake accepts."""
    path = tmp_path / "pool.json"
    write_pool_file(path, "127.0.0.1:50051", 1)
    pool_file = read_pool_file(str(path))
    assert pool_file.options is not None
    assert json.loads(path.read_text(encoding="utf-8"))["protocol"] == "tcp"
    assert pool_file.backend_keys["global_segment_size"] == 16 * 1024**2
