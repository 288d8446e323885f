"""What is known about each code besides its texts: one table, and names for those who report.

Letters: FI the file, JS its syntax, SC types and names, HC what goes with what in MindIE-LLM, CF single
fields of it, KP the kv_pool plugin.  The codes of rules stand beside their functions (``rules``).
"""

from __future__ import annotations

from mindie_kvpool_plugin.check.findings import Code

_GRAMMAR = "json: 2. JSON Grammar"
_VALUES = "json: 3. Values"
_OBJECTS = "json: 4. Objects"
_NUMBERS = "json: 6. Numbers"
_STRINGS = "json: 7. Strings"
_CHARACTERS = "json: 8.1. Character Encoding"
_READING = "service: 配置文件参数说明; code: src/config_manager/param_checker.cpp"

CANNOT_READ = Code(
    "FI-01", "error", "boot", "service: 配置文件参数说明",
    wrong='mindie-kvpool check /missing.json',
    right='mindie-kvpool check /etc/mindie/config.json',
)  # fmt: skip
EMPTY_FILE = Code(
    "FI-02", "error", "boot", "json: 2. JSON Grammar; code: src/config_manager/param_checker.cpp",
    wrong='(0 bytes)',
    right='{ ... }',
    is_hopeless=True,
)  # fmt: skip
FILE_TOO_LARGE = Code(
    "FI-03", "error", "boot", _READING,
    wrong='a file of more than 10 MiB',
    right='a file of some kilobytes',
    is_hopeless=True,
)  # fmt: skip
NOT_UTF8 = Code(
    "FI-04", "error", "boot", _CHARACTERS,
    wrong='saved as GBK',
    right='saved as UTF-8',
    is_hopeless=True,
)  # fmt: skip
UTF16 = Code(
    "FI-05", "error", "boot", _CHARACTERS,
    wrong='saved as "Unicode" (UTF-16)',
    right='saved as UTF-8',
)  # fmt: skip
NOT_TEXT = Code(
    "FI-10", "error", "boot", _CHARACTERS,
    wrong='a program, an archive or a picture',
    right='the config.json of the service',
    is_hopeless=True,
)  # fmt: skip
TOO_DEEP = Code(
    "FI-08", "error", "boot", "json: 9. Parsers; code: src/config_manager/param_checker.cpp",
    wrong='[[[[ ... 10,000 levels ... ]]]]',
    right='the levels of the shipped file',
)  # fmt: skip
WIDE_PUNCTUATION = Code(
    "JS-01", "error", "boot", _GRAMMAR,
    wrong='"backend"： "mooncake"',
    right='"backend": "mooncake"',
)  # fmt: skip
CURLY_QUOTES = Code(
    "JS-02", "error", "boot", _STRINGS,
    wrong='“backend”: “mooncake”',
    right='"backend": "mooncake"',
)  # fmt: skip
MISSING_COLON = Code(
    "JS-03", "error", "boot", _OBJECTS,
    wrong='"backend""mooncake"',
    right='"backend": "mooncake"',
)  # fmt: skip
MISSING_COMMA = Code(
    "JS-04", "error", "boot", _OBJECTS,
    wrong='"tp": 2\n"dp": 1',
    right='"tp": 2,\n"dp": 1',
    is_joint=True,
)  # fmt: skip
TRAILING_COMMA = Code(
    "JS-05", "error", "boot", _OBJECTS,
    wrong='{"tp": 2,}',
    right='{"tp": 2}',
    is_joint=True,
)  # fmt: skip
COMMENT = Code(
    "JS-06", "error", "boot", _GRAMMAR,
    wrong='"tp": 2 // ranks',
    right='"tp": 2',
)  # fmt: skip
LINE_NUMBER = Code(
    "JS-07", "error", "boot", _GRAMMAR,
    wrong='12  "port": 1025,',
    right='"port": 1025,',
)  # fmt: skip
SINGLE_QUOTES = Code(
    "JS-08", "error", "boot", _STRINGS,
    wrong="{'port': 1025}",
    right='{"port": 1025}',
)  # fmt: skip
FOREIGN_WORD = Code(
    "JS-09", "error", "boot", _VALUES,
    wrong='"asyncWrite": True',
    right='"asyncWrite": true',
    has_stand_in=True,
)  # fmt: skip
NOT_CLOSED = Code(
    "JS-10", "error", "boot", _GRAMMAR,
    wrong='{"BackendConfig": {"tp": 2}',
    right='{"BackendConfig": {"tp": 2}}',
    unsettles=True, is_joint=True,
)  # fmt: skip
WRONG_BRACKET = Code(
    "JS-11", "error", "boot", _GRAMMAR,
    wrong='{"npuDeviceIds": [[0, 1}]',
    right='{"npuDeviceIds": [[0, 1]]}',
    unsettles=True, is_joint=True,
)  # fmt: skip
ODD_BLANK = Code(
    "JS-12", "error", "boot", _GRAMMAR,
    wrong='"port": 1025 with a no-break blank (U+00A0) after the colon',
    right='"port": 1025',
)  # fmt: skip
BROKEN_STRING = Code(
    "JS-13", "error", "boot", _STRINGS,
    wrong='"modelName": "qwen,',
    right='"modelName": "qwen",',
    has_stand_in=True, unsettles=True,
)  # fmt: skip
BAD_ESCAPE = Code(
    "JS-14", "error", "boot", _STRINGS,
    wrong='"configPath": "C:\\data"',
    right='"configPath": "C:\\\\data"',
    has_stand_in=True,
)  # fmt: skip
BAD_NUMBER = Code(
    "JS-15", "error", "boot", _NUMBERS,
    wrong='"port": 01025',
    right='"port": 1025',
    has_stand_in=True,
)  # fmt: skip
NO_QUOTES = Code(
    "JS-16", "error", "boot", _STRINGS,
    wrong='backend: mooncake',
    right='"backend": "mooncake"',
    has_stand_in=True,
)  # fmt: skip
ELLIPSIS = Code(
    "JS-17", "error", "boot", _GRAMMAR,
    wrong='{ ... "port": 1025 }',
    right='{ "port": 1025 }',
)  # fmt: skip
MISSING_VALUE = Code(
    "JS-18", "error", "boot", _VALUES,
    wrong='"configPath": ,',
    right='"configPath": "/etc/mindie/kv_pool.json",',
    has_stand_in=True,
)  # fmt: skip
TEXT_BEHIND = Code(
    "JS-19", "error", "boot", _GRAMMAR,
    wrong='{"ServerConfig": {...}}}',
    right='{"ServerConfig": {...}}',
    unsettles=True,
)  # fmt: skip
EXTRA_COMMA = Code(
    "JS-21", "error", "boot", _OBJECTS,
    wrong='"tp": 2,, "dp": 1',
    right='"tp": 2, "dp": 1',
    is_joint=True,
)  # fmt: skip
HALF_A_PAIR = Code(
    "JS-22", "error", "boot", "json: 8.2. Unicode Characters",
    wrong='"modelName": "\\ud83d"',
    right='"modelName": "qwen"',
    has_stand_in=True,
)  # fmt: skip
HUGE_NUMBER = Code(
    "JS-23", "error", "boot", _NUMBERS,
    wrong='"port": 1e999',
    right='"port": 1025',
    has_stand_in=True,
)  # fmt: skip
NO_OBJECT = Code(
    "JS-24", "error", "boot", "json: 4. Objects; code: src/config_manager/param_checker.cpp",
    wrong='[{"ServerConfig": {...}}]',
    right='{"ServerConfig": {...}}',
    unsettles=True,
)  # fmt: skip
MISPLACED = Code(
    "JS-25", "error", "boot", _GRAMMAR,
    wrong='{"port": @1025}',
    right='{"port": 1025}',
    unsettles=True,
)  # fmt: skip
NOT_JSON = Code(
    "JS-26", "error", "boot", _GRAMMAR,
    wrong='a large file that is not JSON',
    right='{"ServerConfig": {...}, "BackendConfig": {...}}',
)  # fmt: skip
INNER_QUOTES = Code(
    "JS-27", "error", "boot", _STRINGS,
    wrong='"plugin_params": "{"plugin_type":"prefix_cache"}"',
    right='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache\\"}"',
)  # fmt: skip
MERGE_CONFLICT = Code(
    "JS-28", "error", "boot", _GRAMMAR,
    wrong='<<<<<<< HEAD\n"port": 1025,\n=======\n"port": 1035,\n>>>>>>> other',
    right='"port": 1025,',
    is_hopeless=True,
    unsettles=True,
)  # fmt: skip
PASTED_AROUND = Code(
    "JS-29", "error", "boot", _GRAMMAR,
    wrong='```json\n{"ServerConfig": {...}}\n```',
    right='{"ServerConfig": {...}}',
    unsettles=True,
)  # fmt: skip
MISSING_KEY = Code(
    "SC-01", "error", "boot", _READING,
    wrong='{"ServerConfig": {"port": 1025}}',
    right='{"ServerConfig": {"port": 1025, "metricsPort": 1027, ...}}',
)  # fmt: skip
WRONG_TYPE = Code(
    "SC-02", "error", "boot", _READING,
    wrong='"port": "1025"',
    right='"port": 1025',
    about_value=True,
)  # fmt: skip
OUT_OF_RANGE = Code(
    "SC-03", "error", "boot", _READING,
    wrong='"port": 80',
    right='"port": 1025',
    about_value=True, needs_type=True,
)  # fmt: skip
NO_CHOICE = Code(
    "SC-04", "error", "boot", _READING,
    wrong='"backend": "Mooncake"',
    right='"backend": "mooncake"',
    about_value=True, needs_type=True,
)  # fmt: skip
WRONG_FORM = Code(
    "SC-05", "error", "boot", _READING,
    wrong='"modelName": "-qwen-"',
    right='"modelName": "qwen"',
    about_value=True, needs_type=True,
)  # fmt: skip
NOT_AN_INTEGER = Code(
    "SC-08", "error", "boot", "json: 6. Numbers; code: src/config_manager/param_checker.cpp",
    wrong='"port": 1025.0',
    right='"port": 1025',
    about_value=True, fix="number",
)  # fmt: skip
DUPLICATE_KEY = Code(
    "JS-20", "warning", "silent", _OBJECTS,
    wrong='{"port": 1025, "port": 1026}',
    right='{"port": 1026}',
    at_key=True,
)  # fmt: skip
UNKNOWN_KEY = Code(
    "SC-06", "warning", "silent", _READING,
    wrong='{"kvPoolConfig": {...}, "BackendConfig": {...}}',
    right='{"BackendConfig": {"kvPoolConfig": {...}, ...}}',
    at_key=True,
)  # fmt: skip
DEAD_KEY = Code(
    "SC-07", "warning", "silent", "service: ServerConfig参数说明; service: BackendConfig参数说明",
    wrong='"tlsPkPwd": "..."',
    right='(no such key)',
    at_key=True, fix="remove",
)  # fmt: skip
MISSPELT_KEY = Code(
    "HC-82", "warning", "silent", _READING,
    wrong='"interNodeTlsCrlfiles": []',
    right='"interNodeTlsCrlFiles": []',
    at_key=True, fix="rename",
)  # fmt: skip
NOT_EXAMINED = Code(
    "FI-09", "warning", "advice", "code: src/config_manager/param_checker.cpp",
    wrong='a file of megabytes',
    right='a file of some kilobytes',
)  # fmt: skip
BYTE_ORDER_MARK = Code(
    "FI-06", "info", "advice", "json: 8.1. Character Encoding; code: src/config_manager/param_checker.cpp",
    wrong='saved as UTF-8 with BOM',
    right='saved as UTF-8',
)  # fmt: skip

STAGE_CODES: tuple[Code, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Code))
"""Those of the stages before the rules."""
