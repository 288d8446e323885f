"""Processes beside the test's own."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mindie_kvpool_plugin.pools.mooncake import peers, places, transfer
from mindie_kvpool_plugin.pools.registry import open_pool
from tests.conftest import mooncake_keys, write_pool_file

ROOT = Path(__file__).parents[4]
PATIENT_S = 60.0


class Child:
    """A function of ``child.py`` in a process of its own."""

    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.pools.mooncake.child", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self):
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the child ended with {self.process.wait()}: {self.process.stderr and self.process.stderr.read()}"
        return json.loads(line)

    def wait(self, timeout_s=60):
        self.process.communicate(timeout=timeout_s)
        return self.process.returncode

    def signal(self, how):
        self.process.send_signal(how)

    def end(self):
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def patience():
    """Who answers at once elsewhere may be slow on a busy machine; not where a test is about who does not answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "ANSWER_TIMEOUT_S", PATIENT_S)
        patch.setattr(transfer, "GATE_TIMEOUT_S", PATIENT_S)
        for module in (places, transfer):
            patch.setattr(module, "SLOW_S", PATIENT_S)
        yield


@pytest.fixture
def unhurried():
    """Pools of this process have patience."""
    with patience():
        yield


@pytest.fixture
def run_child():
    children = []

    def run(*arguments):
        children.append(Child(*arguments))
        return children[-1]

    yield run
    for child in children:
        child.end()


@pytest.fixture
def open_mooncake(tmp_path):
    opened = []

    def open_one(master, segment_bytes=64 << 20, role="worker", **more):
        pool_file = write_pool_file(tmp_path, **mooncake_keys(master, segment_bytes, **more))
        opened.append(open_pool("mooncake", pool_file, role))
        return opened[-1]

    yield open_one
    for pool in opened:
        pool.close()
