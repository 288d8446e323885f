"""Which backends there are.  A backend's module, and with it its library, is imported only when it is opened."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mindie_kvpool_plugin.errors import ConfigError

if TYPE_CHECKING:
    from mindie_kvpool_plugin.options.pool_file import PoolFile
    from mindie_kvpool_plugin.pools.base import PoolBackend, Role

BACKENDS = {
    "local_dram": "mindie_kvpool_plugin.pools.local_dram",
    "mooncake": "mindie_kvpool_plugin.pools.mooncake",
}
"""Backend name in ``kvPoolConfig`` -> module with ``open_pool(pool_file, role)``."""


def open_pool(backend: str, pool_file: PoolFile, role: Role) -> PoolBackend:
    """Open the configured pool.

    Raises:
        ConfigError: unknown backend, or its settings cannot work.
        PoolError: the backend's library is missing or its service cannot be reached, within 10 s.
    """
    module = BACKENDS.get(backend)
    if module is None:
        raise ConfigError(
            f'kvPoolConfig.backend is "{backend}", which mindie-kvpool-plugin has no backend for; '
            f"use one of: {', '.join(sorted(BACKENDS))}"
        )
    pool: PoolBackend = importlib.import_module(module).open_pool(pool_file, role)
    return pool
