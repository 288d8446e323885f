"""The pool file as the running plugin reads it: parsed once at start-up, every mistake a ``ConfigError``.

The check command judges the same file with the JSON Schema and tells all findings at once; here the
first one that cannot work ends the start.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast, get_args, get_type_hints

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.options.records import KvPoolOptions

SECTION = "kv_pool"

_UNITS = {"": 1, "b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3, "tb": 1024**4}
_SIZE_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?b)?", re.IGNORECASE)
# sizes are the only options a user may also write as text
_SIZE_KEYS = frozenset(
    {"global_segment_size", "local_buffer_size", "capacity", "queue_capacity_bytes", "staging_bytes"}
)
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}")

Options = TypeVar("Options")


@dataclass(frozen=True, slots=True)
class PoolFile:
    """A parsed pool file.

    Attributes:
        path: where it was read from.
        backend_keys: the backend's own keys, as written.
        options: the ``kv_pool`` section; None when the file has none.
    """

    path: Path
    backend_keys: Mapping[str, Any]
    options: KvPoolOptions | None


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
    section = content.pop(SECTION, None)
    if section is None:
        return PoolFile(Path(path), content, None)
    if not isinstance(section, dict):
        raise ConfigError(f'{path}: "{SECTION}" is {_shown(section)}, expected an object such as {{}}')
    options = build(KvPoolOptions, section, f"{path}: {SECTION}", strict=True)
    if not _NAMESPACE.fullmatch(options.namespace):
        raise ConfigError(
            f'{path}: {SECTION}.namespace is "{options.namespace}", '
            "expected 1 to 64 letters, digits, dots, dashes or underscores"
        )
    return PoolFile(Path(path), content, options)


def parse_size(value: Any, place: str) -> int:
    """Bytes from an integer or a text such as "4GB" (units B, KB, MB, GB, TB; powers of 1024).

    Raises:
        ConfigError: anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := _SIZE_TEXT.fullmatch(value.strip())):
        return int(float(match[1]) * _UNITS[(match[2] or "").lower()])
    raise ConfigError(f'{place} is {_shown(value)}, expected bytes as an integer or a text such as "4GB"')


def build(record: type[Options], values: Mapping[str, Any], place: str, *, strict: bool) -> Options:
    """Make a record from JSON values, checking names, types, choices and that numbers are not negative.

    Args:
        record: a dataclass of str, bool, int, float and Literal fields.
        values: what the file says.
        place: file and section, for messages.
        strict: refuse unknown keys; otherwise they are left to their owner.

    Raises:
        ConfigError: the first value that cannot work.
    """
    hints = get_type_hints(record)
    fields = dataclasses.fields(cast(Any, record))
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        if name in hints:
            chosen[name] = _checked(value, hints[name], f"{place}.{name}", is_size=name in _SIZE_KEYS)
        elif strict and name != "$schema":
            close = get_close_matches(name, hints, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(hints)}"
            raise ConfigError(f'{place}: unknown option "{name}"; {hint}')
    missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in chosen]
    if missing:
        raise ConfigError(f"{place}: missing {', '.join(missing)}")
    return record(**chosen)


def _checked(value: Any, hint: Any, place: str, *, is_size: bool) -> Any:
    if is_size:
        return parse_size(value, place)
    choices = get_args(hint)
    if choices:
        value = value.strip().lower() if isinstance(value, str) else value
        if value not in choices:
            raise ConfigError(f"{place} is {_shown(value)}, expected one of: {', '.join(choices)}")
        return value
    if hint is str and isinstance(value, str) and (value.strip() or place.endswith("device_name")):
        return value.strip()
    if hint is bool and isinstance(value, bool):
        return value
    if hint in (int, float) and isinstance(value, (int, hint)) and not isinstance(value, bool) and value > 0:
        return hint(value)
    expected = {str: "a text that is not empty", bool: "true or false", int: "a positive integer"}
    raise ConfigError(f"{place} is {_shown(value)}, expected {expected.get(hint, 'a positive number')}")


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the pool file {path} (kvPoolConfig.configPath): {error}; "
            "the service's user needs read permission and the file must be UTF-8"
        ) from error
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the pool file {path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"the pool file {path} holds {_shown(content)}, expected one JSON object")
    return content


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
