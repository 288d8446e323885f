"""asyncWrite through the host's own pool client: what it restricts.

The kv_pool plugin writes with its own thread, so with it only the splitfuse rule is left: the
host tests that pair before any plugin is built.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindie_kvpool_plugin.check.rules.family import family
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import B, K, View, text

AT = (B, K, "asyncWrite")


@rule(
    "HC-13", "error", "late",
    "mempool: 限制与约束; code: examples/atb_models/atb_llm/models/qwen2/flash_causal_qwen2.py",
    wrong='"asyncWrite": true, "LoraModules": [...]',
    right='"asyncWrite": false',
)  # fmt: skip
def async_write_excludes_lora(view: View) -> Iterator[Fault]:
    """Qwen raises; the others are documented as unsupported."""
    if view.is_host_async and view.has_lora:
        yield fault(*AT)


@rule(
    "HC-14", "error", "late",
    "code: mindie_llm/text_generator/generator.py",
    wrong='"asyncWrite": true, "{\\"plugin_type\\":\\"prefix_cache,splitfuse\\"}"',
    right='"asyncWrite": false',
)  # fmt: skip
def async_write_excludes_splitfuse(view: View) -> Iterator[Fault]:
    """The host looks for the letters anywhere in plugin_params."""
    if view.is_async and any("splitfuse" in plugins.text for plugins in view.plugins):
        yield fault(*AT)


@rule(
    "HC-15", "error", "late",
    "mempool: 限制与约束; code: examples/atb_models/atb_llm/models/qwen2/flash_causal_qwen2.py",
    wrong='"asyncWrite": true, "stream_options": {"micro_batch": true}',
    right='"stream_options": {"micro_batch": false}',
)  # fmt: skip
def async_write_excludes_micro_batch(view: View) -> Iterator[Fault]:
    """Qwen raises; DeepSeek is documented as unsupported."""
    for index, _ in enumerate(view.models):
        if view.is_host_async and view.is_option_on(index, "stream_options", "micro_batch"):
            yield fault(*AT)


@rule(
    "HC-16", "info", "advice",
    "code: examples/atb_models/atb_llm/models/qwen2/flash_causal_qwen2.py",
    wrong="asyncWrite with Qwen, when prefill time matters most",
    right="the kv_pool plugin, which leaves the fused operators on",
)  # fmt: skip
def async_write_costs_qwen_fused_operators(view: View) -> Iterator[Fault]:
    """The host turns faster operators off."""
    for index, _ in enumerate(view.models):
        if view.is_host_async and family(view, index).is_qwen:
            yield fault(*AT)


@rule(
    "HC-17", "error", "wrong",
    "mempool: 限制与约束; code: examples/atb_models/atb_llm/models/base/graph_manager/mem_pool_graph_wrapper.py",
    wrong='"asyncWrite": true with Llama',
    right='"asyncWrite": false',
)  # fmt: skip
def async_write_knows_few_models(view: View) -> Iterator[Fault]:
    """Other models never signal that a layer is written: each prefill would wait."""
    for index, _ in enumerate(view.models):
        kind = family(view, index)
        if view.is_host_async and kind.name in {"other", "qwen_moe", "deepseek_v32"}:
            yield fault(
                *AT, severity="warning" if kind.is_guess else None, family=kind.config.get("model_type", kind.name)
            )


@rule(
    "HC-18", "error", "run",
    "code: examples/atb_models/atb_llm/models/base/graph_manager/mem_pool_graph_wrapper.py",
    wrong='"asyncWrite": true, "backendType": "torch"',
    right='"backendType": "atb"',
)  # fmt: skip
def async_write_needs_atb(view: View) -> Iterator[Fault]:
    """Only the ATB wrapper signals."""
    for index, model in enumerate(view.models):
        if view.is_host_async and text(model, "backendType") in {"torch", "ms"}:
            yield fault(*view.model_path(index, "backendType"))


@rule(
    "HC-19", "warning", "advice",
    "mempool: 限制与约束; features: 特性叠加矩阵",
    wrong='"asyncWrite": true with mtp',
    right='"asyncWrite": true with prefix_cache alone',
)  # fmt: skip
def async_write_is_tested_with_little_else(view: View) -> Iterator[Fault]:
    """The documents list what was tested."""
    extra = sorted(view.words - {"prefix_cache", "splitfuse"})
    for index, _ in enumerate(view.models):
        kind = family(view, index)
        if view.is_host_async and extra and (kind.is_deepseek or kind.name == "qwen"):
            yield fault(*AT, words=", ".join(word[:20] for word in extra[:5]))
