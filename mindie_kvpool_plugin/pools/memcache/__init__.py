"""MemCache; its library is imported when a pool is opened."""

from mindie_kvpool_plugin.pools.memcache.pool import MemcachePool

__all__ = ["MemcachePool"]
