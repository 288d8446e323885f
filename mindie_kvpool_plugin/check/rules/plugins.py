"""plugin_params: a JSON object written as text inside JSON, read as host and worker read it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

KNOWN_WORDS = ("la", "memory_decoding", "prefix_cache", "mtp", "splitfuse", "kv_pool")
"""The host's five, and ours."""

# the scheduler ignores longer texts
MAX_SCHEDULER_BYTES = 256
# the worker refuses longer ones
MAX_WORKER_CHARS = 1024

# a longer text is refused for its length; its first words are enough to judge
MAX_JUDGED_CHARS = 4 * MAX_WORKER_CHARS

Form = Literal["absent", "text", "object", "other"]


@dataclass(frozen=True, slots=True)
class Plugins:
    """One model's plugin_params.

    Attributes:
        form: how it is written.
        text: as the host sees it.
        content: the object inside; None when the text is no JSON object.
        problem: why there is no content: "blank", "json", "bom", "twice", "list" or "".
        raw_words: plugin_type split at commas, untouched.
        words: plugin_type's words, blanks trimmed.
    """

    form: Form = "absent"
    text: str = ""
    content: dict[str, Any] | None = None
    problem: str = ""
    raw_words: tuple[str, ...] = ()
    words: tuple[str, ...] = field(default=())


def read_plugins(model: dict[str, Any]) -> Plugins:
    """Read a ModelConfig entry's plugin_params; any value is fine."""
    if "plugin_params" not in model:
        return Plugins()
    value = model["plugin_params"]
    if isinstance(value, dict):
        # the host dumps an object compactly, keys sorted
        return _with_words("object", _dump(value), value)
    if not isinstance(value, str):
        return Plugins("other", text=_dump(value)[:80])
    if not value.strip():
        return Plugins("text", value, problem="blank")
    problem, content = _content(value)
    return _with_words("text", value, content) if content is not None else Plugins("text", value, problem=problem)


def _content(value: str) -> tuple[str, dict[str, Any] | None]:
    if value.startswith("\ufeff"):
        return "bom", None
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        return ("twice" if '\\"' in value else "json"), None
    return ("list", None) if not isinstance(content, dict) else ("", content)


def _with_words(form: Form, text: str, content: dict[str, Any]) -> Plugins:
    kind = content.get("plugin_type")
    raw = tuple(kind[:MAX_JUDGED_CHARS].split(",")) if isinstance(kind, str) else ()
    words = tuple(dict.fromkeys(word.strip(" ") for word in raw if word.strip(" ")))
    return Plugins(form, text, content, "", raw, words)


def _dump(value: Any) -> str:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError, TypeError):
        return ""
