"""Plugins that do not go together, and what excludes one of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, View, text

STEP_WORDS = ("mtp", "la", "memory_decoding", "splitfuse")
"""Plugins that decide which tokens a step computes."""


@rule(
    "HC-41", "error", "late",
    "async: 限制与约束; features: 特性叠加矩阵",
    wrong="export MINDIE_ASYNC_SCHEDULING_ENABLE=1   (with la or memory_decoding)",
    right="unset MINDIE_ASYNC_SCHEDULING_ENABLE",
)  # fmt: skip
def async_scheduling_excludes_parallel_decoding(view: View) -> Iterator[Fault]:
    """The worker raises on this pair."""
    both = sorted({"la", "memory_decoding"} & view.words)
    if both and view.situation.variable("MINDIE_ASYNC_SCHEDULING_ENABLE") == "1":
        yield fault(*view.plugins_path(), words=", ".join(both))


@rule(
    "HC-42", "warning", "advice",
    "features: 特性叠加矩阵; splitfuse: 限制与约束",
    wrong='"{\\"plugin_type\\":\\"la,memory_decoding\\"}"',
    right='"{\\"plugin_type\\":\\"la\\"}"',
)  # fmt: skip
def words_go_together(view: View) -> Iterator[Fault]:
    """Pairs the documents exclude; what kv_pool refuses of them is told by KP-14."""
    for one, other in combinations(STEP_WORDS, 2):
        if {one, other} <= view.words and KV_POOL not in view.words:
            yield fault(*view.plugins_path(), one=one, other=other)
    for word in STEP_WORDS if view.has_lora else ():
        if word in view.words and not _is_told_elsewhere(view, word):
            yield fault(*view.plugins_path(), one=word, other="LoRA")


def _is_told_elsewhere(view: View, word: str) -> bool:
    is_refused = KV_POOL in view.words and bool(support.refusals({word, "lora"}))
    return is_refused or (word == "splitfuse" and any(True for _ in _split_with_lora(view)))


@rule(
    "HC-43", "error", "late",
    "splitfuse: 限制与约束",
    wrong='"{\\"plugin_type\\":\\"splitfuse\\"}" with "LoraModules": [...]',
    right='"{\\"plugin_type\\":\\"splitfuse\\"}" without adapters',
)  # fmt: skip
def splitfuse_excludes_lora(view: View) -> Iterator[Fault]:
    """The worker raises on backendType atb when adapters are named at start; with kv_pool KP-14 tells it."""
    if KV_POOL not in view.words:
        yield from _split_with_lora(view)


def _split_with_lora(view: View) -> Iterator[Fault]:
    for index, model in enumerate(view.models):
        is_named = bool(view.deploy.get("LoraModules")) or view.lora_file(index) is not None
        if is_named and "splitfuse" in view.plugins[index].words and text(model, "backendType") == "atb":
            yield fault(*view.model_path(index, "plugin_params"))
