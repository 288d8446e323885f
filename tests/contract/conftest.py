"""Every pool under one suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mindie_kvpool_plugin.pools.base import PoolBackend
from mindie_kvpool_plugin.pools.registry import open_pool
from tests.conftest import Master, mooncake_keys, write_pool_file

CAPACITY_BYTES = 32 << 20

OpenPool = Callable[[], PoolBackend]


@pytest.fixture(params=["local_dram", "mooncake"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def open_another(backend: str, master: Master, tmp_path: Path) -> Iterator[OpenPool]:
    """Open a worker's pool; all are closed afterwards, and with them the objects go."""
    keys = (
        {"capacity": CAPACITY_BYTES}
        if backend == "local_dram"
        else mooncake_keys(master, CAPACITY_BYTES, max_slices_in_flight=24)
    )
    pool_file = write_pool_file(tmp_path, **keys)
    opened: list[PoolBackend] = []

    def open_one() -> PoolBackend:
        opened.append(open_pool(backend, pool_file, "worker"))
        return opened[-1]

    yield open_one
    for pool in opened:
        pool.close()


@pytest.fixture
def pool(open_another: OpenPool) -> PoolBackend:
    return open_another()
