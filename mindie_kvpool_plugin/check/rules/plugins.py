"""plugin_params: a JSON object written as text inside JSON, read as host and worker read it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from mindie_kvpool_plugin.options.pool_file import parse_text

KNOWN_KEYS = (
    "plugin_type", "num_speculative_tokens", "level", "window", "guess_set_size", "decoding_length", "dynamic_algo",
    "enable_structured_output", "guided_decoding_backend",
)  # fmt: skip
"""What MindIE-LLM reads beside plugin_type's words."""

TAKEN_KEYS = (
    "generator_backend", "kvcache_settings", "infer_context", "output_filter", "is_mix_model", "plugin_list",
    "model_role", "watcher",
)  # fmt: skip
"""Arguments the worker hands to its plugin manager itself: a key of that name is one too many."""

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
        problem: why there is no content: "blank", "json", "bom", "twice", "list", "number" or "".
        repeated: keys of that object that occur more than once; the last one counts.
        raw_words: plugin_type split at commas, untouched.
        words: plugin_type's words, blanks trimmed.
    """

    form: Form = "absent"
    text: str = ""
    content: dict[str, Any] | None = None
    problem: str = ""
    raw_words: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()


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
    if value.startswith("\ufeff"):
        return Plugins("text", value, problem="bom")
    return _read_text(value)


def _read_text(value: str) -> Plugins:
    """The worker's Python takes NaN and half of a surrogate pair for JSON; the scheduler's C++ does not."""
    objects: list[list[str]] = []

    def noted(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        objects.append([key for key, _ in pairs])
        return dict(pairs)

    try:
        content = json.loads(value, object_pairs_hook=noted)
    except (ValueError, RecursionError):
        return Plugins("text", value, problem="twice" if '\\"' in value else "json")
    if not isinstance(content, dict):
        return Plugins("text", value, problem="list")
    try:
        parse_text(value)
    except ValueError:
        return Plugins("text", value, problem="number")
    repeated = {key for keys in objects if len(set(keys)) < len(keys) for key in keys if keys.count(key) > 1}
    return replace(_with_words("text", value, content), repeated=tuple(sorted(repeated)))


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
