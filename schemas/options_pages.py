"""Writes docs/configuration.md and its Chinese twin from the option records: ``make schemas``.

English meanings are the records' own; the Chinese ones are in ``schemas/source/options.zh.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.check.schema.records import object_schema
from mindie_kvpool_plugin.options import records

FOLDER = Path(__file__).parents[1] / "docs"
CHINESE: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "source" / "options.zh.json").read_text(encoding="utf-8")
)
RECORDS = (records.KvPoolOptions, records.MooncakeOptions, records.MemcacheOptions, records.LocalDramOptions)

TEXTS = {
    "en": {
        "title": "# Configuration reference",
        "about": "Every option of a pool file, generated from `mindie_kvpool_plugin/options/records.py` "
        "(`make schemas`).\n`mindie-kvpool check` judges a file by it and `mindie-kvpool schema` prints it for "
        'editors. Sizes are bytes,\nor a text such as `"4GB"` (powers of 1024). What `config.json` itself needs is in '
        "the [user guide](user-guide.md).\n[中文](configuration.zh.md)",
        "head": "| option | values | default | meaning |",
        "KvPoolOptions": "## Section `kv_pool`",
        "MooncakeOptions": "## Backend `mooncake`: top of the file",
        "MemcacheOptions": "## Backend `memcache`: top of the file",
        "LocalDramOptions": "## Backend `local_dram`: simulator and tests only",
        "required": "required",
        "size": "size",
        "number": "number above 0",
        "integer": "integer from {minimum}",
        "text": "text",
        "advised": ", at most {maximum} advised",
        "most": ", at most {maximum}",
        "or_zero": "number, 0 or more",
        "unit": " ({unit})",
    },
    "zh": {
        "title": "# 配置参考",
        "about": "池文件的全部选项，由 `mindie_kvpool_plugin/options/records.py` 生成（`make schemas`）。\n"
        "`mindie-kvpool check` 据此检查文件，`mindie-kvpool schema` 输出供编辑器使用的 schema。大小为字节数，\n或形如 "
        '`"4GB"` 的文本（按 1024 进位）。`config.json` 本身需要的内容见[用户指南](user-guide.zh.md)。\n'
        "[English](configuration.md)",
        "head": "| 选项 | 取值 | 默认值 | 含义 |",
        "KvPoolOptions": "## `kv_pool` 段",
        "MooncakeOptions": "## 后端 `mooncake`：文件顶层",
        "MemcacheOptions": "## 后端 `memcache`：文件顶层",
        "LocalDramOptions": "## 后端 `local_dram`：仅供模拟器与测试",
        "required": "必填",
        "size": "大小",
        "number": "大于 0 的数",
        "integer": "不小于 {minimum} 的整数",
        "text": "文本",
        "advised": "，建议不超过 {maximum}",
        "most": "，不超过 {maximum}",
        "or_zero": "不小于 0 的数",
        "unit": "（{unit}）",
    },
}
IN_THE_NAME = ("bytes", "s", "ms", "blocks")
"""Units that a name or the word size says."""


def page(lang: str) -> str:
    """The page in a language."""
    texts = TEXTS[lang]
    lines = [texts["title"], "", texts["about"], ""]
    for record in RECORDS:
        lines += [texts[record.__name__], "", texts["head"], "| --- | --- | --- | --- |"]
        lines += [*_rows(record, lang), ""]
    return "\n".join(lines)


def _rows(record: type[Any], lang: str) -> Iterator[str]:
    for name, schema in object_schema(record)["properties"].items():
        meaning = schema["description"] if lang == "en" else CHINESE[record.__name__][name]
        default = f"`{_written(schema)}`" if "default" in schema else TEXTS[lang]["required"]
        yield f"| `{name}` | {_values(schema, lang)} | {default} | {meaning.replace('|', chr(92) + '|')} |"


def _written(schema: dict[str, Any]) -> str:
    """A default as one would write it."""
    value = schema["default"]
    if schema.get("x-unit") == "bytes":
        for unit, size in (("GB", records.GIB), ("MB", records.MIB)):
            if value and value % size == 0:
                return f'"{value // size}{unit}"'
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _values(schema: dict[str, Any], lang: str) -> str:
    texts = TEXTS[lang]
    if "enum" in schema:
        return ", ".join(f'`"{each}"`' for each in schema["enum"])
    kind = schema["type"]
    if kind == "boolean":
        return "`true`, `false`"
    if isinstance(kind, list):
        return texts["size"]
    if kind == "string":
        return texts["text"]
    said = texts["integer" if kind == "integer" else "number" if "exclusiveMinimum" in schema else "or_zero"]
    if "maximum" in schema:
        said += texts["advised" if "x-severity" in schema else "most"]
    unit = schema.get("x-unit", "s")
    return said.format(**schema) + ("" if unit in IN_THE_NAME else texts["unit"].format(unit=unit))


def files() -> dict[Path, str]:
    """Both pages."""
    return {FOLDER / "configuration.md": page("en"), FOLDER / "configuration.zh.md": page("zh")}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
