"""A real mooncake_master for tests and the demo: on free loopback ports, for as long as a ``with`` block lasts."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mindie_kvpool_plugin.errors import PoolError

BINARY = "mooncake_master"
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0
SURVIVAL_S = 1.2
"""A master whose port is taken answers /health with 200 and ends after about 1 s."""
POLL_S = 0.02
ATTEMPTS = 3
MIN_SEGMENT_BYTES = 16 * 1024**2
LOCAL_BUFFER_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class MooncakeMaster:
    """A running master.

    Attributes:
        address: "host:port" for clients.
        pid: its process id.
    """

    address: str
    pid: int


@contextlib.contextmanager
def running_master(*flags: str) -> Iterator[MooncakeMaster]:
    """Start a master, wait until it is sure to stay, and end it afterwards.

    Args:
        flags: more command line flags.

    Raises:
        PoolError: there is no binary, or it does not start.
    """
    with tempfile.TemporaryFile() as log:
        process, port = _start(_binary(), flags, log)
        try:
            yield MooncakeMaster(f"127.0.0.1:{port}", process.pid)
        finally:
            _stop(process)


class BreakableMaster:
    """A master that is killed, frozen and started again, always on the same ports.  Ends only its own process.

    Attributes:
        address: "host:port" for clients.
        metrics_port: of its HTTP server.
    """

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._port, self.metrics_port = _free_ports(2)
        self.address = f"127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> BreakableMaster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            _stop(self._process)

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            PoolError: it does not run.
        """
        if self._process is None:
            raise PoolError("the master does not run")
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it is sure to stay.

        Raises:
            PoolError: there is no binary, or it does not start.
        """
        command = _command(_binary(), self._port, self.metrics_port, self._flags)
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        if not _stays(self._process, self.metrics_port):
            _stop(self._process)
            raise PoolError(f"{command[0]} did not stay up; run it by hand to see why: {' '.join(command)}")

    def kill(self) -> None:
        """SIGKILL; its ports are free afterwards."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
        self._process = None

    def metric(self, name: str) -> float:
        """A number of its metrics page; 0 if it is not there."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=STOP_TIMEOUT_S) as page:
            lines = page.read().decode().splitlines()
        return next((float(line.split()[1]) for line in lines if line.split(" ", 1)[0] == name), 0.0)


def write_pool_file(path: Path, master_address: str, segment_bytes: int) -> None:
    """A pool file as users write it for Mooncake, for loopback TCP."""
    content = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master_address,
        "global_segment_size": max(segment_bytes, MIN_SEGMENT_BYTES),
        "local_buffer_size": LOCAL_BUFFER_BYTES,
        "protocol": "tcp",
        "device_name": "",
        "kv_pool": {},
    }
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def _binary() -> str:
    beside = Path(sys.executable).with_name(BINARY)
    found = str(beside) if beside.exists() else shutil.which(BINARY)
    if found is None:
        raise PoolError(
            f"{BINARY} was not found beside {sys.executable} or on PATH; "
            "install it with: pip install 'mindie-kvpool-plugin[mooncake]'"
        )
    return found


def _start(binary: str, flags: tuple[str, ...], log: object) -> tuple[subprocess.Popen[bytes], int]:
    for _ in range(ATTEMPTS):
        rpc_port, metrics_port = _free_ports(2)
        command = _command(binary, rpc_port, metrics_port, flags)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)  # type: ignore[call-overload] # noqa: S603
        if _stays(process, metrics_port):
            return process, rpc_port
        _stop(process)
    raise PoolError(
        f"{binary} did not stay up after {ATTEMPTS} attempts; run it by hand to see why: {' '.join(command)}"
    )


def _command(binary: str, rpc_port: int, metrics_port: int, flags: tuple[str, ...]) -> list[str]:
    return [
        binary,
        "--rpc_address=127.0.0.1",
        f"--rpc_port={rpc_port}",
        "--metrics_host=127.0.0.1",
        f"--metrics_port={metrics_port}",
        *flags,
    ]


def _stays(process: subprocess.Popen[bytes], metrics_port: int) -> bool:
    began = time.monotonic()
    healthy = False
    while time.monotonic() < began + START_TIMEOUT_S:
        if process.poll() is not None:
            return False
        healthy = healthy or _is_healthy(metrics_port)
        if healthy and time.monotonic() > began + SURVIVAL_S:
            return True
        time.sleep(POLL_S)
    return False


def _is_healthy(metrics_port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]
