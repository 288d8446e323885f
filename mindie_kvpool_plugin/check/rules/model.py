"""What depends on the model: its weights, its family, and options below ``models``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mindie_kvpool_plugin.check.rules.family import Family, family
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, View, integer, section, text, worker_integer
from mindie_kvpool_plugin.check.schema import profiles

_QUANTISED_OK = {"", "float", "w8a8", "w8a8_dynamic", "w4a8", "w4a8_dynamic", "w8a8_pdmix", "w8a8sc", "w8a8s"}
# named by the feature matrix, but not by the prefix-cache page, per family
_QUANTISED_MATRIX = {"w8a16", "c8", "w8a8_fa3", "fa3"}
_WRONG_MODEL_KEYS = re.compile(r"deepseek[-_.]?(?:r1|v3\.?1|v3_1|r1_w8a8)", re.IGNORECASE)


@rule(
    "HC-12", "error", "advice",
    "prefix: 限制与约束; lora: 限制与约束",
    wrong='"LoraModules": [...] with prefix_cache',
    right='prefix_cache without LoRA, or LoRA without prefix_cache',
)  # fmt: skip
def prefix_cache_excludes_lora(view: View) -> Iterator[Fault]:
    """Blocks of different adapters would share a hash."""
    if not view.is_prefix:
        return
    severity = "warning" if KV_POOL in view.words else None
    if view.has_lora:
        yield fault(*view.lora_path, variant="pool" if severity else "", severity=severity)
        return
    for index, _ in enumerate(view.models):
        file = view.lora_file(index)
        if file is not None:
            yield fault(*view.model_path(index, "modelWeightPath"), variant="file", severity=severity, file=str(file))


@rule(
    "HC-20", "warning", "advice",
    "prefix: 限制与约束",
    wrong="prefix_cache with a model that is on no list",
    right="prefix_cache with Qwen2, Qwen2.5, Qwen3, DeepSeek R1, V3, V3.1",
)  # fmt: skip
def prefix_cache_lists_few_models(view: View) -> Iterator[Fault]:
    """The documents name the models it was tested with."""
    for index, _ in enumerate(view.models):
        kind = family(view, index)
        if view.is_prefix and kind.name in {"other", "qwen_moe"}:
            yield fault(*view.model_path(index, "modelWeightPath"), family=kind.config.get("model_type", kind.name))


@rule(
    "HC-21", "error", "wrong",
    "features: DeepSeek 模型; pool: 限制与约束",
    wrong="pooling with DeepSeek V3.2",
    right="DeepSeek V3.2 with prefix_cache and without a pool",
)  # fmt: skip
def deepseek_v32_has_no_pool(view: View) -> Iterator[Fault]:
    """Its third cache is not pooled by the host; kv_pool stores it."""
    for index, _ in enumerate(view.models):
        kind = family(view, index)
        if view.is_pool and kind.name == "deepseek_v32" and KV_POOL in view.words:
            yield fault(B, "kvPoolConfig", "backend", variant="plugin", severity="warning", outcome="advice")
        elif view.is_pool and kind.name == "deepseek_v32":
            yield fault(B, "kvPoolConfig", "backend", severity="warning" if kind.is_guess else None)


@rule(
    "HC-22", "error", "late",
    "prefix: 参数说明; code: examples/atb_models/atb_llm/models/deepseekv2/flash_causal_deepseekv2.py",
    wrong='"models": {"deepseekv2": {"kv_cache_options": {"enable_nz": false}}}',
    right='"models": {"deepseekv2": {"kv_cache_options": {"enable_nz": true}}}',
)  # fmt: skip
def deepseek_needs_nz(view: View) -> Iterator[Fault]:
    """The model class raises when prefix cache meets an ND cache."""
    if not view.words & {"prefix_cache", "splitfuse"}:
        return
    for index, model in enumerate(view.models):
        kind = family(view, index)
        if kind.is_deepseek and model.get("backendType", "atb") == "atb" and not _has_nz(view, index, kind):
            yield fault(*view.model_path(index, "models"), severity="warning" if kind.is_guess else None)


def _has_nz(view: View, index: int, kind: Family) -> bool:
    quantised = kind.config.get("quantization_config")
    if isinstance(quantised, dict) and quantised.get("fa_quant_type") is not None:
        return True  # the host switches NZ on by itself
    models = section(view.models[index], "models")
    for name in ("deepseekv2", "deepseek_v2", "deepseek_v3", "deepseekv3"):
        value = section(models, name, "kv_cache_options").get("enable_nz")
        if value is True or (isinstance(value, str) and value.lower() == "true"):
            return True
    return False


@rule(
    "HC-23", "warning", "advice",
    "prefix: 参数说明",
    wrong='"models": {"qwen2": {"kv_cache_options": {"enable_nz": true}}}',
    right='"models": {"qwen2": {"kv_cache_options": {"enable_nz": false}}}',
)  # fmt: skip
def only_deepseek_uses_nz(view: View) -> Iterator[Fault]:
    """The documents say off for all others."""
    for index, _ in enumerate(view.models):
        kind = family(view, index)
        on = view.is_option_on(index, "kv_cache_options", "enable_nz")
        if on and not kind.is_deepseek and kind.name != "unknown":
            yield fault(*view.model_path(index, "models"), family=kind.config.get("model_type", kind.name))


@rule(
    "HC-24", "warning", "silent",
    "prefix: 参数说明; model: models参数",
    wrong='"models": {"deepseek_r1": {"kv_cache_option": {"enable_nz": true}}}',
    right='"models": {"deepseekv2": {"kv_cache_options": {"enable_nz": true}}}',
    fix="rename", explains_key=True,
)  # fmt: skip
def model_options_have_the_right_names(view: View) -> Iterator[Fault]:
    """A wrong name is kept and read by nothing."""
    for index, model in enumerate(view.models):
        if isinstance(model.get("models"), str):
            yield fault(*view.model_path(index, "models"), variant="text")
        for name, options in list(section(model, "models").items())[:20]:
            if _WRONG_MODEL_KEYS.fullmatch(name):
                yield fault(*view.model_path(index, "models", name), key=name, meant="deepseekv2")
            if isinstance(options, dict) and "kv_cache_option" in options:
                path = view.model_path(index, "models", name, "kv_cache_option")
                yield fault(*path, key="kv_cache_option", meant="kv_cache_options")


@rule(
    "HC-25", "warning", "advice",
    "prefix: 限制与约束; features: 特性叠加矩阵",
    wrong="prefix_cache with W16A16SC weights",
    right="prefix_cache with float, W8A8 or W4A8 weights",
)  # fmt: skip
def prefix_cache_lists_few_quantisations(view: View) -> Iterator[Fault]:
    """The documents name the weight formats it was tested with."""
    for index, _ in enumerate(view.models):
        found = family(view, index).config.get("quantize")
        if view.is_prefix and isinstance(found, str) and found.lower() not in _QUANTISED_OK:
            severity = "info" if found.lower() in _QUANTISED_MATRIX else "warning"
            yield fault(*view.model_path(index, "modelWeightPath"), severity=severity, quantise=found[:30])


@rule(
    "HC-26", "warning", "advice",
    "features: Qwen 模型; prefix: 限制与约束",
    wrong="Qwen with pooling and splitfuse",
    right="Qwen with pooling and prefix_cache",
)  # fmt: skip
def qwen_pools_with_little_else(view: View) -> Iterator[Fault]:
    """The feature matrix says no, single pages say yes; kv_pool goes with the plugins, as its own table says."""
    if not view.is_pool:
        return
    plugins = set() if KV_POOL in view.words else {"splitfuse", "la", "memory_decoding"}
    for index, _ in enumerate(view.models):
        if not family(view, index).is_qwen:
            continue
        features = sorted(plugins & view.words)
        if view.is_option_on(index, "stream_options", "micro_batch"):
            features.append("micro_batch")
        slo = integer(view.schedule, "stageSelectPolicy") == 2 or view.schedule.get("dynamicBatchSizeEnable") is True
        features += ["SLO"] if slo else []
        for feature in features:
            yield fault(B, "kvPoolConfig", "backend", feature=feature)


@rule(
    "HC-27", "error", "run",
    "features: 特性叠加矩阵",
    wrong='pooling, splitfuse and "sp": 8',
    right="pooling and sequence parallelism without splitfuse",
)  # fmt: skip
def splitfuse_and_sequence_parallel_do_not_pool(view: View) -> Iterator[Fault]:
    """The scheduler raises on a request of several sequences; the host's own pool is wrong without such, too."""
    for index, model in enumerate(view.models):
        size = (worker_integer(model, "sp") or 1) * (worker_integer(model, "cp") or 1)
        if not view.is_pool or "splitfuse" not in view.words or size <= 1:
            continue
        at = view.model_path(index, "plugin_params")
        if KV_POOL in view.words:
            yield fault(*at, variant="groups", severity="warning", size=size)
        else:
            yield fault(*at, size=size)


