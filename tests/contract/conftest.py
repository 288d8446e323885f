"""Every pool under one suite."""

import contextlib
import tempfile
from pathlib import Path

import pytest

from mindie_kvpool_plugin.pools.base import PoolWrapper
from mindie_kvpool_plugin.pools.registry import BACKENDS, open_pool
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests import memcache_standin, memcache_wheel
from tests.conftest import CAPACITY_BYTES, mooncake_keys, write_pool_file
from tests.unit.pools.mooncake.conftest import patience


@contextlib.contextmanager
def _own_mooncake():
    with MooncakeMaster("--default_kv_lease_ttl=500ms") as service:
        yield mooncake_keys(service, CAPACITY_BYTES)


@contextlib.contextmanager
def _own_memcache():
    """The stand-in, or the wheel itself where ``test_memcache_wheel`` has prepared a process for it."""
    with contextlib.ExitStack() as stack:
        if memcache_wheel.is_prepared():
            config_path, _ = stack.enter_context(memcache_wheel.meta_service(CAPACITY_BYTES))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _, config_path = stack.enter_context(memcache_standin.standing_in(CAPACITY_BYTES, folder))
        yield {"config_path": str(config_path), "open_timeout_s": 20}


SERVICES = {
    "local_dram": lambda: contextlib.nullcontext({"capacity": CAPACITY_BYTES}),
    "memcache": _own_memcache,
    "mooncake": _own_mooncake,
}
"""Backend -> the pool file's keys, as long as what they lead to runs.  A backend without an entry fails here."""


@pytest.fixture(autouse=True)
def unhurried():
    """Nobody hangs here; on a busy machine who answers may be slow."""
    with patience():
        yield


@pytest.fixture(params=sorted(BACKENDS))
def backend(request):
    return request.param


@pytest.fixture
def open_another(backend, request, tmp_path):
    """Open a worker's pool; all are closed afterwards, and with them the objects go."""
    with SERVICES[backend]() as keys:
        pool_file = write_pool_file(tmp_path, **keys)
        opened = []

        def open_one():
            opened.append(open_pool(backend, pool_file, "worker"))
            return opened[-1]

        yield open_one
        for pool in opened:
            pool.close()


@pytest.fixture
def pool(backend, request):
    """A pool that looks empty, and that the test leaves open."""
    if backend != "mooncake":
        return request.getfixturevalue("own_pool")
    return UnderPrefix(request.getfixturevalue("shared_mooncake"), request.node.name)


@pytest.fixture
def own_pool(open_another):
    """A pool of the test's own, to be filled or closed."""
    return open_another()


class UnderPrefix(PoolWrapper):
    """A pool seen through a prefix of its own."""

    def __init__(self, pool, prefix):
        super().__init__(pool)
        self._prefix = prefix

    def _under(self, names):
        return [f"{self._prefix}/{name}" for name in names]

    def exists(self, keys):
        return self.inner.exists(self._under(keys))

    def lie_elsewhere(self, keys):
        return self.inner.lie_elsewhere(self._under(keys))

    def put(self, keys, buffers, groups=None):
        return self.inner.put(self._under(keys), buffers, groups and self._under(groups))

    def get(self, keys, buffers):
        return self.inner.get(self._under(keys), buffers)

    def close(self):
        raise AssertionError("a test that closes its pool takes own_pool")
