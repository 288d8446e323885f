"""The Mooncake Store; its library is imported when a pool is opened."""

from mindie_kvpool_plugin.pools.mooncake.pool import MooncakePool, open_pool

__all__ = ["MooncakePool", "open_pool"]
