"""The Mooncake Store; its library is imported when a pool is opened."""

from mindie_kvpool_plugin.pools.mooncake.pool import MooncakePool

__all__ = ["MooncakePool"]
