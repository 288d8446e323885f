"""What pooling may be combined with: one table that start-up, check, command line and README are made from.

A mode is something of MindIE-LLM that a configuration or a request can ask for.  ``works``: run on the host's own
Python code and on the simulated host, with hits, faults and not one wrong byte.  ``refused``: the worker does not
start and the check says so, with the same words; the reason lies in the host.  ``unproven``: nothing here speaks
against it, but it never ran, because it needs hardware or software that was not there.

Reasons and fixes are texts for people, in English and Chinese.  Nothing is imported here: everybody may read it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["works", "refused", "unproven"]
Language = Literal["en", "zh"]


@dataclass(frozen=True, slots=True)
class Text:
    """One statement in both languages."""

    en: str
    zh: str

    def __call__(self, lang: Language) -> str:
        """The statement in one of them."""
        return self.zh if lang == "zh" else self.en


@dataclass(frozen=True, slots=True)
class Mode:
    """One row.

    Attributes:
        key: short name, as ``host.modes`` and the check use it.
        title: what it is, with the name of its setting.
        status: whether pooling works with it.
        why: the reason of a refusal, or what is missing for a proof, or how it is pooled.
        fix: what to change when it is refused.
    """

    key: str
    title: Text
    status: Status
    why: Text
    fix: Text | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Two modes, or a mode and a pool backend, that differ from what each alone says.

    Attributes:
        keys: of the modes.
        status, why, fix: as of a mode.
    """

    keys: frozenset[str]
    status: Status
    why: Text
    fix: Text | None = None


def _mode(
    key: str, title: tuple[str, str], status: Status, why: tuple[str, str], fix: tuple[str, str] | None = None
) -> Mode:
    return Mode(key, Text(*title), status, Text(*why), Text(*fix) if fix else None)


def _pair(keys: str, status: Status, why: tuple[str, str], fix: tuple[str, str] | None = None) -> Pair:
    return Pair(frozenset(keys.split()), status, Text(*why), Text(*fix) if fix else None)


