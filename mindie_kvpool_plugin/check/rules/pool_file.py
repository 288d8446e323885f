"""The content of the pool file, judged together with config.json."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.check.findings import Elsewhere, pointer
from mindie_kvpool_plugin.check.follow import OtherFile
from mindie_kvpool_plugin.check.rules.modes import active_modes, roles
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, K, View, integer, text, worker_integer
from mindie_kvpool_plugin.options.mooncake import SMALLEST_SEGMENT_BYTES
from mindie_kvpool_plugin.options.pool_file import no_meeting_place
from mindie_kvpool_plugin.options.problems import Kind
from mindie_kvpool_plugin.options.records import KvPoolOptions, MooncakeOptions, defaults
from mindie_kvpool_plugin.options.sizes import parse_size

_PLACEHOLDER = re.compile(r"master_server|your[_-]|<[^>]*>|xxx|_ip\b", re.IGNORECASE)

AT = (B, K, "configPath")
SIZES = ("global_segment_size", "local_buffer_size")


def pool_value(view: View) -> dict[str, Any] | None:
    """The pool file as an object, when pooling is on and it could be read."""
    pool = view.followed.pool
    return pool.value if view.is_pool and pool is not None and isinstance(pool.value, dict) else None


def at_key(pool: OtherFile, *path: str) -> Elsewhere:
    """The place of a key in the pool file."""
    document = pool.document
    span = document.span(pointer(*path)) if document is not None and document.value is not None else None
    if document is None or span is None:
        return Elsewhere(str(pool.path), pointer=pointer(*path))
    line, column = document.line_column(span[0])
    excerpt = document.excerpt(line, column)[0]
    return Elsewhere(str(pool.path), line, column, excerpt, pointer(*path), max(1, span[1] - span[0]))


def refused(view: View, kind: Kind) -> Iterator[Fault]:
    """What the plugin's own reading of the pool file refuses for a reason, at its place there."""
    for problem in view.pool_problems:
        if problem.kind == kind and view.followed.pool is not None:
            place = at_key(view.followed.pool, *problem.path)
            yield fault(*AT, place=place, severity="error", value=problem.value, what=problem.what, fix=problem.fix)


@rule(
    "CF-23", "error", "late",
    "mempool: 二、准备Mooncake Client配置文件; code: mindie_llm/text_generator/mempool/mooncake_mempool.py",
    wrong="local_hostname: 192.168.10.11",
    right='{"local_hostname": "192.168.10.11", ...}',
)  # fmt: skip
def pool_file_is_json(view: View) -> Iterator[Fault]:
    """YAML and ini files, which other software of the field takes."""
    pool = view.followed.pool
    if pool is not None and pool.format and view.is_pool:
        excerpt = pool.document.excerpt(1, 1)[0] if pool.document is not None else ""
        yield fault(*AT, place=Elsewhere(str(pool.path), 1, 1, excerpt), format=pool.format)


def ranks_on_node(view: View) -> int:
    """Ranks of this node: each has its own segment."""
    world = worker_integer(view.models[0], "worldSize") if view.models else None
    instances = integer(view.backend, "modelInstanceNumber", 1) or 1
    return max(world or 1, 1) * max(min(instances, 10), 1)


@rule(
    "KP-03", "error", "silent",
    "readme: Use it on an Atlas server",
    wrong='kv_pool.json: {"local_hostname": ..., "master_server_address": ...}',
    right='kv_pool.json: {"local_hostname": ..., "master_server_address": ..., "kv_pool": {}}',
)  # fmt: skip
def kv_pool_needs_its_section(view: View) -> Iterator[Fault]:
    """The scheduler sees only the pool file: without the section it asks the host's own client."""
    value = pool_value(view)
    if value is not None and KV_POOL in view.words and KV_POOL not in value:
        yield fault(*AT, file=str(view.followed.pool.path) if view.followed.pool else "")


