"""Fixtures several test folders share."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.options.pool_file import PoolFile, read_pool_file
from mindie_kvpool_plugin.pools.mooncake import MooncakePool, open_pool

HOST = "127.0.0.1"
CAPACITY_BYTES = 32 << 20


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def freeze(pid: int) -> None:
    """SIGSTOP, and wait until every thread of the process has stopped."""
    os.kill(pid, signal.SIGSTOP)

    def is_stopped() -> bool:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        return set(states) == {"T"}

    wait_until(is_stopped, 10, f"process {pid} stands still")


class Master:
    """A mooncake_master on free loopback ports; ends only the process it started."""

    def __init__(self, *flags: str) -> None:
        self.flags = flags
        self.process: subprocess.Popen[bytes] | None = None
        self._choose_ports()

    def _choose_ports(self) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.address = f"{HOST}:{self.port}"

    def __enter__(self) -> Master:
        try:
            self.start()
        except AssertionError:  # a connection of somebody else has taken a port meanwhile
            self.stop()
            self._choose_ports()
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        program = Path(sys.executable).parent / "mooncake_master"
        command = [
            str(program),
            f"--rpc_port={self.port}",
            f"--rpc_address={HOST}",
            f"--metrics_port={self.metrics_port}",
            f"--metrics_host={HOST}",
            "--enable_metric_reporting=false",
            *self.flags,
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._is_ready, 20, "mooncake_master is ready")

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "mooncake_master ended; is its port taken?"
        connection = http.client.HTTPConnection(HOST, self.metrics_port, timeout=2)
        try:
            # a master whose RPC port is taken answers here, too, for a second
            socket.create_connection((HOST, self.port), timeout=2).close()
            connection.request("GET", "/health")
            return bool(json.load(connection.getresponse())["service_ready"])
        except (OSError, http.client.HTTPException, ValueError):
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=20)
            self.process = None

    def restart(self) -> None:
        self.kill()
        self.start()


class _Addresses(np.ndarray):
    """Addresses that keep the memory they lead to alive, also through slices."""

    owner: object = None

    def __array_finalize__(self, source: object) -> None:
        self.owner = getattr(source, "owner", None)


class Memory:
    """Numbered blocks of several segments in one piece of host memory."""

    def __init__(self, blocks: int, segments: int = 3, segment_bytes: int = 4096) -> None:
        self.bytes = np.zeros((blocks, segments, segment_bytes), dtype=np.uint8)
        at = self.bytes.ctypes.data
        offsets = np.arange(blocks * segments, dtype=np.int64).reshape(blocks, segments) * segment_bytes
        addresses = (at + offsets).view(_Addresses)
        addresses.owner = self.bytes
        self.buffers = Buffers(addresses, np.full(segments, segment_bytes, dtype=np.int64))

    def fill(self, seed: int) -> Memory:
        self.bytes[:] = np.random.default_rng(seed).integers(0, 256, self.bytes.shape, dtype=np.uint8)
        return self

    def clear(self) -> Memory:
        ctypes.memset(self.bytes.ctypes.data, 0, self.bytes.nbytes)
        return self


def write_pool_file(folder: Path, **keys: object) -> PoolFile:
    path = folder / f"pool-{os.getpid()}-{time.monotonic_ns()}.json"
    path.write_text(json.dumps({**keys, "kv_pool": {}}), encoding="utf-8")
    return read_pool_file(str(path))


def mooncake_keys(master: Master, segment_bytes: int = 64 << 20, **more: object) -> dict[str, object]:
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


@pytest.fixture(scope="session")
def master() -> Iterator[Master]:
    """A master for tests that do not hurt it."""
    with Master("--default_kv_lease_ttl=500ms") as running:
        yield running


@pytest.fixture(scope="session")
def shared_mooncake(master: Master, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakePool]:
    """One client for all tests that do not fill, close or break the pool: closing takes 2 s."""
    keys = mooncake_keys(master, CAPACITY_BYTES, max_slices_in_flight=24)
    pool = open_pool(write_pool_file(tmp_path_factory.mktemp("pool"), **keys), "worker")
    yield pool
    pool.close()


@pytest.fixture
def own_master() -> Iterator[Master]:
    """A master of the test's own, to be killed and restarted; it forgets a silent client soon."""
    with Master("--default_kv_lease_ttl=2s", "--client_ttl=2") as running:
        yield running
