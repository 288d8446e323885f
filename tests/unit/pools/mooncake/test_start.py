"""Start-up errors: one message that names the place, the value and the fix, within its time."""

import importlib
import os
import socket
import sys
import threading
import time

import pytest

from mindie_kvpool_plugin.errors import ConfigError, PoolError
from mindie_kvpool_plugin.options import mooncake as options_mooncake
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import address as mooncake_address
from mindie_kvpool_plugin.pools.mooncake import start
from mindie_kvpool_plugin.pools.registry import open_pool
from tests.conftest import HOST, free_port, mooncake_keys, write_pool_file


def _open(tmp_path, master, role="worker", **changes):
    keys = {**mooncake_keys(master, 16 << 20), **changes}
    return open_pool("mooncake", write_pool_file(tmp_path, **keys), role)


@pytest.fixture
def silent_port():
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    "address", ["", "nonsense", "host:", "host:0", "host:70000", "a b:1", "http://host:1", "::1:5"]
)
def test_open_refuses_a_malformed_master_address(tmp_path, master, address):
    """The value and the expected form are in the message."""
    with pytest.raises(ConfigError, match="master_server_address") as caught:
        _open(tmp_path, master, master_server_address=address)
    if address:
        assert f'"{address}"' in str(caught.value)
        assert "host:port" in str(caught.value)


def test_master_address_may_be_ipv6_or_a_list_in_etcd():
    """Brackets and Mooncake's high-availability form are understood."""
    assert options_mooncake.master_addresses("[::1]:50051", "x") == [("::1", 50051)]
    assert options_mooncake.master_addresses("etcd://a:1;b:2", "x") == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("value", ["a:b:c", "host:port", "host:0", "http://host", "[::1"])
def test_open_refuses_a_malformed_local_hostname(tmp_path, master, value):
    """Mooncake itself would accept it and no peer could reach us."""
    with pytest.raises(ConfigError, match="leave it off") as caught:
        _open(tmp_path, master, local_hostname=value)
    assert f'local_hostname is "{value}"' in str(caught.value)


def test_open_tells_when_no_master_listens(tmp_path, master):
    """Nobody at the address: told at once, with what was tried and what to do."""
    address = f"{HOST}:{free_port()}"
    started = time.monotonic()
    with pytest.raises(PoolError) as caught:
        _open(tmp_path, master, master_server_address=address)
    assert time.monotonic() - started < 2, "Mooncake would try for 30 s"
    for part in (f"cannot reach mooncake_master at {address}", "refused", "mooncake_master --rpc_port", "pool-"):
        assert part in str(caught.value)


def test_open_tells_when_the_master_name_is_unknown(tmp_path, master):
    """A name that does not resolve is told within the limit."""
    started = time.monotonic()
    with pytest.raises(PoolError, match=r"cannot reach mooncake_master at no-such-host\.invalid:1"):
        _open(tmp_path, master, master_server_address="no-such-host.invalid:1")
    assert time.monotonic() - started < 5