@rule(
    "KP-04", "error", "silent",
    "readme: Use it on an Atlas server",
    wrong='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache\\"}", and a kv_pool section in the pool file',
    right='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}"',
)  # fmt: skip
def section_needs_the_word(view: View) -> Iterator[Fault]:
    """Scheduler and worker would use different keys: never a hit."""
    value = pool_value(view)
    is_decode = view.is_dmi and not view.is_prefix
    if value is not None and KV_POOL in value and KV_POOL not in view.words and not is_decode:
        yield fault(*view.plugins_path())


@rule(
    "KP-06", "error", "late",
    "readme: Options of the `kv_pool` section",
    wrong='"kv_pool": {"agreement": "auto"}   (several nodes)',
    right='"kv_pool": {"agreement": "tcp://192.168.10.1:18888"}',
)  # fmt: skip
def nodes_agree_over_tcp(view: View) -> Iterator[Fault]:
    """Ranks of one server meet through a file; those of several nodes or servers need an address."""
    value = pool_value(view)
    section = (value or {}).get(KV_POOL)
    is_auto = isinstance(section, dict) and section.get("agreement", KvPoolOptions().agreement) == "auto"
    if not is_auto or KV_POOL not in view.words or view.followed.pool is None:
        return
    place = at_key(view.followed.pool, KV_POOL, "agreement")
    if view.is_multi_node:
        yield fault(*AT, place=place)
    elif "pd_prefill" in roles(view) and "dp_servers" in active_modes(view):
        problem = no_meeting_place("auto")
        yield fault(*AT, variant="servers", place=place, what=problem.what, fix=problem.fix)


@rule(
    "KP-07", "error", "late",
    "readme: Use it on an Atlas server",
    wrong='"use_ascend_direct": false',
    right='"use_ascend_direct": true',
)  # fmt: skip
def ascend_direct_is_on(view: View) -> Iterator[Fault]:
    """Mooncake 0.3.13 has no other path; and a text is always true for the host."""
    value, pool = pool_value(view), view.followed.pool
    if value is None or pool is None or text(view.kv_pool, "backend") != "mooncake":
        return
    yield from refused(view, "direct")
    if value.get("use_ascend_direct") is False and KV_POOL not in value:
        yield fault(*AT, variant="host", severity="warning", place=at_key(pool, "use_ascend_direct"))


@rule(
    "KP-08", "error", "late",
    "code: mindie_llm/text_generator/mempool/mooncake_mempool.py",
    wrong='"protocol": "tcp", "local_buffer_size": "1GB"   (no kv_pool section)',
    right='"protocol": "ascend", "local_buffer_size": 1073741824',
)  # fmt: skip
def host_pool_takes_fewer_values(view: View) -> Iterator[Fault]:
    """What the kv_pool plugin accepts and the host's own pool client does not."""
    value, pool = pool_value(view), view.followed.pool
    if value is None or pool is None or KV_POOL in value or text(view.kv_pool, "backend") != "mooncake":
        return
    protocol = value.get("protocol")
    if isinstance(protocol, str) and protocol.strip().lower() in {"tcp", "rdma"}:
        yield fault(*AT, variant="protocol", place=at_key(pool, "protocol"), found=protocol)
    if isinstance(value.get("local_buffer_size"), str):
        yield fault(*AT, variant="buffer", place=at_key(pool, "local_buffer_size"))


