"""All codes of the check, for ``explain``: those of the rules, and the ones below.

Codes by letters: FI the file, JS its syntax, SC the schema, HC the rules of the fact sheet under
their own numbers, CF its tables, KP the kv_pool plugin.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindie_kvpool_plugin.check.findings import Outcome, Severity
from mindie_kvpool_plugin.check.rules import RULES


@dataclass(frozen=True, slots=True)
class Code:
    """What is known about a code besides its texts."""

    code: str
    severity: Severity
    outcome: Outcome
    source: str
    wrong: str
    right: str


def _stage(source: str, severity: Severity, outcome: Outcome, *examples: tuple[str, str, str]) -> list[Code]:
    return [Code(code, severity, outcome, source, wrong, right) for code, wrong, right in examples]


STAGE_CODES = (
    _stage(
        "0",
        "error",
        "boot",
        ("FI-01", "mindie-kvpool check /missing.json", "mindie-kvpool check /etc/mindie/config.json"),
        ("FI-02", "(0 bytes)", "{ ... }"),
        ("FI-03", "a file of more than 10 MiB", "a file of some kilobytes"),
        ("FI-04", "saved as GBK", "saved as UTF-8"),
        ("FI-05", 'saved as "Unicode" (UTF-16)', "saved as UTF-8"),
        ("FI-08", "[[[[ ... 10,000 levels ... ]]]]", "the levels of the shipped file"),
        ("JS-01", '"backend"： "mooncake"', '"backend": "mooncake"'),
        ("JS-02", "“backend”: “mooncake”", '"backend": "mooncake"'),
        ("JS-03", '"backend""mooncake"', '"backend": "mooncake"'),
        ("JS-04", '"tp": 2\n"dp": 1', '"tp": 2,\n"dp": 1'),
        ("JS-05", '{"tp": 2,}', '{"tp": 2}'),
        ("JS-06", '"tp": 2 // ranks', '"tp": 2'),
        ("JS-07", '12  "port": 1025,', '"port": 1025,'),
        ("JS-08", "{'port': 1025}", '{"port": 1025}'),
        ("JS-09", '"asyncWrite": True', '"asyncWrite": true'),
        ("JS-10", '{"BackendConfig": {"tp": 2}', '{"BackendConfig": {"tp": 2}}'),
        ("JS-11", '{"npuDeviceIds": [[0, 1}]', '{"npuDeviceIds": [[0, 1]]}'),
        ("JS-12", '"port": 1025 with a no-break blank (U+00A0) after the colon', '"port": 1025'),
        ("JS-13", '"modelName": "qwen,', '"modelName": "qwen",'),
        ("JS-14", '"configPath": "C:\\data"', '"configPath": "C:\\\\data"'),
        ("JS-15", '"port": 01025', '"port": 1025'),
        ("JS-16", "backend: mooncake", '"backend": "mooncake"'),
        ("JS-17", '{ ... "port": 1025 }', '{ "port": 1025 }'),
        ("JS-18", '"configPath": ,', '"configPath": "/etc/mindie/kv_pool.json",'),
        ("JS-19", '{"ServerConfig": {...}}}', '{"ServerConfig": {...}}'),
        ("JS-21", '"tp": 2,, "dp": 1', '"tp": 2, "dp": 1'),
        ("JS-22", '"modelName": "\\ud83d"', '"modelName": "qwen"'),
        ("JS-23", '"port": 1e999', '"port": 1025'),
        ("JS-24", '[{"ServerConfig": {...}}]', '{"ServerConfig": {...}}'),
        ("JS-25", '{"port": @1025}', '{"port": 1025}'),
        ("JS-26", "a large file that is not JSON", '{"ServerConfig": {...}, "BackendConfig": {...}}'),
        (
            "JS-27",
            '"plugin_params": "{"plugin_type":"prefix_cache"}"',
            '"plugin_params": "{\\"plugin_type\\":\\"prefix_cache\\"}"',
        ),
    )
    + _stage(
        "0, 1",
        "error",
        "boot",
        ("SC-01", '{"ServerConfig": {"port": 1025}}', '{"ServerConfig": {"port": 1025, "metricsPort": 1027, ...}}'),
        ("SC-02", '"port": "1025"', '"port": 1025'),
        ("SC-03", '"port": 80', '"port": 1025'),
        ("SC-04", '"backend": "Mooncake"', '"backend": "mooncake"'),
        ("SC-05", '"modelName": "-qwen-"', '"modelName": "qwen"'),
        ("SC-08", '"port": 1025.0', '"port": 1025'),
    )
    + _stage(
        "0, 1, 8",
        "warning",
        "silent",
        ("JS-20", '{"port": 1025, "port": 1026}', '{"port": 1026}'),
        (
            "SC-06",
            '{"kvPoolConfig": {...}, "BackendConfig": {...}}',
            '{"BackendConfig": {"kvPoolConfig": {...}, ...}}',
        ),
        ("SC-07", '"tlsPkPwd": "..."', "(no such key)"),
        ("HC-82", '"interNodeTlsCrlfiles": []', '"interNodeTlsCrlFiles": []'),
    )
    + _stage("0", "warning", "advice", ("FI-09", "a file of megabytes", "a file of some kilobytes"))
    + _stage("0, 4.1", "info", "advice", ("FI-06", "saved as UTF-8 with BOM", "saved as UTF-8"))
)


def all_codes() -> dict[str, Code]:
    """Every code the check can report."""
    rules = [Code(r.code, r.severity, r.outcome, r.source, r.wrong, r.right) for r in RULES]
    return {each.code: each for each in [*STAGE_CODES, *rules]}