@rule(
    "HC-28", "warning", "advice",
    "features: DeepSeek 模型",
    wrong="DeepSeek with pooling and micro_batch",
    right="DeepSeek with pooling",
)  # fmt: skip
def deepseek_micro_batch_does_not_pool(view: View) -> Iterator[Fault]:
    """Crossed in the feature matrix."""
    for index, _ in enumerate(view.models):
        if (
            view.is_pool
            and family(view, index).is_deepseek
            and view.is_option_on(index, "stream_options", "micro_batch")
        ):
            yield fault(*view.model_path(index, "models"))


@rule(
    "HC-30", "warning", "advice",
    "prefix: 限制与约束",
    wrong='prefix_cache with "cp": 2, "sp": 8 and tool_call_options',
    right="prefix_cache and function calls without context parallelism",
)  # fmt: skip
def context_parallel_and_tools_do_not_share_prefixes(view: View) -> Iterator[Fault]:
    """Multi-turn function calls with CP and SP are documented as unsupported."""
    for index, model in enumerate(view.models):
        both = (worker_integer(model, "cp") or 1) > 1 and (worker_integer(model, "sp") or 1) > 1
        if view.is_prefix and both and view.option(index, "tool_call_options") is not None:
            yield fault(*view.model_path(index, "models"))


