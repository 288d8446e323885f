"""A meta service, and pools that are closed with the test."""

from dataclasses import replace

import pytest

from mindie_kvpool_plugin.pools.registry import open_pool
from tests.conftest import CAPACITY_BYTES, write_pool_file
from tests.memcache_standin import standing_in


@pytest.fixture
def service(tmp_path, monkeypatch):
    monkeypatch.delenv("MMC_LOCAL_CONFIG_PATH", raising=False)
    with standing_in(CAPACITY_BYTES, tmp_path) as (running, _):
        yield running


@pytest.fixture
def open_memcache(service, tmp_path):
    opened = []

    def open_one(role="worker", device_id=0, **keys):
        keys = {"config_path": str(tmp_path / "mmc-local.conf"), **keys}
        opened.append(open_pool("memcache", replace(write_pool_file(tmp_path, **keys), device_id=device_id), role))
        return opened[-1]

    yield open_one
    for pool in opened:
        pool.close()
