"""plugin_params: form, length and words."""

from __future__ import annotations

from collections.abc import Iterator

from mindie_kvpool_plugin.check.rules.plugins import KNOWN_WORDS, MAX_SCHEDULER_BYTES, MAX_WORKER_CHARS
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, D, View
from mindie_kvpool_plugin.options import typos


@rule(
    "HC-06", "error", "late",
    "code: mindie_llm/text_generator/plugins/plugin_utils.py",
    wrong='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache,mempool\\"}"',
    right='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}"',
)  # fmt: skip
def words_are_known(view: View) -> Iterator[Fault]:
    """The worker refuses unknown words, after the weights are loaded."""
    for _, plugins, path in view.plugin_texts():
        for word in plugins.words[:20]:
            if word.strip().lower() not in KNOWN_WORDS and not _is_joined(word):
                close = typos.closest(word, KNOWN_WORDS)
                yield fault(*path, variant="close" if close else "", word=word[:40], close=close,
                            known=", ".join(KNOWN_WORDS))  # fmt: skip


def _is_joined(word: str) -> bool:
    """Words glued together by something that is not a comma."""
    return any(mark in word for mark in "，、;；|+") and any(known in word.lower() for known in KNOWN_WORDS)


@rule(
    "HC-07", "error", "silent",
    "code: src/config_manager/model_deploy_config.cpp",
    wrong="plugin_params of more than 256 bytes",
    right='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}"   (options go into the pool file)',
)  # fmt: skip
def text_is_short(view: View) -> Iterator[Fault]:
    """Above 256 bytes the scheduler sees no plugin while the worker does."""
    for _, plugins, path in view.plugin_texts():
        size = len(plugins.text.encode("utf-8", "replace"))
        if size > MAX_SCHEDULER_BYTES:
            variant = "refused" if len(plugins.text) > MAX_WORKER_CHARS else ""
            yield fault(*path, variant=variant, size=size, limit=MAX_SCHEDULER_BYTES, value=plugins.text[:60])


@rule(
    "HC-08", "error", "boot",
    "code: src/config_manager/model_deploy_config.cpp; code: mindie_llm/text_generator/plugins/plugin_utils.py",
    wrong='"plugin_params": ""',
    right='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache\\"}"   (or no such key)',
)  # fmt: skip
def text_is_a_json_object(view: View) -> Iterator[Fault]:
    """Text, JSON, an object, with a plugin_type that is a text."""
    for _, plugins, path in view.plugin_texts():
        if plugins.form == "other":
            yield fault(*path, variant="type", outcome="late")
        elif plugins.problem:
            yield fault(*path, variant=plugins.problem, outcome="late" if plugins.problem == "list" else None)
        elif "plugin_type" not in (plugins.content or {}):
            close = typos.closest("plugin_type", (plugins.content or {}).keys())
            yield fault(*path, variant="close" if close else "absent", outcome="late", close=close)
        elif not isinstance((plugins.content or {})["plugin_type"], str):
            yield fault(*path, variant="kind")


@rule(
    "HC-09", "error", "late",
    "code: mindie_llm/text_generator/plugins/plugin_utils.py",
    wrong='"{\\"plugin_type\\":\\"MTP ,prefix_cache\\"}"',
    right='"{\\"plugin_type\\":\\"mtp,prefix_cache\\"}"',
)  # fmt: skip
def words_are_written_plainly(view: View) -> Iterator[Fault]:
    """Scheduler and worker trim different blanks; both want lower case and ASCII commas."""
    for _, plugins, path in view.plugin_texts():
        for number, raw in enumerate(plugins.raw_words[:20]):
            word = raw.strip(" ")
            core = raw.strip()
            if _is_joined(core):
                yield fault(*path, variant="comma", word=core[:40])
            elif core.lower() not in (*KNOWN_WORDS, ""):
                continue
            elif core and core not in KNOWN_WORDS:
                yield fault(*path, variant="case", word=core, meant=core.lower())
            elif (core and (word != core or raw.rstrip() != raw)) or (number == 0 and raw != core):
                yield fault(*path, variant="blank", word=raw[:40].replace("\n", "\\n").replace("\t", "\\t"))
        first, *others = plugins.raw_words or ("",)
        if others and not (first and all(raw.strip() for raw in others)):
            yield fault(*path, variant="stray", severity="warning", outcome="advice")


@rule(
    "CF-18", "warning", "silent",
    "service: ModelConfig参数说明; code: src/config_manager/model_deploy_config.cpp",
    wrong='"plugin_params": {"plugin_type": "prefix_cache"}',
    right='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache\\"}"',
    explains_key=True,
)  # fmt: skip
def plugins_are_named_in_the_documented_place(view: View) -> Iterator[Fault]:
    """An object works and is not documented; plugin_type outside plugin_params does nothing."""
    for index, model in enumerate(view.models):
        if view.plugins[index].form == "object":
            yield fault(*view.model_path(index, "plugin_params"), variant="object")
        if "plugin_type" in model:
            yield fault(*view.model_path(index, "plugin_type"), variant="outside")
    first_has_none = bool(view.plugins) and not view.plugins[0].words
    if first_has_none and view.words & {"prefix_cache", "splitfuse", KV_POOL}:
        yield fault(B, D, "ModelConfig", variant="second")


@rule(
    "KP-01", "error", "silent",
    "readme: Use it on an Atlas server",
    wrong='"{\\"plugin_type\\":\\"kv_pool\\"}"',
    right='"{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}"',
)  # fmt: skip
def kv_pool_needs_prefix_cache(view: View) -> Iterator[Fault]:
    """Reloaded blocks are used through the prefix cache; a decode node only stores (KP-09)."""
    for _, plugins, path in view.plugin_texts():
        if not view.is_dmi and KV_POOL in plugins.words and "prefix_cache" not in plugins.words:
            yield fault(*path)


@rule(
    "KP-02", "error", "silent",
    "readme: Use it on an Atlas server",
    wrong='"{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}", "kvPoolConfig": {}',
    right='"kvPoolConfig": {"backend": "mooncake", "configPath": "/etc/mindie/kv_pool.json"}',
)  # fmt: skip
def kv_pool_needs_a_pool(view: View) -> Iterator[Fault]:
    """The plugin without a pool, or with one it cannot open."""
    if KV_POOL not in view.words:
        return
    if not view.is_pool:
        yield fault(B, "kvPoolConfig")
    elif view.kv_pool.get("backend") == "unifiedcache" and not view.pool_problems:  # else KP-12 tells
        yield fault(B, "kvPoolConfig", "backend", variant="backend", outcome="late")
