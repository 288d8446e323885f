"""A real mooncake_master for the demo, the tests, the benchmarks and ``chaos``: on loopback, for a ``with`` block.

It may be killed and started again, on the same ports.  Only processes started here are ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.pools.mooncake.address import listening_ports
from mindie_kvpool_plugin.pools.mooncake.limits import MIN_SEGMENT_BYTES, P2P_HANDSHAKE
from mindie_kvpool_plugin.pools.mooncake.programs import find_program
from mindie_kvpool_plugin.simulator.ports import named_port

BINARY = "mooncake_master"
HOST = "127.0.0.1"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
PAGE_TIMEOUT_S = 20.0
POLL_S = 0.02
ATTEMPTS = 3
LOCAL_BUFFER_BYTES = 16 * 1024**2


class MooncakeMaster:
    """A master on free ports, running inside the ``with`` block unless it was killed.

    Args:
        flags: more command line flags.

    Attributes:
        port, metrics_port: of its service and of its HTTP server; they stay the same when it is started again.
    """

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.metrics_port = named_port(), named_port()

    def __enter__(self) -> MooncakeMaster:
        """Start it; ports that somebody else has taken meanwhile are exchanged.

        Raises:
            PoolError: there is no binary, or it does not start.
        """
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self.start()
            except PoolError:
                if attempt == ATTEMPTS:
                    raise
                self.port, self.metrics_port = named_port(), named_port()
            else:
                break
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{HOST}:{self.port}"

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
        """Start it on its ports and wait until it serves there.

        Raises:
            PoolError: there is no binary, or it does not start.
        """
        command = [
            find_program(BINARY),
            f"--rpc_address={HOST}",
            f"--rpc_port={self.port}",
            f"--metrics_host={HOST}",
            f"--metrics_port={self.metrics_port}",
            "--enable_metric_reporting=false",
            *self._flags,
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._serves():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise PoolError(f"{command[0]} did not stay up; run it by hand to see why: {' '.join(command)}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End it, also when it was stopped by a signal; nothing happens if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; its ports are free afterwards."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again: it has forgotten everything.

        Raises:
            PoolError: it does not start.
        """
        self.kill()
        self.start()

    def metric(self, name: str) -> float:
        """A number of its metrics page; 0 if it is not there."""
        lines = self._page("metrics").splitlines()
        return next((float(line.split()[1]) for line in lines if line.split(" ", 1)[0] == name), 0.0)

    def _serves(self) -> bool:
        """It answers, and it is this process that listens: one whose port is taken answers, too, for a second."""
        try:
            is_ready = bool(json.loads(self._page("health"))["service_ready"])
        except (urllib.error.URLError, OSError, ValueError, KeyError):
            return False
        return is_ready and {self.port, self.metrics_port} <= listening_ports(self.pid)

    def _page(self, name: str) -> str:
        with urllib.request.urlopen(f"http://{HOST}:{self.metrics_port}/{name}", timeout=PAGE_TIMEOUT_S) as page:
            text: str = page.read().decode()
        return text

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def write_pool_file(path: Path, master_address: str, segment_bytes: int, **section: object) -> None:
    """A pool file as users write it for Mooncake, for loopback TCP; 0 bytes: the memory is a store's."""
    content = {
        "local_hostname": HOST,
        "metadata_server": P2P_HANDSHAKE,
        "master_server_address": master_address,
        "global_segment_size": max(segment_bytes, MIN_SEGMENT_BYTES) if segment_bytes else 0,
        "local_buffer_size": LOCAL_BUFFER_BYTES,
        "protocol": "tcp",
        "device_name": "",
        "kv_pool": section,
    }
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")
