"""A plan for people: tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.options.sizes import UNITS, size_text

if TYPE_CHECKING:
    from mindie_kvpool_plugin.kv_shape import KvShape
    from mindie_kvpool_plugin.planning.curve import Curve, Point
    from mindie_kvpool_plugin.planning.plan import Plan
    from mindie_kvpool_plugin.planning.sizes import Sizes
    from mindie_kvpool_plugin.planning.worth import Worth

BAR_WIDTH, BAR_WIDTH_WITH_DISK = 20, 13
SIZE_KEYS = ("global_segment_size", "ock.mmc.local_service.dram.size")
"""Of a rank's part of the pool: Mooncake's, MemCache's."""
Row = tuple[str, str]


def show(plan: Plan, lang: Language) -> None:
    """Print it."""
    console = Console()
    for title, rows in (("plan.cache", _cache(plan, lang)), ("plan.pool", _pool(plan, lang))):
        table = Table(title=words(title, lang), title_justify="left", show_header=False)
        table.add_column("", overflow="fold")
        table.add_column("", overflow="fold", justify="right")
        for row in rows:
            table.add_row(*row)
        if table.row_count:
            console.print(table)
    if plan.curve is not None:
        console.print(_curve_table(plan, plan.curve, lang))
        console.print(_admission_table(plan.curve, lang))
    for line in _sentences(plan, lang):
        console.print(f"- {line}", soft_wrap=True, highlight=False, markup=False)


def _cache(plan: Plan, lang: Language) -> Iterator[Row]:
    instance = plan.instance
    if instance is not None:
        layout, size = instance.layout, instance.block_size
        yield words("plan.shape", lang), _shape(instance.shape, lang)
        yield words("plan.layout", lang), f"tp {layout.tp}, dp {layout.dp}, cp {layout.cp}, sp {layout.sp}"
        yield words("plan.block_size", lang), f"{size:,}"
        rank, pool = instance.rank_block_bytes, instance.pool_block_bytes
        yield words("plan.rank_bytes", lang), f"{rank:,} B / {rank / size:,.0f} B"
        yield words("plan.pool_bytes", lang, shards=instance.shards), f"{pool:,} B / {pool / size:,.0f} B"
        copies = layout.tp * rank
        if copies > pool:
            yield words("plan.copies", lang), f"{copies:,} B"
    if plan.device_blocks is not None:
        yield words("plan.device_blocks", lang), f"{plan.device_blocks:,}"


def _shape(shape: KvShape, lang: Language) -> str:
    kind = words("plan.latent" if shape.is_latent else "plan.kv_heads", lang, heads=shape.kv_heads)
    third = words("plan.index", lang, elements=shape.index) if shape.index else ""
    nz = ", NZ" if shape.is_nz else ""
    return f"{shape.layers} x {kind}, {shape.key} + {shape.value}{third}, {shape.dtype}{nz}"


def _pool(plan: Plan, lang: Language) -> Iterator[Row]:
    found = plan.sizes
    if found is None:
        return
    yield words("plan.nodes", lang), f"{found.nodes}"
    yield words("plan.pool_memory", lang), size_text(found.pool_bytes)
    yield words("plan.pool_blocks", lang), f"{found.pool_blocks:,}"
    if found.disk_blocks:
        yield words("plan.disk_blocks", lang), f"{found.disk_blocks:,}"
    is_memcache = plan.instance is not None and plan.instance.backend == "memcache"
    yield SIZE_KEYS[is_memcache], size_text(found.segment) if found.segment else "0"
    if found.store:
        yield words("plan.store_memory", lang), size_text(found.store)
    if not is_memcache:
        yield "local_buffer_size", size_text(found.buffer)
    if found.fraction is not None:
        yield words("plan.links", lang), f"{found.link_bytes // UNITS['mb']}MB"
        yield words("plan.relay", lang), f"{found.relay_bytes // UNITS['mb']}MB"
        yield "NPU_MEMORY_FRACTION", f"{found.fraction:.2f}"