def test_open_tells_in_time_when_the_resolver_hangs(tmp_path, master, monkeypatch):
    """A resolver without an answer costs its limit and no more."""
    let_go = threading.Event()
    monkeypatch.setattr(mooncake_address, "CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(mooncake_address.socket, "getaddrinfo", lambda *_, **__: let_go.wait(60))
    try:
        with pytest.raises(PoolError, match=r"not resolved within 0\.1 s"):
            _open(tmp_path, master, master_server_address="slow:1")
    finally:
        let_go.set()


def test_probe_tries_every_address_of_a_name(monkeypatch, silent_port):
    """A name whose first address refuses is reached at its second."""
    real = mooncake_address.socket.getaddrinfo
    closed = real(HOST, free_port(), type=socket.SOCK_STREAM)
    monkeypatch.setattr(
        mooncake_address.socket,
        "getaddrinfo",
        lambda *_, **__: closed + real(HOST, silent_port, type=socket.SOCK_STREAM),
    )
    options = MooncakeOptions("host", f"two-addresses:{silent_port}")
    mooncake_address.probe_master(options, "pool.json.master_server_address")


def test_open_tells_when_the_port_is_no_master(tmp_path, master, silent_port):
    """A port that accepts and stays silent ends the start after rpc_timeout_s instead of 30 s."""
    started = time.monotonic()
    with pytest.raises(PoolError, match="accepts connections but does not answer") as caught:
        _open(tmp_path, master, master_server_address=f"{HOST}:{silent_port}")
    assert time.monotonic() - started < 8
    assert f"{HOST}:{silent_port}" in str(caught.value)
    assert "--rpc_port" in str(caught.value)


def test_open_tells_what_ascend_needs_when_the_wheel_has_it_not(tmp_path, master):
    """Protocol ascend on the CPU wheel names the installed wheel and the needed one."""
    with pytest.raises(PoolError, match=r"mooncake-transfer-engine-non-cuda 0\.3.*needs mooncake-transfer-engine-npu"):
        _open(tmp_path, master, protocol="ascend")


def test_scheduler_opens_when_the_workers_use_ascend(tmp_path, master):
    """A lookup needs the master only: no NPU, no segment, no buffer."""
    pool = _open(tmp_path, master, "scheduler", protocol="ascend", global_segment_size="4GB")
    assert pool.exists(["nobody put this"]) == [False]
    pool.close()


def test_open_refuses_rdma_when_there_is_no_device(tmp_path, master, monkeypatch):
    """Mooncake would use tcp without a word."""
    monkeypatch.setattr(start, "RDMA_DEVICES", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match=r'protocol is "rdma".*write "tcp"'):
        _open(tmp_path, master, protocol="rdma")
    (tmp_path / "some" / "mlx5_0").mkdir(parents=True)
    monkeypatch.setattr(start, "RDMA_DEVICES", str(tmp_path / "some"))
    assert start.has_rdma_device()


def test_open_refuses_use_ascend_direct_false(tmp_path, master):
    """The calls behind it are gone."""
    with pytest.raises(ConfigError, match=r"use_ascend_direct is false: .*remove the key"):
        _open(tmp_path, master, use_ascend_direct=False)


@pytest.mark.parametrize("size", [1, "15MB", (16 << 20) - 1])
def test_open_refuses_a_segment_below_the_minimum(tmp_path, master, size):
    """16 MiB is the least; the message says so."""
    with pytest.raises(ConfigError, match=r"global_segment_size is \d+ bytes.*16MB"):
        _open(tmp_path, master, global_segment_size=size)


def test_open_refuses_a_segment_beyond_the_memory(tmp_path, master):
    """More than the machine has is told before Mooncake says -600."""
    with pytest.raises(ConfigError, match="this machine has"):
        _open(tmp_path, master, global_segment_size="900TB")


def test_open_takes_sizes_as_text_and_no_segment(tmp_path, master):
    """ "16MB" is 16 MiB, 0 is a client that adds nothing."""
    for size in ("16MB", 0):
        pool = _open(tmp_path, master, global_segment_size=size)
        pool.close()


def test_open_tells_when_the_local_hostname_is_unknown(tmp_path, master):
    """Mooncake's setup would succeed and no peer could ever reach this segment."""
    with pytest.raises(PoolError, match=r'local_hostname is "no-such-host\.invalid", which cannot be resolved'):
        _open(tmp_path, master, local_hostname="no-such-host.invalid")


def test_open_refuses_a_port_that_another_rank_has(tmp_path, master):
    """Two clients of one name would be two segments of one name."""
    name = f"{HOST}:{free_port()}"
    first = _open(tmp_path, master, local_hostname=name, global_segment_size=0)
    with pytest.raises(PoolError, match=r"is taken on this machine; .*leave the port off"):
        _open(tmp_path, master, local_hostname=name, global_segment_size=0)
    first.close()


def test_open_tells_when_the_client_is_another_versions(tmp_path, master, monkeypatch):
    """At start and by name, not in every call."""

    class Older:
        batch_is_exist = batch_put_from_multi_buffers = batch_get_into_multi_buffers = setup = close = None

    monkeypatch.setattr("mooncake.store.MooncakeDistributedStore", Older)
    with pytest.raises(PoolError, match=r"has no batch_get_replica_desc, batch_remove, register_buffer; .*pip install"):
        _open(tmp_path, master)


@pytest.mark.parametrize(
    ("role", "protocol", "users", "seen"),
    [
        ("scheduler", "ascend", None, "1"),
        ("scheduler", "tcp", "0", "1"),
        ("worker", "tcp", None, "1"),
        ("worker", "ascend", "1", None),
        ("worker", "ascend", None, None),
    ],
)
def test_no_transport_but_the_one_asked_for_is_opened(tmp_path, master, monkeypatch, role, protocol, users, seen):
    """The NPU wheel opens Ascend's for every client unless it is told, and fails where no NPU was set.

    What it is told ends with ``setup``: workers begin with this process's environment.
    """
    told = []

    class Client:
        batch_is_exist = batch_put_from_multi_buffers = batch_get_into_multi_buffers = None
        batch_get_replica_desc = batch_remove = register_buffer = None

        def setup(self, *arguments):
            told.append((arguments[4], os.environ.get(start.FORCE_TCP)))
            return 0

        def close(self):
            pass

    monkeypatch.setattr("mooncake.store.MooncakeDistributedStore", Client)
    if users is None:
        monkeypatch.delenv(start.FORCE_TCP, raising=False)
    else:
        monkeypatch.setenv(start.FORCE_TCP, users)
    _open(tmp_path, master, role, protocol=protocol, kv_pool={}).close()
    assert told == [("tcp" if role == "scheduler" else protocol, seen)]
    assert os.environ.get(start.FORCE_TCP) == users


def test_open_tells_when_the_package_is_missing(tmp_path, master, monkeypatch):
    """The package to install, for NPU hosts and others."""
    monkeypatch.setitem(sys.modules, "mooncake.store", None)
    with pytest.raises(PoolError, match="pip install mooncake-transfer-engine-npu on an NPU host"):
        _open(tmp_path, master)


@pytest.mark.parametrize(
    ("library", "fix"),
    [
        ("libibverbs.so.1", "apt install libibverbs1"),
        ("libcurl.so.4", "apt install libcurl4"),
        ("libnuma.so.1", "apt install libnuma1"),
        ("libascendcl.so", "set_env.sh"),
        ("libother.so.2", "LD_LIBRARY_PATH"),
    ],
)
def test_open_names_the_missing_shared_library(tmp_path, master, monkeypatch, library, fix):
    """The loader's words become the library and the package that brings it."""

    real = importlib.import_module

    def import_module(name):
        if name != "mooncake.store":
            return real(name)
        raise ImportError(f"{library}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(PoolError, match=f"shared library {library} is missing.*{fix}"):
        _open(tmp_path, master)


def test_environment_keeps_what_the_user_has_set(monkeypatch):
    """Our values are defaults."""
    names = ("MC_RPC_TIMEOUT_MS", "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "MC_STORE_CLIENT_SETUP_RETRIES")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MC_RPC_TIMEOUT_MS", "123")
    start.set_environment(MooncakeOptions("h", "m:1"))
    assert [os.environ[name] for name in names] == ["123", "65535", "1"]
    monkeypatch.delenv("MC_RPC_TIMEOUT_MS")
    start.set_environment(MooncakeOptions("h", "m:1", rpc_timeout_s=2.5))
    assert os.environ["MC_RPC_TIMEOUT_MS"] == "2500"
