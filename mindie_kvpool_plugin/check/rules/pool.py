"""The pool switch: kvPoolConfig and the file it names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindie_kvpool_plugin.check.follow import OtherFile
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, C, K, View, integer, text
from mindie_kvpool_plugin.check.situation import FileFacts

MAX_PATH_BYTES = 500
MAX_FILE_BYTES = 10 * 1024 * 1024
# a block of the size every document and every shipped file uses
USUAL_BLOCK_TOKENS = 128

_PLACEHOLDER = re.compile(r"/path/to|kv_pool_backend|xxx|your[_-]|<[^>]*>|/\*|\*", re.IGNORECASE)
_CJK = re.compile(r"[\u3400-\u9fff\uff00-\uffef]")


@rule(
    "HC-01", "error", "silent",
    "pool: 限制与约束",
    wrong='"kvPoolConfig": {"backend": "mooncake", "configPath": "/etc/mindie/kv_pool.json"}\n(no plugin_params)',
    right='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}"',
)  # fmt: skip
def pool_needs_prefix_cache(view: View) -> Iterator[Fault]:
    """Without prefix_cache nothing is ever stored; a decode node is the exception."""
    if view.is_pool and not view.is_prefix and KV_POOL not in view.words:
        if view.is_dmi:
            yield fault(B, K, "backend", variant="decode", severity="info")
        else:
            yield fault(*view.plugins_path())


@rule(
    "HC-02", "warning", "silent",
    "pool: 参数说明; code: src/config_manager/backend_config.cpp",
    wrong='"kvPoolConfig": {"backend": "mooncake", "configPath": ""}',
    right='"kvPoolConfig": {"backend": "mooncake", "configPath": "/etc/mindie/kv_pool.json"}',
)  # fmt: skip
def pool_needs_backend_and_path(view: View) -> Iterator[Fault]:
    """One of the two texts alone leaves pooling off."""
    backend, path = text(view.kv_pool, "backend"), text(view.kv_pool, "configPath")
    if bool(backend) != bool(path):
        missing = "configPath" if backend else "backend"
        yield fault(B, K, missing, missing=missing, present="backend" if backend else "configPath")
    elif not backend and view.kv_pool.get("asyncWrite") is True:
        yield fault(B, K, "asyncWrite", variant="async")


@rule(
    "HC-03", "error", "late",
    "mempool: 三、在MindIE中使用; code: mindie_llm/text_generator/mempool/mooncake_mempool.py",
    wrong='"configPath": "/etc/mindie/kv_pool.json"   (missing, a link, writable by others, or no JSON)',
    right="chmod 640 /etc/mindie/kv_pool.json",
)  # fmt: skip
def pool_file_can_be_read(view: View) -> Iterator[Fault]:
    """The host opens the pool file only after the weights are loaded."""
    pool = view.followed.pool
    if not view.is_pool or pool is None:
        return
    at = (B, K, "configPath")
    facts = pool.facts
    if pool.stands_in:
        yield fault(*at, variant="stand_in", severity="info", outcome="advice", file=str(pool.path))
        return
    if not facts.exists:
        is_fault = view.situation.on_server or pool.given or view.followed.disk.facts(pool.path.parent).exists
        if not pool.path.is_absolute() and not view.situation.on_server and not pool.given:
            return  # nobody knows here from where it counts (HC-05)
        severity = None if is_fault else "info"
        yield fault(*at, variant="missing", severity=severity, file=str(pool.path))
    elif not facts.is_file:
        yield fault(*at, variant="no_file", file=str(pool.path))
    elif not facts.is_readable:
        yield fault(*at, variant="unreadable", file=str(pool.path))
    elif facts.size > MAX_FILE_BYTES:
        yield fault(*at, variant="large", file=str(pool.path), size=facts.size)
    yield from _permissions(view, pool, facts)


def _permissions(view: View, pool: OtherFile, facts: FileFacts) -> Iterator[Fault]:
    """Links and permissions matter where the service runs; elsewhere the file is a copy."""
    if not facts.is_file or not view.situation.on_server:
        return
    if facts.is_link:
        yield fault(B, K, "configPath", variant="link", file=str(pool.path))
    if facts.mode & 0o022:
        yield fault(B, K, "configPath", variant="writable", file=str(pool.path), mode=f"{facts.mode:04o}")


@rule(
    "HC-04", "warning", "late",
    "code: mindie_llm/text_generator/mempool/factory.py",
    wrong='"backend": "unifiedcache"',
    right='"backend": "mooncake"',
)  # fmt: skip
def unifiedcache_is_not_in_the_stock_package(view: View) -> Iterator[Fault]:
    """The host imports a module that only the UCM project installs."""
    if text(view.kv_pool, "backend") == "unifiedcache" and text(view.kv_pool, "configPath"):
        yield fault(B, K, "backend")


@rule(
    "HC-05", "warning", "advice",
    "pool: 参数说明; code: mindie_llm/text_generator/mempool/mooncake_mempool.py",
    wrong='"configPath": "kv_pool.json"',
    right='"configPath": "/etc/mindie/kv_pool.json"',
)  # fmt: skip
def pool_path_is_absolute(view: View) -> Iterator[Fault]:
    """A relative path counts from wherever the worker was started."""
    path = text(view.kv_pool, "configPath")
    if view.is_pool and not path.startswith("/"):
        yield fault(B, K, "configPath", value=path)


@rule(
    "CF-09", "error", "boot",
    "pool: 参数说明; code: src/config_manager/backend_config.cpp",
    wrong='"configPath": "/data/...501 bytes..."',
    right='"configPath": "/etc/mindie/kv_pool.json"',
)  # fmt: skip
def pool_path_is_short(view: View) -> Iterator[Fault]:
    """Bytes count, not characters, and the host looks even when pooling is off."""
    path = text(view.kv_pool, "configPath")
    size = len(path.encode("utf-8", "replace"))
    if size > MAX_PATH_BYTES:
        yield fault(B, K, "configPath", size=size, limit=MAX_PATH_BYTES, value=path[:60])


@rule(
    "CF-10", "error", "late",
    "pool: 参数说明; code: src/config_manager/backend_config.cpp",
    wrong='"configPath": " "',
    right='"configPath": ""',
)  # fmt: skip
def pool_path_is_a_path(view: View) -> Iterator[Fault]:
    """A blank, or a text with a NUL inside, counts as set and can be no file."""
    path = text(view.kv_pool, "configPath")
    if view.is_pool and (not path.strip() or "\0" in path):
        yield fault(B, K, "configPath")


@rule(
    "HC-34", "warning", "advice",
    "prefix: 限制与约束; service: ScheduleConfig参数说明",
    wrong='"cacheBlockSize": 64   (with pooling)',
    right='"cacheBlockSize": 128',
)  # fmt: skip
def pool_uses_the_usual_block_size(view: View) -> Iterator[Fault]:
    """All instances of one pool must share the block size."""
    size = integer(view.schedule, "cacheBlockSize")
    if view.is_pool and size is not None and size != USUAL_BLOCK_TOKENS:
        yield fault(B, C, "cacheBlockSize", usual=USUAL_BLOCK_TOKENS)


@rule(
    "HC-37", "info", "advice",
    "pool: 特性介绍; pool: 执行推理",
    wrong="pooling for requests that share nothing",
    right="pooling for multi-turn chats, agents, long shared system prompts",
)  # fmt: skip
def pool_pays_with_repeated_prefixes(view: View) -> Iterator[Fault]:
    """Worth knowing before measuring."""
    if view.is_pool:
        yield fault(B, K, "backend", block=integer(view.schedule, "cacheBlockSize") or USUAL_BLOCK_TOKENS)


@rule(
    "HC-77", "warning", "late",
    "pool: 执行推理; mempool: 二、准备Mooncake Client配置文件",
    wrong='"modelWeightPath": "/path/to/weights", "master_server_address": "master_server_ip:50051"',
    right='"modelWeightPath": "/data/weights/Qwen2.5-7B-Instruct", "master_server_address": "192.168.10.1:50051"',
)  # fmt: skip
def placeholders_are_filled_in(view: View) -> Iterator[Fault]:
    """Words left over from a guide."""
    places: list[tuple[tuple[str | int, ...], str]] = [((B, K, "configPath"), text(view.kv_pool, "configPath"))]
    places += [
        (view.model_path(i, "modelWeightPath"), text(model, "modelWeightPath")) for i, model in enumerate(view.models)
    ]
    for path, value in places:
        if _PLACEHOLDER.search(value) or _CJK.search(value):
            yield fault(*path, value=value)
