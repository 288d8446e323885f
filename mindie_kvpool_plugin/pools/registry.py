"""Which backends there are, as data: read by whoever opens a pool, judges its pool file or tests it.

A backend's module, and with it its library, is imported only when it is opened.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.pool_file import build, no_backend
from mindie_kvpool_plugin.options.records import LocalDramOptions, MemcacheOptions, MooncakeOptions

if TYPE_CHECKING:
    from mindie_kvpool_plugin.options.pool_file import PoolFile
    from mindie_kvpool_plugin.pools.base import PoolBackend, Role


@dataclass(frozen=True, slots=True)
class Backend:
    """What is known of a backend before it is opened.

    Attributes:
        module: has ``open_pool(options, pool_file, role)``, which returns a ``PoolBackend``.
        options: the record of its own keys in the pool file; each default stands there and nowhere else.
        schema: name of the JSON Schema that judges its pool file.
        device_protocols: values of ``protocol`` under which its transport reads and writes device memory by itself;
            None: whatever the protocol.
    """

    module: str
    options: type
    schema: str
    device_protocols: frozenset[str] | None = frozenset()

    def reaches_device(self, pool_file: PoolFile) -> bool:
        """Whether the transport moves device memory by itself; otherwise blocks pass through host memory."""
        default = next((f.default for f in fields(self.options) if f.name == "protocol"), "")
        protocol = str(pool_file.backend_keys.get("protocol", default)).strip().lower()
        return self.device_protocols is None or protocol in self.device_protocols


BACKENDS = {
    "local_dram": Backend("mindie_kvpool_plugin.pools.local_dram.pool", LocalDramOptions, "local_dram"),
    "memcache": Backend("mindie_kvpool_plugin.pools.memcache.pool", MemcacheOptions, "memcache", None),
    "mooncake": Backend("mindie_kvpool_plugin.pools.mooncake.pool", MooncakeOptions, "mooncake", frozenset({"ascend"})),
}
"""By the name in ``kvPoolConfig``."""


def open_pool(name: str, pool_file: PoolFile, role: Role) -> PoolBackend:
    """Open the configured pool.

    Raises:
        ConfigError: unknown backend, or its settings cannot work.
        PoolError: the backend's library is missing or its service cannot be reached, within 10 s.
    """
    backend = BACKENDS.get(name)
    if backend is None:
        raise ConfigError(no_backend(name).told)
    options: Any = build(backend.options, pool_file.backend_keys, str(pool_file.path), strict=False)
    pool: PoolBackend = importlib.import_module(backend.module).open_pool(options, pool_file, role)
    return pool
