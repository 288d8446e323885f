"""A meta service, and pools that are closed with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mindie_kvpool_plugin.pools.memcache import MemcachePool
from mindie_kvpool_plugin.pools.registry import open_pool
from tests.conftest import CAPACITY_BYTES, write_pool_file
from tests.memcache_standin import MetaService, standing_in

Open = Callable[..., MemcachePool]


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MetaService]:
    monkeypatch.delenv("MMC_LOCAL_CONFIG_PATH", raising=False)
    with standing_in(CAPACITY_BYTES, tmp_path) as (running, _):
        yield running


@pytest.fixture
def open_memcache(service: MetaService, tmp_path: Path) -> Iterator[Open]:
    opened: list[MemcachePool] = []

    def open_one(role: str = "worker", device_id: int = 0, **keys: object) -> MemcachePool:
        keys = {"config_path": str(tmp_path / "mmc-local.conf"), **keys}
        opened.append(open_pool("memcache", replace(write_pool_file(tmp_path, **keys), device_id=device_id), role))
        return opened[-1]

    yield open_one
    for pool in opened:
        pool.close()
