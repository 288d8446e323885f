"""The one reading of a pool file: the running plugin's at start-up, and the check's.

``read_pool_file`` raises the first mistake; ``judge`` yields all of them as data, for the check.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options import memcache, mooncake
from mindie_kvpool_plugin.options.problems import Problem, raise_first, shown
from mindie_kvpool_plugin.options.records import (
    KvPoolOptions,
    LocalDramOptions,
    MemcacheOptions,
    MooncakeOptions,
    all_options,
    defaults,
)
from mindie_kvpool_plugin.options.typos import closest
from mindie_kvpool_plugin.options.values import checked

SECTION = "kv_pool"
LOCAL_DRAM = "local_dram"
"""The pool of tests, simulator and demo, which no service takes."""
RECORDS: Mapping[str, type[Any]] = {
    "mooncake": MooncakeOptions,
    "memcache": MemcacheOptions,
    LOCAL_DRAM: LocalDramOptions,
}
"""Backend -> the record of its own keys."""

_SURROGATE = re.compile("[\ud800-\udfff]")

Options = TypeVar("Options")
Read = tuple[dict[str, Any], list[Problem]]


@dataclass(frozen=True, slots=True)
class PoolFile:
    """A parsed pool file.

    Attributes:
        path: where it was read from.
        backend_keys: the backend's own keys, as written.
        options: the ``kv_pool`` section; None when the file has none.
        device_id: the NPU of the process that opens the pool; no key of the file, its reader adds it.
    """

    path: Path
    backend_keys: Mapping[str, Any]
    options: KvPoolOptions | None
    device_id: int = 0

    @property
    def chosen(self) -> KvPoolOptions:
        """The options that hold: the section's, or all defaults."""
        return self.options or KvPoolOptions()


def has_section(path: str, *, unreadable: bool) -> bool:
    """Whether ``path`` is a pool file with a ``kv_pool`` section; ``unreadable`` if that cannot be told."""
    try:
        return SECTION in _load(Path(path))
    except ConfigError:
        return unreadable


def read_pool_file(path: str) -> PoolFile:
    """Read and validate ``path``.

    Raises:
        ConfigError: unreadable, not a JSON object, or an option that cannot work.
    """
    content = _load(Path(path))
    if SECTION not in content:
        return PoolFile(Path(path), content, None)
    chosen, problems = _section(content)
    raise_first(problems, f"{path}: {SECTION}" if isinstance(content[SECTION], dict) else path)
    backend_keys = {key: value for key, value in content.items() if key != SECTION}
    return PoolFile(Path(path), backend_keys, KvPoolOptions(**chosen))


def build(record: type[Options], values: Mapping[str, Any], place: str, *, strict: bool) -> Options:
    """Make a record from JSON values, checking names, types, choices, forms and bounds.

    Args:
        record: a dataclass of ``records``.
        values: what the file says.
        place: file and section, for messages.
        strict: refuse unknown keys; otherwise they are left to their owner.

    Raises:
        ConfigError: the first value that cannot work.
    """
    chosen, problems = _read(record, values, (), strict=strict)
    raise_first(problems, place)
    return record(**chosen)


def judge(content: Mapping[str, Any], backend: str) -> list[Problem]:
    """Everything the running plugin refuses of a parsed pool file, from the file alone.

    Args:
        content: the file as an object.
        backend: as ``kvPoolConfig`` names it.
    """
    if backend == "memcache" and SECTION not in content:
        return []  # MemCache's own file, which nothing of ours reads
    chosen, problems = _section(content) if SECTION in content else ({}, [])
    record = RECORDS.get(backend)
    if record is None:
        if SECTION in content:
            problems.append(no_backend(backend))
        return problems
    own, found = _read(record, content, (), strict=False)
    problems += found
    if record is MooncakeOptions:
        section = defaults(KvPoolOptions) | chosen if SECTION in content else None
        problems += mooncake.judge(defaults(record) | own, section)
    elif record is MemcacheOptions:
        problems += memcache.judge(own, defaults(KvPoolOptions) | chosen)
    return problems


def no_backend(name: str) -> Problem:
    """What is to be said of a backend that we do not have."""
    what = f"kvPoolConfig.backend is {shown(name)}, which mindie-kvpool-plugin has no backend for"
    known = ", ".join(sorted(each for each in RECORDS if each != LOCAL_DRAM))
    return Problem("backend", (SECTION,), name, what, f"use one of: {known}")


def no_meeting_place(value: str) -> Problem:
    """What is to be said where ranks of several servers have to meet, and nobody says where."""
    what = (
        f"kv_pool.agreement is {shown(value)}, by which the ranks of one server meet; on a prefill node with a "
        "scheduler per data-parallel rank (distributedEnable) those of all servers have to"
    )
    fix = 'set it to "tcp://<address of rank 0>:<free port>", alike on all servers'
    return Problem("meeting", (SECTION, "agreement"), value, what, fix)


def parse(data: bytes) -> Any:
    """The value of a pool file's bytes: JSON as its standard says, and as MindIE-LLM reads it.

    Raises:
        ValueError: no JSON, a number that is none, half of a surrogate pair, or not UTF-8.
    """
    return parse_text(data.decode("utf-8-sig"))


def parse_text(text: str) -> Any:
    """The value of a JSON text, read likewise.

    Raises:
        ValueError: no JSON, a number that is none, or half of a surrogate pair.
    """
    value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    if "\\u" in text and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
        raise ValueError("half of a surrogate pair (\\ud800 to \\udfff)")
    return value


def is_comment(key: str) -> bool:
    """JSON has no comments, so people use keys; none of them is an option."""
    return key[:1] in {"_", "#"} or key.startswith(("//", "$", "comment"))


def _section(content: Mapping[str, Any]) -> Read:
    section = content[SECTION]
    if not isinstance(section, dict):
        what = f"{SECTION} is {shown(section)}"
        return {}, [Problem("type", (SECTION,), section, what, "expected an object such as {}")]
    return _read(KvPoolOptions, section, (SECTION,), strict=True)


def _read(record: type[Any], values: Mapping[str, Any], above: tuple[str, ...], *, strict: bool) -> Read:
    known = {name: (hint, field) for name, hint, field in all_options(record)}
    chosen: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in values.items():
        path = (*above, name)
        if name in known:
            hint, field = known[name]
            chosen[name], wrong = checked(value, hint, field.metadata)
            if wrong is not None:
                kind, expected = wrong
                problems.append(Problem(kind, path, value, f"{name} is {shown(value)}", f"expected {expected}"))
        elif strict and not is_comment(name):
            problems.append(_unknown(path, values, known))
    problems += (
        Problem("missing", (*above, name), None, f"{name} is missing")
        for name, (_, field) in known.items()
        if field.default is dataclasses.MISSING and name not in values
    )
    return chosen, problems


def _unknown(path: tuple[str, ...], values: Mapping[str, Any], known: Mapping[str, Any]) -> Problem:
    name = path[-1]
    close, what = closest(name, known), f"knows no key {shown(name)}"
    if close is not None and close in values:
        return Problem("unknown", path, values[name], f'{what}, only "{close}", which is there too', "remove it")
    fix = f'did you mean "{close}"?' if close else f"known: {', '.join(known)}"
    return Problem("unknown", path, values[name], what, fix)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _load(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the pool file {path} (kvPoolConfig.configPath): {error}; "
            "the service's user needs read permission and the file must be UTF-8"
        ) from error
    try:
        content = parse(data)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"cannot read the pool file {path} (kvPoolConfig.configPath): {error}; save it as UTF-8"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the pool file {path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"the pool file {path} holds {shown(content)}, expected one JSON object")
    return content
