"""The contract suite over MemCache's own wheel, in a process with a stub of the Ascend driver."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mindie_kvpool_plugin.pools.base import Answers
from mindie_kvpool_plugin.pools.registry import open_pool
from tests import memcache_wheel
from tests.conftest import CAPACITY_BYTES, Memory, wait_until, write_pool_file

ROOT = Path(__file__).parents[2]
MIN_TESTS = 16  # of the contract, and the one below
HERE = "tests/contract/test_memcache_wheel.py"

if memcache_wheel.is_prepared():

    def test_killed_meta_service_is_trouble(tmp_path):
        """Every call answers at once with no, and says that the pool is gone."""
        with memcache_wheel.meta_service(CAPACITY_BYTES) as (config_path, process):
            pool = open_pool("memcache", write_pool_file(tmp_path, config_path=str(config_path)), "worker")
            memory = Memory(2).fill(1)
            assert pool.put(["a", "x" * 257], memory.buffers) == [True, False]
            process.kill()
            process.wait()
            wait_until(lambda: pool.exists(["a"]) == [False], 20, "the client notices")
            calls = [pool.exists(["a"]), pool.put(["b"], memory.buffers.take(slice(0, 1)))]
            calls.append(pool.get(["a"], memory.buffers.take(slice(0, 1))))
            pool.close()
        assert calls == [[False]] * 3
        assert all(isinstance(answers, Answers) and answers.trouble for answers in calls)


@pytest.mark.memcache
@pytest.mark.skipif(memcache_wheel.is_prepared(), reason="runs inside itself")
def test_wheel_keeps_the_contract_over_shared_memory(tmp_path):
    """Every test of the contract passes over host_shm, as it does over the stand-in."""
    reason = memcache_wheel.why_not()
    if reason is not None:
        pytest.skip(reason)
    command, environment = memcache_wheel.prepare(tmp_path)
    suite = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/contract/test_pool_contract.py",
        HERE,
    ]
    done = subprocess.run(
        [*command, *suite, "-k", "memcache and not keeps_the_contract"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout.splitlines()[-1])
    assert passed is not None
    assert int(passed[1]) >= MIN_TESTS