MODES = (
    _mode(
        "tp",
        ("tensor parallel (tp)", "张量并行（tp）"),
        "works",
        ("ranks with equal bytes (MLA, few KV heads) store them once", "字节相同的卡（MLA、KV 头少）只存一份"),
    ),
    _mode(
        "dp",
        ("data parallel (dp), one scheduler", "数据并行（dp），一个调度器"),
        "works",
        ("all ranks lower a hit alike", "所有卡一致地缩短命中"),
    ),
    _mode(
        "dp_servers",
        (
            "data parallel, a scheduler per rank (distributed_enable)",
            "数据并行，每个 dp 一个调度器（distributed_enable）",
        ),
        "works",
        ("on standard nodes; prefill nodes: see the pairs", "标准节点可用；Prefill 节点见组合"),
    ),
    _mode(
        "ep",
        ("expert parallel (moe_ep)", "专家并行（moe_ep）"),
        "unproven",
        ("it does not touch the KV cache; never run here", "不涉及 KV Cache；未在此运行"),
    ),
    _mode(
        "cp",
        ("context parallel (cp)", "上下文并行（cp）"),
        "works",
        ("each rank stores and loads the blocks it was dealt", "每张卡存取分给自己的块"),
    ),
    _mode(
        "sp",
        ("sequence parallel (sp)", "序列并行（sp）"),
        "works",
        ("each rank stores and loads the blocks it was dealt", "每张卡存取分给自己的块"),
    ),
    _mode(
        "mtp",
        ("multi-token prediction (plugin_type mtp)", "多 token 预测（plugin_type mtp）"),
        "works",
        ("the draft layer's cache travels with the others", "草稿层的缓存一同存取"),
    ),
    _mode(
        "la",
        ("lookahead decoding (plugin_type la)", "并行解码 la（plugin_type la）"),
        "works",
        ("tokens of the last step are stored one step later", "最后一步的 token 推迟一步存"),
    ),
    _mode(
        "memory_decoding",
        ("memory decoding (plugin_type memory_decoding)", "并行解码 memory_decoding"),
        "works",
        ("as without it", "与不使用时相同"),
    ),
    _mode(
        "splitfuse",
        ("SplitFuse (plugin_type splitfuse)", "SplitFuse（plugin_type splitfuse）"),
        "works",
        ("hits count as far as the first chunk reaches", "命中以第一个分块的长度为限"),
    ),
    _mode(
        "async_scheduling",
        ("asynchronous scheduling (MINDIE_ASYNC_SCHEDULING_ENABLE)", "异步调度（MINDIE_ASYNC_SCHEDULING_ENABLE）"),
        "works",
        ("a reload waits for the batch in flight", "加载等待在途批次结束"),
    ),
    _mode(
        "pd_prefill",
        ("PD disaggregation, prefill node", "PD 分离，Prefill 节点"),
        "works",
        ("blocks are stored when the decode node has pulled them", "Decode 节点拉取后存入"),
    ),
    _mode(
        "pd_decode",
        ("PD disaggregation, decode node", "PD 分离，Decode 节点"),
        "works",
        (
            "plugin_type kv_pool alone, as the host forbids prefix_cache there: answers are stored, so that the next "
            "turn's prefill hits them",
            "plugin_type 只写 kv_pool（宿主在此禁止 prefix_cache）：存入回答，供下一轮 Prefill 命中",
        ),
    ),
    _mode(
        "pd_flex",
        ("PD disaggregation, flex nodes and role switch", "PD 分离，Flex 节点与角色切换"),
        "works",
        ("what was pulled is stored like what was computed", "拉取的内容与计算的内容一样存入"),
    ),
    _mode(
        "layerwise",
        ("layerwise disaggregation (layerwiseDisaggregated)", "分层分离（layerwiseDisaggregated）"),
        "refused",
        (
            "edge and cloud run a batch's layers apart and could not agree on a hit; the host excludes prefix_cache",
            "边侧与云侧分别运行同一批次的各层，无法就命中达成一致；宿主也排除 prefix_cache",
        ),
        ("set layerwiseDisaggregated to false", "把 layerwiseDisaggregated 设为 false"),
    ),
    _mode(
        "multimodal",
        ("multimodal models", "多模态模型"),
        "refused",
        (
            "a block's tokens do not name its images: the host gives plugins placeholder tokens only",
            "块的 token 不能标识图像：宿主只给插件占位 token",
        ),
        ("remove kv_pool from plugin_type", "从 plugin_type 中去掉 kv_pool"),
    ),
    _mode(
        "lora",
        ("LoRA adapters", "LoRA 适配器"),
        "works",
        ("an adapter's content is part of its keys", "适配器内容是键的一部分"),
    ),
    _mode(
        "n",
        ("n and best_of", "n 与 best_of"),
        "works",
        ("prompt and first answer are stored", "存提示词与第一个回答"),
    ),
    _mode(
        "beam",
        ("beam search (use_beam_search)", "束搜索（use_beam_search）"),
        "works",
        ("the prompt is stored", "只存提示词"),
    ),
    _mode(
        "swap",
        ("swap preemption (maxPreemptCount)", "换出抢占（maxPreemptCount）"),
        "works",
        ("what comes back is known to be moved", "换入的块视为已移动"),
    ),
    _mode(
        "recompute",
        ("preemption by recomputation", "重计算抢占"),
        "works",
        ("blocks are stored before others take them", "块被他人占用前存入"),
    ),
    _mode(
        "recovery",
        ("recovery commands (device faults)", "故障恢复命令"),
        "works",
        ("nothing of ours touches a device that is repaired", "修复期间不读写设备"),
    ),
    _mode(
        "structured_output",
        ("structured output, function call", "结构化输出、函数调用"),
        "unproven",
        ("it does not touch the KV cache; never run here", "不涉及 KV Cache；未在此运行"),
    ),
    _mode(
        "quantised",
        ("W8A8, W4A8 and other quantised weights", "W8A8、W4A8 等量化权重"),
        "unproven",
        ("weights and quantisation are part of every key", "权重与量化方式是每个键的一部分"),
    ),
    _mode(
        "int8_kv",
        ("int8 KV cache", "KV Cache int8"),
        "works",
        ("also for some layers only", "也可只用于部分层"),
    ),
    _mode(
        "nz",
        ("NZ cache layout (enable_nz)", "NZ 缓存格式（enable_nz）"),
        "works",
        ("the layout is part of every key", "格式是每个键的一部分"),
    ),
    _mode(
        "sparse_index",
        ("sparse attention's index (DeepSeek V3.2)", "稀疏注意力索引（DeepSeek V3.2）"),
        "works",
        ("the third tensor of a layer travels with the others", "每层第三个张量一同存取"),
    ),
    _mode(
        "backend_torch",
        ("backendType torch", "backendType torch"),
        "unproven",
        ("its model wrapper is hooked, its graphs never ran here", "已挂接其模型封装；图未在此运行"),
    ),
    _mode(
        "300i",
        ("Atlas 300I Duo", "Atlas 300I Duo"),
        "unproven",
        ("no NPU was there", "没有 NPU"),
    ),
)
"""Everything of the host a user may ask whether pooling works with it."""

