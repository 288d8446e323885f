"""Every pool under one suite."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.pools.base import PoolBackend, PoolWrapper
from mindie_kvpool_plugin.pools.registry import BACKENDS, open_pool
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests import memcache_standin, memcache_wheel
from tests.conftest import CAPACITY_BYTES, mooncake_keys, write_pool_file

OpenPool = Callable[[], PoolBackend]


@contextlib.contextmanager
def _own_mooncake() -> Iterator[dict[str, object]]:
    with MooncakeMaster("--default_kv_lease_ttl=500ms") as service:
        yield mooncake_keys(service, CAPACITY_BYTES)


@contextlib.contextmanager
def _own_memcache() -> Iterator[dict[str, object]]:
    """The stand-in, or the wheel itself where ``test_memcache_wheel`` has prepared a process for it."""
    with contextlib.ExitStack() as stack:
        if memcache_wheel.is_prepared():
            config_path, _ = stack.enter_context(memcache_wheel.meta_service(CAPACITY_BYTES))
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            _, config_path = stack.enter_context(memcache_standin.standing_in(CAPACITY_BYTES, folder))
        yield {"config_path": str(config_path), "open_timeout_s": 20}


SERVICES: dict[str, Callable[[], contextlib.AbstractContextManager[dict[str, object]]]] = {
    "local_dram": lambda: contextlib.nullcontext({"capacity": CAPACITY_BYTES}),
    "memcache": _own_memcache,
    "mooncake": _own_mooncake,
}
"""Backend -> the pool file's keys, as long as what they lead to runs.  A backend without an entry fails here."""


@pytest.fixture(params=sorted(BACKENDS))
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_another(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenPool]:
    """Open a worker's pool; all are closed afterwards, and with them the objects go."""
    with SERVICES[backend]() as keys:
        pool_file = write_pool_file(tmp_path, **keys)
        opened: list[PoolBackend] = []

        def open_one() -> PoolBackend:
            opened.append(open_pool(backend, pool_file, "worker"))
            return opened[-1]

        yield open_one
        for pool in opened:
            pool.close()


@pytest.fixture
def pool(backend: str, request: pytest.FixtureRequest) -> PoolBackend:
    """A pool that looks empty, and that the test leaves open."""
    if backend != "mooncake":
        return request.getfixturevalue("own_pool")
    return UnderPrefix(request.getfixturevalue("shared_mooncake"), request.node.name)


@pytest.fixture
def own_pool(open_another: OpenPool) -> PoolBackend:
    """A pool of the test's own, to be filled or closed."""
    return open_another()


class UnderPrefix(PoolWrapper):
    """A pool seen through a prefix of its own."""

    def __init__(self, pool: PoolBackend, prefix: str) -> None:
        super().__init__(pool)
        self._prefix = prefix

    def _under(self, names: Sequence[str]) -> list[str]:
        return [f"{self._prefix}/{name}" for name in names]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        return self.inner.exists(self._under(keys))

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        return self.inner.put(self._under(keys), buffers, groups and self._under(groups))

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        return self.inner.get(self._under(keys), buffers)

    def close(self) -> None:
        raise AssertionError("a test that closes its pool takes own_pool")
