"""Writes docs/metrics.md and its Chinese twin from the table of metrics: ``make schemas``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mindie_kvpool_plugin.observability.metrics import METRICS, Metric
from mindie_kvpool_plugin.pools.memcache import codes as memcache
from mindie_kvpool_plugin.pools.mooncake import codes as mooncake

FOLDER = Path(__file__).parents[1] / "docs"

TEXTS = {
    "en": {
        "title": "# Metrics",
        "about": "Generated from `mindie_kvpool_plugin/observability/metrics.py` (`make schemas`). Switched on by "
        '`"metrics": "http"` or `"file"` in the `kv_pool` section of the pool file; `mindie-kvpool stats` shows the '
        "same counts without it.\n\nEvery sample has the labels `role` (worker, scheduler, store), `rank` and "
        "`dp_rank`. Ranks of one tensor-parallel group see the same prompts: take the maximum "
        "over them where prompts and tokens are counted, and the sum where blocks and bytes are.",
        "head": "| metric | kind | unit | labels | who | meaning |",
        "codes": "## Codes in `mindie_kvpool_pool_errors_total`",
        "code": "| backend | code | meaning |",
        "local": "`local_dram` says `no_space` and `not_found`.",
    },
    "zh": {
        "title": "# 指标",
        "about": "由 `mindie_kvpool_plugin/observability/metrics.py` 生成（`make schemas`）。在池文件的 `kv_pool` 段用 "
        '`"metrics": "http"` 或 `"file"` 打开；不打开时 `mindie-kvpool stats` 也能看到同样的计数。\n\n'
        "每个样本都有标签 `role`（worker、scheduler、store）、`rank` 和 `dp_rank`。"
        "同一张量并行组的各 rank 处理相同的提示词："
        "统计提示词和 token 时取其最大值，统计块和字节时求和。",
        "head": "| 指标 | 类型 | 单位 | 标签 | 角色 | 含义 |",
        "codes": "## `mindie_kvpool_pool_errors_total` 的错误码",
        "code": "| 后端 | 错误码 | 含义（英文） |",
        "local": "`local_dram` 只有 `no_space` 和 `not_found`。",
    },
}


def page(lang: str) -> str:
    """The page in a language."""
    texts = TEXTS[lang]
    return "\n".join(
        [
            *(texts["title"], "", texts["about"], "", texts["head"], "| --- | --- | --- | --- | --- | --- |"),
            *(_row(metric, lang) for metric in METRICS),
            *("", texts["codes"], "", texts["local"], "", texts["code"], "| --- | --- | --- |", *_codes(), ""),
        ]
    )


def _row(metric: Metric, lang: str) -> str:
    labels = ", ".join(_label(metric, name) for name in metric.labels)
    meaning = metric.en if lang == "en" else metric.zh
    roles = ", ".join(sorted(metric.roles, reverse=True))
    return f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {roles} | {meaning} |"


def _label(metric: Metric, name: str) -> str:
    if isinstance(metric.source, str):
        return f"`{name}`"
    return f"`{name}`: " + ", ".join(metric.source)


def _codes() -> Iterator[str]:
    for backend, labels in (("mooncake", mooncake.labels()), ("memcache", memcache.labels())):
        yield from (f"| {backend} | `{label}` | {meaning} |" for label, meaning in labels.items())


def files() -> dict[Path, str]:
    """Both pages."""
    return {FOLDER / "metrics.md": page("en"), FOLDER / "metrics.zh.md": page("zh")}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