@rule(
    "HC-33", "warning", "advice",
    "prefix: 限制与约束",
    wrong="prefix_cache with rope_scaling on a host before 3.0.0.beta.2",
    right="a newer host, or no long sequences",
)  # fmt: skip
def old_hosts_exclude_long_sequences(view: View) -> Iterator[Fault]:
    """An exclusion of older documents."""
    for index, _ in enumerate(view.models):
        is_long = family(view, index).config.get("rope_scaling") is not None
        if view.is_prefix and is_long and profiles.is_before(view.situation.host_version, "3.0.0.beta.2"):
            yield fault(*view.model_path(index, "modelWeightPath"))


@rule(
    "HC-69", "warning", "advice",
    "service: ModelConfig参数说明",
    wrong='"npuMemSize": -1 with a multimodal model',
    right='"npuMemSize": 20',
)  # fmt: skip
def some_models_need_a_fixed_memory(view: View) -> Iterator[Fault]:
    """The share cannot be derived for these."""
    for index, model in enumerate(view.models):
        if integer(model, "npuMemSize") != -1:
            continue
        kind = str(family(view, index).config.get("model_type", ""))
        if re.search(r"vl|vision|llava|internvl|glm4v|audio|mllama", kind):
            yield fault(*view.model_path(index, "npuMemSize"), reason=kind[:30])
        elif view.is_dmi and text(model, "backendType") in {"torch", "ms"}:
            yield fault(*view.model_path(index, "npuMemSize"), reason=f"inferMode dmi, {model['backendType']}")
