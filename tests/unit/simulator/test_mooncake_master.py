"""Unit tests of simulator/mooncake_master.py."""

import json
import os
import socket

import pytest

from chaos.processes import freeze
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.pool_file import read_pool_file
from mindie_kvpool_plugin.pools.mooncake.address import listening_ports
from mindie_kvpool_plugin.simulator import mooncake_master
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster, write_pool_file


def test_master_runs_for_the_length_of_the_block():
    """It accepts connections on loopback, and its process is gone afterwards."""
    with MooncakeMaster() as master:
        host, port = master.address.split(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        pid = master.pid
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_master_that_was_killed_starts_again_on_its_port_and_has_forgotten():
    """Killed, restarted, and frozen at the end of the block: no process is left."""
    with MooncakeMaster() as master:
        first = master.pid
        master.restart()
        assert master.pid != first
        assert master.metric("master_key_count") == 0
        assert listening_ports(master.pid) == {master.port, master.metrics_port}
        last = master.pid
        freeze(last)
    for pid in (first, last):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_master_whose_port_is_taken_is_given_another():
    """It answers for a second, but somebody else listens there."""
    master = MooncakeMaster()
    with socket.create_server(("127.0.0.1", master.port)) as taken, master:
        assert master.port != taken.getsockname()[1]
        socket.create_connection(("127.0.0.1", master.port), timeout=5).close()


def test_missing_binary_is_named_with_its_fix(monkeypatch):
    """What is missing and the command that installs it."""
    monkeypatch.setattr(mooncake_master, "BINARY", "no_such_master")
    with pytest.raises(PoolError, match=r"no_such_master was not found .* pip install"), MooncakeMaster():
        pass


def test_master_that_ends_at_once_is_an_error():
    """A flag it does not know, for instance."""
    with pytest.raises(PoolError, match="did not stay up; run it by hand"), MooncakeMaster("--no_such_flag"):
        pass


def test_pool_file_is_one_the_plugin_reads(tmp_path):
    """Mooncake's keys for loopback TCP, a kv_pool section, and a segment Mooncake accepts."""
    path = tmp_path / "pool.json"
    write_pool_file(path, "127.0.0.1:50051", 1)
    pool_file = read_pool_file(str(path))
    assert pool_file.options is not None
    assert json.loads(path.read_text(encoding="utf-8"))["protocol"] == "tcp"
    assert pool_file.backend_keys["global_segment_size"] == 16 * 1024**2
