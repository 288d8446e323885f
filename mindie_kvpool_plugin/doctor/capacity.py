"""Probes of the pool's memory: how much, whose, how full, and whether its holders are alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.lines import Line, good, note, trouble, warning
from mindie_kvpool_plugin.options.records import MIB
from mindie_kvpool_plugin.pools.mooncake.admin import Segment
from mindie_kvpool_plugin.pools.mooncake.limits import P2P_HANDSHAKE
from mindie_kvpool_plugin.pools.mooncake.peers import ANSWER_TIMEOUT_S, ask

FULL = 0.99  # eviction keeps a pool below its watermark; above, it does not come to it
MAX_HOSTS = 8


def capacity(case: Case) -> Iterator[Line]:
    """Total and used, per host, and the holders that do not answer."""
    if case.mooncake is not None:
        yield note("capacity.in_ranks" if case.mooncake.global_segment_size else "capacity.in_stores")
    if case.segments is None:
        yield note("capacity.unknown")
        return
    if not case.segments:
        yield warning("capacity.empty")
        return
    total, used = sum(each.size_bytes for each in case.segments), sum(each.used_bytes for each in case.segments)
    figures = {
        "used": _mib(used),
        "total": _mib(total),
        "percent": f"{100 * used / max(1, total):.1f}",
        "segments": len(case.segments),
        "refused": int(case.metrics.get("master_put_start_alloc_failures_total", 0)),
    }
    yield good("capacity.has_room", **figures) if used < FULL * total else warning("capacity.full", **figures)
    yield note("capacity.hosts", hosts=_hosts(case.segments))
    for segment in not_answering(case):
        yield trouble("capacity.dead", segment=segment.name, endpoint=segment.endpoint, size=_mib(segment.size_bytes))


def not_answering(case: Case) -> list[Segment]:
    """Segments of which nobody answers at the place where their bytes are moved; only tcp clients can be asked."""
    options = case.mooncake
    if options is None or options.protocol != "tcp" or options.metadata_server != P2P_HANDSHAKE:
        return []
    segments = [each for each in case.segments or () if each.endpoint]
    found = ask({each.endpoint for each in segments}, ANSWER_TIMEOUT_S)
    return [each for each in segments if found[each.endpoint] != "answers"]


def _hosts(segments: list[Segment]) -> str:
    """``host: segments (MiB)`` of the largest few."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for each in segments:
        host = each.name.rpartition(":")[0]
        sizes[host] += each.size_bytes
        counts[host] += 1
    told = [f"{host}: {counts[host]} ({_mib(size)} MiB)" for host, size in sizes.most_common(MAX_HOSTS)]
    return ", ".join(told) + (", ..." if len(sizes) > MAX_HOSTS else "")


def _mib(size: int) -> str:
    return f"{size / MIB:.0f}"