def _curve_table(plan: Plan, curve: Curve, lang: Language) -> Table:
    title = words("plan.curve", lang, requests=f"{curve.requests:,}", tokens=f"{curve.prompt_tokens:,}")
    table = Table(title=title, title_justify="left")
    disk = ["disk"] if curve.disk_blocks else []
    for name in ("blocks", "hits", "device", "memory", *disk):
        table.add_column(words(f"plan.column_{name}", lang), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("")
    top = max(curve.repeated, *(point.hits for point in curve.points), 1e-9)
    knee = curve.knee.blocks
    for point in curve.points:
        shares = [point.hits, point.device, point.memory, *([point.disk] if disk else [])]
        places = (("plan.knee", knee), ("plan.planned", plan.planned))
        marks = ", ".join(words(name, lang) for name, blocks in places if blocks == point.blocks)
        table.add_row(
            f"{point.blocks:,}",
            *(_percent(share) for share in shares),
            _bar(point, top, BAR_WIDTH_WITH_DISK if disk else BAR_WIDTH),
            marks,
        )
    table.caption = words("plan.all_repeats", lang, share=_percent(curve.repeated), blocks=f"{curve.distinct:,}")
    table.caption_justify = "left"
    return table


def _admission_table(curve: Curve, lang: Language) -> Table:
    table = Table(title=words("plan.admission", lang), title_justify="left")
    for name in ("blocks", "all_hits", "all_writes", "second_hits", "second_writes"):
        table.add_column(words(f"plan.column_{name}", lang), justify="right")
    for every, second in zip(curve.points, curve.second_use, strict=True):
        table.add_row(
            f"{every.blocks:,}", _percent(every.hits), f"{every.writes:,}", _percent(second.hits), f"{second.writes:,}"
        )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _bar(point: Point, top: float, width: int) -> str:
    """Device, memory and disk in this order, against the best there is."""
    parts = zip("░█▒", (point.device, point.memory, point.disk), strict=True)
    return "".join(mark * round(width * share / top) for mark, share in parts)


def _sentences(plan: Plan, lang: Language) -> Iterator[str]:
    if plan.worth is not None and plan.curve is not None:
        ranks = plan.instance.ranks_of_server if plan.instance is not None else 1
        yield _verdict(plan.worth, plan.curve.at(plan.planned or 0), ranks, lang)
        yield from _assumptions(plan.worth, lang)
    if plan.curve is not None:
        knee = plan.curve.knee
        yield words("plan.knee_is", lang, size=_size(plan, knee, lang), hits=_percent(knee.hits))
        rules = plan.rules
        rule = "plan.rules_lru" if rules.eviction == "lru" else "plan.rules_mooncake"
        yield words(rule, lang, watermark=rules.watermark, ratio=rules.ratio)
        if rules.at_overwrite:
            yield words("plan.rules_overwrite", lang)
        yield words("plan.second_use_memory", lang)
        if plan.curve.too_long:
            yield words("plan.too_long", lang, count=plan.curve.too_long)
    yield from (words(name, lang) for name in plan.remarks)
    if plan.device_source:
        yield words(plan.device_source, lang)
    if plan.sizes is not None:
        if plan.memory_source:
            yield words(plan.memory_source, lang)
        yield from _where(plan.sizes, lang)
        if plan.sizes.is_beyond_links:
            yield words("plan.many_dies", lang)


def _where(found: Sizes, lang: Language) -> Iterator[str]:
    """Where the memory lies, and what a restart loses."""
    if not found.store:
        yield words("plan.in_ranks", lang)
        if found.disk_blocks:
            yield words("plan.disk_in_stores", lang)
        return
    disk = f" --ssd DIR --ssd-size {size_text(found.disk)}" if found.disk else ""
    yield words("plan.in_stores", lang, command=f"mindie-kvpool store CONFIG --size {size_text(found.store)}{disk}")


def _size(plan: Plan, point: Point, lang: Language) -> str:
    """Blocks, and the memory they take if that is known."""
    blocks = f"{point.blocks:,}"
    if plan.instance is None:
        return words("plan.so_many", lang, blocks=blocks)
    memory = f"{point.blocks * plan.instance.pool_block_bytes / UNITS['gb']:,.0f} GB"
    return words("plan.so_large", lang, blocks=blocks, memory=memory)


def _verdict(worth: Worth, point: Point, ranks: int, lang: Language) -> str:
    return words(
        f"plan.verdict_{worth.verdict}",
        lang,
        gain=f"{100 * worth.gain:.1f}",
        device=f"{100 * point.device:.1f}",
        even=_rate(worth.break_even),
        server=_rate(ranks * worth.break_even),
        rate=_rate(worth.rank_rate or 0.0),
        saved=f"{100 * (worth.saved_compute or 0.0):.1f}",
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s"


def _assumptions(worth: Worth, lang: Language) -> Iterator[str]:
    key = "plan.rate_assumed" if worth.is_assumed else "plan.rate_given"
    yield words(key, lang, rate=f"{worth.prefill_rate:,.0f}")
