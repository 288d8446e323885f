"""Examples for the check: each a change to one base configuration, written out when a test needs the file.

A folder ``examples/<CODE>/`` holds ``wrong.json``, which shows the code, and mostly ``right.json``, the
smallest change that makes it right.  ``examples/documents/`` holds what people copy from manuals.

Keys of such a file, in the order they are applied:
    base: the configuration to change, relative to the checkout; default ``tests/examples/base/config.json``.
    set, remove: values by names such as ``S.port`` (``SECTIONS``).
    text, depth: the whole text instead; objects nested so many levels instead.
    replace: pairs of texts, the first found once or more, all of them replaced.
    gutter: line numbers as viewers copy them: "above" the text, or before each line in a format such as "{:3} ".
    newline, encoding: how it is written; "\n" and "utf-8".
    files: files beside it, each a merge patch (RFC 7396) to its namesake in ``examples/base/``, or a whole text.
    codes, args: what the check is to report, and with which arguments ("{dir}" is the folder).
"""

import copy
import json
from pathlib import Path

from schemas.generate import merged

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "tests" / "examples"
BASE = EXAMPLES / "base"
MINIMAL = json.loads((BASE / "config.json").read_text(encoding="utf-8"))
SECTIONS = {
    "R": [],
    "S": ["ServerConfig"],
    "B": ["BackendConfig"],
    "K": ["BackendConfig", "kvPoolConfig"],
    "D": ["BackendConfig", "ModelDeployConfig"],
    "M": ["BackendConfig", "ModelDeployConfig", "ModelConfig", 0],
    "C": ["BackendConfig", "ScheduleConfig"],
}
# a section replaced as a whole comes last: the others are set inside it
WHOLE = {"B.kvPoolConfig", "B.ModelDeployConfig", "B.ScheduleConfig", "D.ModelConfig"}
ABSENT = object()


def changed(changes):
    """The base configuration with values set by names such as ``S.port``; ABSENT removes one."""
    root = copy.deepcopy(MINIMAL)
    for name, value in sorted(changes.items(), key=lambda item: item[0] in WHOLE):
        section, key = name.split(".", 1)
        here = root
        for part in SECTIONS[section]:
            here = here[part]
        if value is ABSENT:
            del here[key]
        else:
            here[key] = value
    return root


def read(case):
    """An example's file."""
    return json.loads(case.read_text(encoding="utf-8"))


def all_cases():
    """Every example of a code, wrong and right."""
    return [read(file) for file in sorted(EXAMPLES.rglob("*.json")) if file.name in {"wrong.json", "right.json"}]


def write(case, folder):
    """Write ``config.json`` and the files beside it; returns the arguments for the check."""
    (folder / "config.json").write_bytes(config_bytes(case))
    for name in case.get("files", {}):
        (folder / name).write_bytes(file_bytes(case, name))
    return [argument.format(dir=folder) for argument in case.get("args", [])]


def config_bytes(case):
    """The example's config.json."""
    text = _start(case)
    for old, new in case.get("replace", []):
        assert old in text, f"{old!r} is not in the base"
        text = text.replace(old, new)
    if "gutter" in case:
        text = _numbered(text.splitlines(), case["gutter"])
    return text.replace("\n", case.get("newline", "\n")).encode(case.get("encoding", "utf-8"))


def file_bytes(case, name):
    """A file beside the example's config.json."""
    if isinstance(case["files"][name], str):
        return case["files"][name].encode()
    base = json.loads((BASE / name).read_text(encoding="utf-8"))
    return _dump(merged(base, case["files"][name])).encode()


def _start(case):
    if "base" in case:
        return (ROOT / case["base"]).read_text(encoding="utf-8")
    if "depth" in case:
        return '{"a":' * case["depth"] + "1" + "}" * case["depth"]
    if "text" in case:
        return str(case["text"])
    changes = case.get("set", {}) | dict.fromkeys(case.get("remove", []), ABSENT)
    return _dump(changed(changes))


def _numbered(lines, gutter):
    numbers = range(1, len(lines) + 1)
    if gutter == "above":
        lines = [*map(str, numbers), *lines]
    else:
        lines = [gutter.format(number) + line for number, line in zip(numbers, lines, strict=True)]
    return "".join(line + "\n" for line in lines)


def _dump(value):
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