PAIRS = (
    _pair(
        "dp_servers pd_prefill",
        "refused",
        (
            "each rank is told how many tokens the others compute, hits subtracted; a lowered hit could not be told to "
            "ranks that run another batch",
            "每张卡都被告知其他卡要计算的 token 数（已减去命中）；缩短的命中无法告知运行其他批次的卡",
        ),
        (
            "set dp to 1, run without distributed_enable, or remove kv_pool from plugin_type",
            "把 dp 设为 1，或关闭 distributed_enable，或从 plugin_type 中去掉 kv_pool",
        ),
    ),
)
"""Combinations that differ from what their parts say."""

_MODE_BY_KEY = {mode.key: mode for mode in MODES}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a deployment cannot be pooled.

    Attributes:
        keys: the modes it asks for.
        title, why, fix: for people.
    """

    keys: frozenset[str]
    title: Text
    why: Text
    fix: Text

    def __call__(self, lang: Language = "en") -> str:
        """The whole sentence."""
        if lang == "zh":
            return f"kv_pool 不支持{self.title.zh}：{self.why.zh}；{self.fix.zh}"
        return f"kv_pool does not support {self.title.en}: {self.why.en}; {self.fix.en}"


def refusals(active: Collection[str]) -> list[Refusal]:
    """Everything that is refused among the modes a deployment uses.

    Args:
        active: keys of modes; unknown ones are ignored.
    """
    found = []
    for mode in MODES:
        if mode.status == "refused" and mode.key in active:
            found.append(_refusal(frozenset({mode.key}), mode.title, mode.why, mode.fix))
    for pair in PAIRS:
        if pair.status == "refused" and pair.keys <= set(active):
            modes = [_MODE_BY_KEY[key].title for key in sorted(pair.keys)]
            title = Text(" with ".join(t.en for t in modes), "与".join(t.zh for t in modes))
            found.append(_refusal(pair.keys, title, pair.why, pair.fix))
    return found


def _refusal(keys: frozenset[str], title: Text, why: Text, fix: Text | None) -> Refusal:
    if fix is None:
        raise AssertionError(f"a refusal without a way out: {sorted(keys)}")
    return Refusal(keys, title, why, fix)


_SENSES = ("vision_config", "visual", "audio_config", "vision_tower", "mm_vision_tower", "aligner_config")
"""Keys of a weights' config.json that only models have which take more than text."""

_SENSE_TYPES = re.compile(
    r"(?:^|[_-])(?:vl|audio|vita|yivl|janus)|vision|llava|internvl|glm4v|glm41v|mllama|minicpmv|xcomp"
)


def is_multimodal(model_config: Mapping[str, Any]) -> bool:
    """Whether a model takes images or sound, by its weights' config.json.

    The host's own ``is_multimodal`` is false for some that do (InternVL, Llama 3.2 Vision): models/base/
    flash_causal_multimodal.py sets it for its subclasses only.
    """
    model_type = str(model_config.get("model_type", "")).lower()
    return any(model_config.get(key) for key in _SENSES) or _SENSE_TYPES.search(model_type) is not None


_HEADINGS = {
    "en": ("MindIE-LLM", "pooling", "remark"),
    "zh": ("MindIE-LLM", "池化", "说明"),
}
_STATUS_WORDS = {
    "en": {"works": "works", "refused": "refused", "unproven": "never run"},
    "zh": {"works": "可用", "refused": "拒绝", "unproven": "未运行过"},
}


def table(lang: Language) -> str:
    """The whole table as Markdown; both READMEs hold it, and a test says when they do not."""
    words = _STATUS_WORDS[lang]
    lines = [f"| {' | '.join(_HEADINGS[lang])} |", "| --- | --- | --- |"]
    lines += [f"| {mode.title(lang)} | {words[mode.status]} | {mode.why(lang)} |" for mode in MODES]
    for pair in PAIRS:
        title = " + ".join(_MODE_BY_KEY[key].title(lang) for key in sorted(pair.keys))
        lines.append(f"| {title} | {words[pair.status]} | {pair.why(lang)} |")
    return "\n".join(lines)
