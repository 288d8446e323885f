"""Where rules are written down: documents by title and section, so that a reader finds them.

The source of a code is a text such as ``pool: 限制与约束; code: src/config_manager/backend_config.cpp``: origins in the
order of their weight, each a key of ``DOCUMENTS`` and a section of that document, or a file for ``code``.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindie_kvpool_plugin.check.messages import Language, words

_REPOSITORY = "https://gitcode.com/Ascend/MindIE-LLM/blob/master/"
_MANUAL = "docs/zh/user_guide/"
_JSON = "https://www.rfc-editor.org/rfc/rfc8259"
SEPARATOR = "; "


@dataclass(frozen=True, slots=True)
class Document:
    """A document of MindIE-LLM: its title, as it bears it, and its file below ``docs/zh/user_guide``."""

    title: str
    file: str


DOCUMENTS = {
    "async": Document("异步调度", "feature/asynchronous_scheduling.md"),
    "cp": Document("Context Parallel", "feature/context_parallel.md"),
    "dp": Document("Data Parallel", "feature/data_parallel.md"),
    "env": Document("环境变量说明", "user_manual/environment_variable.md"),
    "ep": Document("Expert Parallel", "feature/expert_parallel.md"),
    "features": Document("特性列表", "feature/README.md"),
    "lora": Document("Multi-LoRA", "feature/multi_loRA.md"),
    "mempool": Document("KV Cache池化使用指导", "feature/mempool.md"),
    "model": Document("配置参数说明（模型侧）", "user_manual/model_parameter_configuration.md"),
    "mtp": Document("MTP", "feature/mtp.md"),
    "parallel_decoding": Document("并行解码", "feature/speculative_decoding.md"),
    "pool": Document("KV Cache池化", "feature/kv_cache_pool.md"),
    "prefix": Document("Prefix Cache", "feature/prefix_cache.md"),
    "ranks": Document("rank_table_file.json 配置指南", "user_manual/rank_table_file_configuration.md"),
    "service": Document("配置参数说明（服务化）", "user_manual/service_parameter_configuration.md"),
    "sp": Document("Sequence Parallel", "feature/sequence_parallel.md"),
    "splitfuse": Document("SplitFuse", "feature/splitFuse.md"),
}
"""Key -> document of MindIE-LLM 3.0.0.  Beside them: ``json`` is RFC 8259, ``code`` the source of MindIE-LLM by its
file, ``readme`` this project's README."""

_CHINESE_HEADINGS = {
    "Use it on an Atlas server": "在 Atlas 服务器上使用",
    "MemCache instead of Mooncake": "使用 MemCache 代替 Mooncake",
    "Options of the `kv_pool` section": "`kv_pool` 段的选项",
    "What is pooled": "支持范围",
}
"""Section of README.md -> the same in README.zh.md."""


def origins(source: str) -> list[tuple[str, str]]:
    """(key, section) of each origin."""
    pairs = (each.partition(": ") for each in source.split(SEPARATOR))
    return [(key, section) for key, _, section in pairs]


def told(source: str, lang: Language) -> list[str]:
    """A line for each origin: document, file and section."""
    return [_told(key, section, lang) for key, section in origins(source)]


def _told(key: str, section: str, lang: Language) -> str:
    document = DOCUMENTS.get(key)
    if key == "readme" and lang == "zh":
        section = _CHINESE_HEADINGS[section]
    if document is None:
        return words(f"source.{key}", lang, section=section)
    return words("source.document", lang, title=document.title, file=_MANUAL + document.file, section=section)


def address(source: str) -> str:
    """A page about the first origin."""
    key, section = origins(source)[0]
    if key == "json":
        return f"{_JSON}#section-{section.split()[0].rstrip('.')}"
    if key == "code":
        return _REPOSITORY + section
    return _REPOSITORY + _MANUAL + DOCUMENTS.get(key, DOCUMENTS["pool"]).file
