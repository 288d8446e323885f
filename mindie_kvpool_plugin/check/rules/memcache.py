"""MemCache's own file and the variable that names another one."""

from __future__ import annotations

from collections.abc import Iterator

from mindie_kvpool_plugin.check.findings import Elsewhere
from mindie_kvpool_plugin.check.follow import MEMCACHE_VARIABLE, OtherFile
from mindie_kvpool_plugin.check.rules.pool_file import AT, at_key
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, K, View, text
from mindie_kvpool_plugin.options.memcache import AddressError, local_config


@rule(
    "KP-15", "error", "late",
    "readme: MemCache instead of Mooncake",
    wrong="ock.mmc.meta_service_url = 192.168.10.1:5000",
    right="ock.mmc.meta_service_url = tcp://192.168.10.1:5000",
)  # fmt: skip
def memcache_file_can_be_used(view: View) -> Iterator[Fault]:
    """The file that the pool file names as config_path: there, readable, with addresses that are some."""
    found, pool = view.followed.memcache, view.followed.pool
    if found is None or pool is None or KV_POOL not in view.words:
        return
    if found.document is None:
        yield from _unreadable(view, found, pool)
        return
    try:
        local_config(found.document.text, str(found.path))
    except AddressError as error:
        yield fault(*AT, variant="address", place=Elsewhere(str(found.path)), key=error.key, url=error.url)


def _unreadable(view: View, found: OtherFile, pool: OtherFile) -> Iterator[Fault]:
    if not found.path.is_absolute() and not view.situation.on_server:
        return  # nobody knows here from where it counts
    is_fault = view.situation.on_server or view.followed.disk.facts(found.path.parent).exists
    place = at_key(pool, "config_path")
    yield fault(*AT, severity=None if is_fault else "info", place=place, file=str(found.path))


@rule(
    "HC-81", "warning", "silent",
    "code: mindie_llm/text_generator/mempool/memcache_mempool.py",
    wrong="export MMC_LOCAL_CONFIG_PATH=/other.conf",
    right="unset MMC_LOCAL_CONFIG_PATH",
)  # fmt: skip
def memcache_variable_agrees(view: View) -> Iterator[Fault]:
    """The variable wins over config.json."""
    named = view.situation.variable(MEMCACHE_VARIABLE)
    pool = view.followed.pool
    value = pool.value if pool is not None and isinstance(pool.value, dict) else {}
    # the plugin's pool file names MemCache's own one; without the section they are the same file
    path = text(value, "config_path") if KV_POOL in value else text(view.kv_pool, "configPath")
    if view.is_pool and text(view.kv_pool, "backend") == "memcache" and named and named != path:
        yield fault(B, K, "configPath", variable=named, value=path)
