"""The embedded pool, the reference for every other backend."""

from mindie_kvpool_plugin.pools.local_dram.pool import LocalDram, forget_pool, pool_of

__all__ = ["LocalDram", "forget_pool", "pool_of"]
