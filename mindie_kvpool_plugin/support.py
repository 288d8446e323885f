"""What pooling may be combined with: one table that start-up, check, command line and README are made from.

A mode is something of MindIE-LLM that a configuration or a request can ask for.  ``works``: run on the host's own
Python code or on the simulated host, with hits, faults and not one wrong byte.  ``refused``: the worker does not
start and the check says so, with the same words; the reason lies in the host.  ``excluded``: MindIE-LLM itself does
not do it: it ends the start, answers the request with an error, or loses what it should keep.  ``unproven``: nothing
here speaks against it, but it never ran, because it needs hardware or software that was not there.  Two modes of
which no row of ``PAIRS`` speaks are what their own rows say; those that work were run together (``chaos.pairs``).

Reasons and fixes are texts for people, in English and Chinese.  Nothing is imported here: everybody may read it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any, Literal

Status = Literal["works", "refused", "excluded", "unproven"]
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
    """Modes that together differ from what each alone says: each of some with each of others.

    Attributes:
        ones: keys of modes.
        others: keys of modes; none: any two of ``ones``.
        status, why, fix: as of a mode.
        code: the check's rule that tells what MindIE-LLM refuses at start; empty where a request asks for it.
    """

    ones: tuple[str, ...]
    others: tuple[str, ...]
    status: Status
    why: Text
    fix: Text | None = None
    code: str = ""

    @property
    def together(self) -> list[frozenset[str]]:
        """Every two modes the row speaks of."""
        both = product(self.ones, self.others) if self.others else combinations(self.ones, 2)
        return [frozenset(keys) for keys in both]

    def title(self, lang: Language) -> str:
        """The modes, for the table."""
        joint = {"en": " or ", "zh": " 或 "}[lang] if self.others else {"en": ", ", "zh": "、"}[lang]
        sides = [joint.join(_names(side, lang)) for side in (self.ones, self.others)]
        return " + ".join(sides) if self.others else f"{_ANY_TWO[lang]}{sides[0]}"


def _names(keys: tuple[str, ...], lang: Language) -> list[str]:
    """Short names of modes; all roles of a node have one together."""
    every_role = next(either for either in ALTERNATIVES if "pd_flex" in either)
    if not every_role <= set(keys):
        return [_short(_MODE_BY_KEY[key].title(lang)) for key in keys]
    others = tuple(key for key in keys if key not in every_role)
    return [*_names(others, lang), _ANY_NODE[lang]]


def _short(title: str) -> str:
    """A title without the name of its setting."""
    return re.sub(r" ?[(（].*[)）]", "", title)


def _mode(
    key: str, title: tuple[str, str], status: Status, why: tuple[str, str], fix: tuple[str, str] | None = None
) -> Mode:
    return Mode(key, Text(*title), status, Text(*why), Text(*fix) if fix else None)


def _pair(
    ones: str, others: str, status: Status, why: tuple[str, str], fix: tuple[str, str] | None = None, code: str = ""
) -> Pair:
    return Pair(tuple(ones.split()), tuple(others.split()), status, Text(*why), Text(*fix) if fix else None, code)


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
        ("each rank for itself; prefill nodes: see the pairs", "各卡各自存取；Prefill 节点见组合"),
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
            "plugin_type 只写 kv_pool（MindIE-LLM 在此禁止 prefix_cache）：存入回答，供下一轮 Prefill 命中",
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
            "边侧与云侧分别运行同一批次的各层，无法就命中达成一致；MindIE-LLM 也排除 prefix_cache",
        ),
        ("set layerwiseDisaggregated to false", "把 layerwiseDisaggregated 设为 false"),
    ),
    _mode(
        "multimodal",
        ("multimodal models", "多模态模型"),
        "refused",
        (
            "for an image MindIE-LLM puts the random name of a shared memory among the prompt's tokens and hashes "
            "that: an image is never found again, and a name can return for another image",
            "MindIE-LLM 用共享内存的随机名字代替图像写入提示词的 token 并据此计算哈希：同一图像无法再次命中，"
            "而同一名字可能用于另一图像",
        ),
        ("remove kv_pool from plugin_type", "从 plugin_type 中去掉 kv_pool"),
    ),
    _mode(
        "scaled_by_length",
        (
            "positions scaled by the longest sequence so far (rope_type dynamic; llama3 with maxSeqLen above "
            "max_position_embeddings)",
            "按已出现的最长序列缩放位置（rope_type dynamic；llama3 且 maxSeqLen 大于 max_position_embeddings）",
        ),
        "refused",
        (
            "MindIE-LLM stretches all positions when a longer sequence comes and leaves them so: the same tokens' keys "
            "differ from then on, and from one service to the next",
            "出现更长的序列时 MindIE-LLM 会拉伸所有位置并保持不变：此后相同 token 的 Key 不同，各服务之间也不同",
        ),
        (
            "with llama3 set maxSeqLen to max_position_embeddings at most, else remove kv_pool from plugin_type",
            "llama3 时把 maxSeqLen 设为不大于 max_position_embeddings，否则从 plugin_type 中去掉 kv_pool",
        ),
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
        "async_write",
        ("asyncWrite (kvPoolConfig)", "asyncWrite（kvPoolConfig）"),
        "works",
        ("a thread stores the blocks; a step waits only for those it overwrites", "由独立线程存入；只等待将被覆盖的块"),
    ),
    _mode(
        "300i",
        ("Atlas 300I Duo", "Atlas 300I Duo"),
        "unproven",
        ("no NPU was there", "没有 NPU"),
    ),
)
"""Everything of the host a user may ask whether pooling works with it."""

_COPIES_REACH_ALL = (
    "with one scheduler every rank carries out the copies and swaps of all groups, by block ids that mean other blocks "
    "there",
    "只有一个调度器时，每张卡都执行所有组的块拷贝与换入换出，而块号在那里指向别的块",
)

PAIRS = (
    _pair(
        "dp_servers",
        "pd_prefill",
        "works",
        (
            'all ranks of all servers tell each other what did not arrive, so kv_pool.agreement has to be "tcp://..."; '
            "a rank that cannot be heard ends the step and the service, as it ends the host's own collectives",
            '所有服务的所有卡互相告知未到达的块，因此 kv_pool.agreement 须为 "tcp://..."；'
            "联系不上的卡会结束该步与服务，MindIE-LLM 自身的集合通信也是如此",
        ),
    ),
    _pair(
        "mtp",
        "pd_prefill pd_decode pd_flex",
        "works",
        (
            "set it on every node: the draft layer's cache is pulled with the others; its hidden states are not, so "
            "MindIE-LLM makes a request's first drafts on the decode node from zeros",
            "所有节点都须开启：草稿层的缓存一同拉取；隐藏状态不传输，"
            "因此 Decode 节点上请求的首批草稿由 MindIE-LLM 以零值生成",
        ),
    ),
    _pair(
        "cp sp",
        "pd_prefill",
        "works",
        (
            "the decode node has neither, and its tables hold what it pulled rank by rank: it stores each block under "
            "its own tokens",
            "Decode 节点不开启；其块表按卡依次排列拉取的块，存入时按各块自己的 token 命名",
        ),
    ),
    _pair(
        "mtp la memory_decoding splitfuse",
        "",
        "refused",
        (
            "each of them decides which tokens a step computes; MindIE-LLM's documents exclude two of them together "
            "and its workers do not check it",
            "它们各自决定一步计算哪些 token；MindIE-LLM 文档规定两两互斥，但工作进程不检查",
        ),
        ("leave one of them in plugin_type", "plugin_type 中只保留其一"),
    ),
    _pair(
        "la memory_decoding",
        "pd_prefill pd_decode pd_flex",
        "refused",
        (
            "they guess from the prompts of their own node; MindIE-LLM's documents exclude PD disaggregation for them "
            "and its workers do not check it",
            "它们依据本节点的提示词猜测；MindIE-LLM 文档规定不能与 PD 分离同时使用，但工作进程不检查",
        ),
        ("remove la and memory_decoding from plugin_type", "从 plugin_type 中去掉 la 与 memory_decoding"),
    ),
    _pair(
        "cp sp",
        "pd_decode",
        "refused",
        (
            "every rank of such a node pulls what belongs to all of them; MindIE-LLM's documents have cp and sp on "
            "prefill nodes only and its workers do not check it",
            "此类节点的每张卡都会拉取属于所有卡的块；MindIE-LLM 文档规定只在 Prefill 节点开启 cp、sp，但工作进程不检查",
        ),
        ("remove cp and sp from the decode node's file", "从 Decode 节点的文件中去掉 cp 与 sp"),
    ),
    _pair(
        "splitfuse memory_decoding",
        "lora",
        "refused",
        (
            "MindIE-LLM hands the model no adapters then, so that blocks hold what the base model computed",
            "此时 MindIE-LLM 不向模型传递适配器，块中是基础模型的结果",
        ),
        (
            "remove splitfuse and memory_decoding from plugin_type, or the adapters",
            "从 plugin_type 中去掉 splitfuse 与 memory_decoding，或去掉适配器",
        ),
    ),
    _pair(
        "splitfuse",
        "dp_servers",
        "refused",
        (
            "on a prefill node MindIE-LLM's schedulers announce one token for each row of a batch with chunks, however "
            "many it computes, and the ranks pad their collectives by that (scheduler.cpp, seqLenList)",
            "在 Prefill 节点上，MindIE-LLM 的调度器对含分块的批次每行都只报 1 个 token，与实际计算量无关，"
            "而各卡据此填充集合通信（scheduler.cpp，seqLenList）",
        ),
        (
            "remove splitfuse from plugin_type, or set distributedEnable to false",
            "从 plugin_type 中去掉 splitfuse，或把 distributedEnable 设为 false",
        ),
    ),
    _pair(
        "splitfuse",
        "dp",
        "refused",
        (
            "MindIE-LLM's workers take the first rows of a batch with chunks for its decodes, but with one scheduler "
            "the rows stand group by group, so that prompts are given other rows' tokens",
            "MindIE-LLM 的工作进程把含分块批次的前几行当作 decode，而只有一个调度器时各行按组排列，"
            "提示词因此得到其他行的 token",
        ),
        ("remove splitfuse from plugin_type, or set dp to 1", "从 plugin_type 中去掉 splitfuse，或把 dp 设为 1"),
    ),
    _pair(
        "la",
        "dp",
        "refused",
        (
            "with one scheduler MindIE-LLM hands every rank the attention mask of all groups' guesses, so that tokens "
            "of all groups but the first are computed from what they must not see",
            "只有一个调度器时，MindIE-LLM 把所有组猜测的注意力掩码交给每张卡，"
            "除第一组外，各组的 token 依据不该看到的内容计算",
        ),
        ("remove la from plugin_type, or set dp to 1", "从 plugin_type 中去掉 la，或把 dp 设为 1"),
    ),
    _pair(
        "memory_decoding",
        "dp",
        "excluded",
        (
            "with one scheduler the workers end at their first decode: its inputs are made without the rows' groups",
            "只有一个调度器时，工作进程在第一次 decode 时结束：构造的输入不含各行所属的组",
        ),
    ),
    _pair(
        "cp sp",
        "la memory_decoding splitfuse",
        "refused",
        (
            "MindIE-LLM's documents exclude the features for long sequences, cp and sp, for these, no model has both, "
            "and its workers do not check it",
            "MindIE-LLM 文档规定它们不能与长序列特性（cp、sp）同时使用，也没有同时支持两者的模型，但工作进程不检查",
        ),
        (
            "remove la, memory_decoding and splitfuse from plugin_type, or set cp and sp to 1",
            "从 plugin_type 中去掉 la、memory_decoding 与 splitfuse，或把 cp 与 sp 设为 1",
        ),
    ),
    _pair("cp", "dp dp_servers", "excluded", ("the workers do not start", "工作进程不启动"), code="HC-59"),
    _pair(
        "la memory_decoding",
        "async_scheduling",
        "excluded",
        ("the workers do not start", "工作进程不启动"),
        code="HC-41",
    ),
    _pair("splitfuse", "async_write", "excluded", ("the workers do not start", "工作进程不启动"), code="HC-14"),
    _pair(
        "n beam",
        "async_scheduling mtp la memory_decoding pd_prefill pd_decode pd_flex",
        "excluded",
        ("such a request is answered with an error", "此类请求返回错误"),
    ),
    _pair(
        "lora",
        "pd_prefill pd_decode pd_flex",
        "excluded",
        ("adapters are not loaded on such nodes", "此类节点不加载适配器"),
    ),
    _pair(
        "dp",
        "pd_decode pd_flex",
        "excluded",
        (
            "with one scheduler the ranks of the other groups know nothing of what was pulled",
            "只有一个调度器时，其他组的卡不知道拉取的内容",
        ),
    ),
    _pair(
        "cp sp",
        "pd_flex",
        "excluded",
        (
            "such a node pulls from one rank what all of them have (config.py, p_inst_enable_sp_cp)",
            "此类节点只从一张卡拉取分散在所有卡上的块（config.py，p_inst_enable_sp_cp）",
        ),
    ),
    _pair(
        "splitfuse",
        "pd_decode pd_flex",
        "excluded",
        (
            "such a node takes every token of an answer for that of a chunk before the last, and drops it "
            "(isLastChunk_)",
            "此类节点把回答的每个 token 都当作非末分块的输出而丢弃（isLastChunk_）",
        ),
    ),
    _pair("pd_prefill", "recompute swap", "excluded", ("a prefill node preempts nothing", "Prefill 节点不发生抢占")),
    _pair(
        "n beam",
        "cp sp",
        "excluded",
        (
            "only DeepSeek has cp and sp, and answers such a request with an error",
            "只有 DeepSeek 有 cp、sp，此类请求返回错误",
        ),
    ),
    _pair(
        "la",
        "recompute",
        "excluded",
        (
            "after it MindIE-LLM feeds the sequence a stale token; of such a sequence only the prompt is stored",
            "此后 MindIE-LLM 给该序列输入过期的 token；此类序列只存提示词",
        ),
    ),
    _pair("n beam", "dp", "excluded", _COPIES_REACH_ALL),
    _pair("dp", "swap", "excluded", _COPIES_REACH_ALL, code="HC-44"),
    _pair(
        "splitfuse",
        "swap",
        "excluded",
        (
            "a prompt that is swapped out between two chunks comes back with bytes that were never computed, also into "
            "blocks that others share by then",
            "提示词在两个分块之间被换出后，换回时带有从未计算的内容，并可能写入此时已与他人共享的块",
        ),
        code="HC-44",
    ),
    _pair(
        "swap",
        "sparse_index backend_torch",
        "excluded",
        (
            "the workers end at the first swap: backendType torch, the only one with this index, asks its cache for "
            "what it does not have",
            "首次换出时工作进程结束：backendType torch（该索引只在其中可用）调用了缓存中不存在的方法",
        ),
        code="HC-44",
    ),
    _pair(
        "cp sp",
        "swap",
        "excluded",
        (
            "the service ends when a request would be swapped out: the scheduler's block manager cannot",
            "有请求需要换出时服务结束：调度器的块管理器不支持",
        ),
        code="HC-44",
    ),
    _pair(
        "n beam",
        "lora",
        "excluded",
        (
            "its prefix cache takes the blocks of all answers but the first for the base model's",
            "除第一个回答外，其 Prefix Cache 把各回答的块当作基础模型的块",
        ),
    ),
    _pair(
        "n beam",
        "swap",
        "excluded",
        ("of several answers only the first comes back from a swap", "多个回答中只有第一个能被换回"),
    ),
    _pair(
        "async_scheduling",
        "pd_prefill pd_flex",
        "unproven",
        ("MindIE-LLM's documents have it on decode nodes only", "MindIE-LLM 文档只在 Decode 节点开启"),
    ),
    _pair(
        "pd_prefill pd_flex",
        "recovery",
        "excluded",
        (
            "the schedulers free blocks that the other node has still to pull and do not tell it, so that it pulls "
            "what lies there by then (scheduler.cpp, StopRunningRequest)",
            "调度器释放另一节点尚未拉取的块而不告知对方，对方随后拉取到的是当时块中的内容"
            "（scheduler.cpp，StopRunningRequest）",
        ),
    ),
    _pair(
        "dp_servers",
        "pd_flex",
        "excluded",
        (
            "a node gets role flex over /v1/role alone, which names no groups; /v2/role, which names them, takes "
            "prefill and decode only, and only those two run dummy batches for other groups (http_handler.cpp, "
            "llm_engine.cpp)",
            "flex 角色只能经 /v1/role 指定，而它不含 dp 组信息；含 dp 组信息的 /v2/role 只接受 prefill 与 decode，"
            "也只有这两种角色为其他组执行陪跑批次（http_handler.cpp、llm_engine.cpp）",
        ),
    ),
)
"""Combinations that differ from what their parts say."""

ALTERNATIVES = (
    frozenset({"dp", "dp_servers"}),
    frozenset({"pd_prefill", "pd_decode", "pd_flex"}),
    frozenset({"n", "beam"}),
)
"""Modes of which a deployment, a node or a request has one at most."""

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
        for keys in pair.together if pair.status == "refused" else ():
            if keys <= set(active):
                modes = [_MODE_BY_KEY[key].title for key in sorted(keys)]
                title = Text(" with ".join(t.en for t in modes), "与".join(t.zh for t in modes))
                found.append(_refusal(keys, title, pair.why, pair.fix))
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


def scales_by_length(model_config: Mapping[str, Any], max_seq_len: int, positions: int | None = None) -> bool:
    """Whether MindIE-LLM scales positions by the longest sequence it has computed so far.

    position_rotary_embedding.py, dynamic_ntk_rotary_embedding: with llama3 only past ``max_position_embeddings``
    (flash_causal_llama.py).

    Args:
        model_config: the weights' config.json.
        max_seq_len: tokens of the longest sequence that is served.
        positions: what takes the place of the weights' ``max_position_embeddings``.
    """
    scaling = model_config.get("rope_scaling")
    kind = scaling.get("rope_type") if isinstance(scaling, Mapping) else None
    longest = positions or model_config.get("max_position_embeddings")
    return kind == "dynamic" or (kind == "llama3" and isinstance(longest, int) and max_seq_len > longest)


_HEADINGS = {
    "en": ("MindIE-LLM", "pooling", "remark"),
    "zh": ("MindIE-LLM", "池化", "说明"),
}
_STATUS_WORDS = {
    "en": {"works": "works", "refused": "refused", "excluded": "not in MindIE-LLM", "unproven": "never run"},
    "zh": {"works": "可用", "refused": "拒绝", "excluded": "MindIE-LLM 不支持", "unproven": "未运行过"},
}
_ALL_OTHERS = {
    "en": "Any other two modes that work have run together, with hits and with gets that fail on one rank, and not one "
    "wrong byte.",
    "zh": "其余任意两个可用的模式都已同时运行过：有命中，也有单卡读取失败，没有一个字节出错。",
}
_ANY_NODE = {"en": "any node of PD disaggregation", "zh": "PD 分离的任一节点"}
_ANY_TWO = {"en": "two of ", "zh": "以下任意两项："}


def table(lang: Language) -> str:
    """The whole table as Markdown; both READMEs hold it, and a test says when they do not."""
    words = _STATUS_WORDS[lang]
    lines = [f"| {' | '.join(_HEADINGS[lang])} |", "| --- | --- | --- |"]
    lines += [f"| {mode.title(lang)} | {words[mode.status]} | {mode.why(lang)} |" for mode in MODES]
    for pair in PAIRS:
        lines.append(f"| {pair.title(lang)} | {words[pair.status]} | {pair.why(lang)} |")
    return "\n".join([*lines, "", _ALL_OTHERS[lang]])