@rule(
    "HC-51", "warning", "late",
    "mempool: 二、准备Mooncake Client配置文件; code: mindie_llm/text_generator/mempool/mooncake_mempool.py",
    wrong='8 ranks, "global_segment_size": "128GB" on a machine with 1 TB',
    right='8 ranks, "global_segment_size": "64GB"',
)  # fmt: skip
def pool_fits_into_memory(view: View) -> Iterator[Fault]:
    """Sizes are per rank: the node needs ranks times segment and buffer."""
    value, pool = pool_value(view), view.followed.pool
    if value is None or pool is None or text(view.kv_pool, "backend") != "mooncake":
        return
    sizes = [parse_size(value.get(key, defaults(MooncakeOptions)[key])) for key in SIZES]
    free = view.followed.free_memory_bytes
    if free is None or None in sizes:
        return
    ranks = ranks_on_node(view)
    needed = ranks * sum(size or 0 for size in sizes)
    if needed > free:
        severity = "warning" if view.situation.on_server else "info"
        yield fault(
            *AT,
            severity=severity,
            place=at_key(pool, "global_segment_size"),
            ranks=ranks,
            needed=f"{needed / 2**30:.1f}",
            free=f"{free / 2**30:.1f}",
        )


@rule(
    "KP-10", "warning", "late",
    "mempool: 二、准备Mooncake Client配置文件",
    wrong='"master_server_address": "master_server_ip:50051"',
    right='"master_server_address": "192.168.10.1:50051"',
)  # fmt: skip
def pool_file_placeholders_are_filled_in(view: View) -> Iterator[Fault]:
    """Words left over from a guide, in the pool file."""
    value, pool = pool_value(view), view.followed.pool
    for key, found in list((value or {}).items())[:50]:
        if pool is not None and isinstance(found, str) and _PLACEHOLDER.search(found):
            yield fault(*AT, place=at_key(pool, key), key=key[:40], found=found[:60])


@rule(
    "KP-11", "warning", "late",
    "mempool: 二、准备Mooncake Client配置文件; code: mindie_llm/text_generator/mempool/mooncake_mempool.py",
    wrong='"global_segment_size": 1048576',
    right='"global_segment_size": "4GB"',
)  # fmt: skip
def segment_is_large_enough(view: View) -> Iterator[Fault]:
    """Mooncake refuses a segment below 16 MiB; 0 is a client without a segment."""
    value, pool = pool_value(view), view.followed.pool
    if value is None or pool is None or text(view.kv_pool, "backend") != "mooncake":
        return
    yield from refused(view, "segment")
    size = parse_size(value.get("global_segment_size"))
    if KV_POOL not in value and size is not None and 0 < size < SMALLEST_SEGMENT_BYTES:
        yield fault(*AT, variant="host", place=at_key(pool, "global_segment_size"), size=size)


@rule(
    "KP-16", "info", "advice",
    "readme: Options of the `kv_pool` section",
    wrong='"global_segment_size": 0   (and no store runs)',
    right='"global_segment_size": "20GB", or 0 beside mindie-kvpool store',
)  # fmt: skip
def somebody_gives_memory(view: View) -> Iterator[Fault]:
    """With 0 the pool's memory is that of stores, and then it outlives the engines."""
    value, pool = pool_value(view), view.followed.pool
    if value is None or pool is None or text(view.kv_pool, "backend") != "mooncake":
        return
    if parse_size(value.get("global_segment_size")) == 0:
        yield fault(*AT, place=at_key(pool, "global_segment_size"))


@rule(
    "KP-12", "error", "late",
    "readme: Use it on an Atlas server",
    wrong='"backend": "unifiedcache", and a kv_pool section in the pool file',
    right='"backend": "mooncake"',
)  # fmt: skip
def plugin_knows_the_backend(view: View) -> Iterator[Fault]:
    """The host's own client takes more backends than the kv_pool plugin has."""
    for problem in view.pool_problems:
        if KV_POOL in view.words and problem.kind == "backend":
            yield fault(B, K, "backend", what=problem.what, fix=problem.fix)


@rule(
    "KP-13", "error", "late",
    "readme: Options of the `kv_pool` section",
    wrong='"protocol": "ascend", "kv_pool": {"verify_payload": true}',
    right='"kv_pool": {"verify_payload": true, "staging": "on"}',
)  # fmt: skip
def somebody_can_read_what_is_verified(view: View) -> Iterator[Fault]:
    """With protocol ascend, and with MemCache, blocks travel straight between device memory and pool."""
    yield from refused(view, "payload")
