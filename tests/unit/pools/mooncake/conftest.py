"""Processes beside the test's own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mindie_kvpool_plugin.pools.mooncake import MooncakePool
from mindie_kvpool_plugin.pools.registry import open_pool
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests.conftest import mooncake_keys, write_pool_file

ROOT = Path(__file__).parents[4]


class Child:
    """A function of ``child.py`` in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.pools.mooncake.child", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended with {self.process.wait()}: {self.process.stderr and self.process.stderr.read()}"
        return json.loads(line)

    def wait(self, timeout_s: float = 30) -> int:
        self.process.communicate(timeout=timeout_s)
        return self.process.returncode

    def signal(self, how: signal.Signals) -> None:
        self.process.send_signal(how)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def run_child() -> Iterator[Callable[..., Child]]:
    children: list[Child] = []

    def run(*arguments: str) -> Child:
        children.append(Child(*arguments))
        return children[-1]

    yield run
    for child in children:
        child.end()


@pytest.fixture
def open_mooncake(tmp_path: Path) -> Iterator[Callable[..., MooncakePool]]:
    opened: list[MooncakePool] = []

    def open_one(
        master: MooncakeMaster, segment_bytes: int = 64 << 20, role: str = "worker", **more: object
    ) -> MooncakePool:
        pool_file = write_pool_file(tmp_path, **mooncake_keys(master, segment_bytes, **more))
        opened.append(open_pool("mooncake", pool_file, role))
        return opened[-1]

    yield open_one
    for pool in opened:
        pool.close()
