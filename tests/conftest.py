"""Fixtures several test folders share."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.observability.questions import ask_all
from mindie_kvpool_plugin.options.pool_file import read_pool_file
from mindie_kvpool_plugin.pools.registry import open_pool
from mindie_kvpool_plugin.simulator.mooncake_master import HOST, MooncakeMaster
from mindie_kvpool_plugin.simulator.ports import named_port

CAPACITY_BYTES = 32 << 20

# a shell's background job ignores it, and so would every process that a test starts and interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)


def _tells_system_calls():
    try:
        return os.uname().machine in ("x86_64", "aarch64") and bool(Path("/proc/thread-self/syscall").read_text())
    except OSError:
        return False


needs_told_system_calls = pytest.mark.skipif(
    not _tells_system_calls(), reason="this kernel does not tell what a thread waits for: /proc/thread-self/syscall"
)


def wait_until(condition, timeout_s, what):
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.01)


def free_port():
    """One on which nobody listens, and that no other test is given."""
    return named_port()


class _Addresses(np.ndarray):
    """Addresses that keep the memory they lead to alive, also through slices."""

    owner: object = None

    def __array_finalize__(self, source):
        self.owner = getattr(source, "owner", None)


class Memory:
    """Numbered blocks of several segments in one piece of host memory; nothing joins two segments, as on a device."""

    def __init__(self, blocks, segments=3, segment_bytes=4096, gap_bytes=64):
        room = np.zeros((blocks, segments, segment_bytes + gap_bytes), dtype=np.uint8)
        self.bytes = room[:, :, :segment_bytes]
        offsets = np.arange(blocks * segments, dtype=np.int64).reshape(blocks, segments) * room.strides[1]
        addresses = (room.ctypes.data + offsets).view(_Addresses)
        addresses.owner = room
        self.buffers = Buffers(addresses, np.full(segments, segment_bytes, dtype=np.int64))
        self.region = Region(room.ctypes.data, room.nbytes)

    def fill(self, seed):
        self.bytes[:] = np.random.default_rng(seed).integers(0, 256, self.bytes.shape, dtype=np.uint8)
        return self

    def clear(self):
        self.bytes[:] = 0
        return self


def write_pool_file(folder, **keys):
    path = folder / f"pool-{os.getpid()}-{time.monotonic_ns()}.json"
    path.write_text(json.dumps({**keys, "kv_pool": {}}), encoding="utf-8")
    return read_pool_file(str(path))


def mooncake_keys(master, segment_bytes=64 << 20, **more):
    return {
        "local_hostname": HOST,
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master.address,
        "global_segment_size": segment_bytes,
        "local_buffer_size": 0,
        "protocol": "tcp",
        "device_name": "",
        **more,
    }


@pytest.fixture(autouse=True)
def log_level():
    """What a command sets in the test's process is the next test's no more."""
    before = logger.level
    yield
    logger.setLevel(before)


@pytest.fixture(scope="session", autouse=True)
def run_directory(tmp_path_factory):
    """Where this session's processes are asked, with time to answer; not where a service of the same user would be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ask_all, "__defaults__", (60.0,))
        patch.setenv("MINDIE_KVPOOL_RUN_DIR", str(tmp_path_factory.mktemp("run")))
        yield


@pytest.fixture(scope="session")
def master():
    """A master for tests that do not hurt it."""
    with MooncakeMaster("--default_kv_lease_ttl=500ms") as running:
        yield running


@pytest.fixture(scope="session")
def shared_mooncake(master, tmp_path_factory):
    """One client for all tests that do not fill, close or break the pool: closing takes 2 s."""
    keys = mooncake_keys(master, CAPACITY_BYTES, max_slices_in_flight=24)
    pool = open_pool("mooncake", write_pool_file(tmp_path_factory.mktemp("pool"), **keys), "worker")
    yield pool
    pool.close()


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Starts commands that keep running, and ends what is left of them; they meet in a folder of the test's own."""
    monkeypatch.setenv("MINDIE_KVPOOL_RUN_DIR", str(tmp_path / "run"))
    from tests.commands import Started

    begun = []

    def start(name, *args, **env):
        begun.append(Started(name, *args, **env))
        return begun[-1]

    yield start
    for each in begun:
        each.finish()


@pytest.fixture
def own_master():
    """A master of the test's own, to be killed and restarted; it bears with a client that a busy machine holds up."""
    with MooncakeMaster("--default_kv_lease_ttl=2s", "--client_ttl=14") as running:
        yield running


@pytest.fixture
def forgetful_master():
    """One that forgets a client soon after its last ping, of which there is one every second."""
    with MooncakeMaster("--default_kv_lease_ttl=2s", "--client_ttl=5") as running:
        yield running
