"""plugin_params: form, length, words, and the fields each word needs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.check.rules.plugins import (
    KNOWN_KEYS,
    KNOWN_WORDS,
    MAX_SCHEDULER_BYTES,
    MAX_WORKER_CHARS,
    TAKEN_KEYS,
    Plugins,
)
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import KV_POOL, B, D, View, integer, text, worker_integer
from mindie_kvpool_plugin.options import typos
from mindie_kvpool_plugin.options.pool_file import is_comment

MAX_MTP_TOKENS = 5
DOCUMENTED_MTP_TOKENS = (1, 2)
MIN_LA_LEVEL = 3
STEP_WORDS = ("mtp", "la", "memory_decoding", "splitfuse")
"""Plugins that decide which tokens a step computes."""
# la and memory_decoding run with it instead of a larger number
MAX_NUMBER = 16
NEEDED_KEYS = {
    "mtp": ("num_speculative_tokens",),
    "la": ("level", "window", "guess_set_size"),
    "memory_decoding": ("decoding_length",),
}


def _parts(view: View) -> Iterator[tuple[int, Plugins, tuple[str | int, ...]]]:
    for index, plugins in enumerate(view.plugins):
        if plugins.form != "absent":
            yield index, plugins, view.model_path(index, "plugin_params")


@rule(
    "HC-06", "error", "late",
    "code: mindie_llm/text_generator/plugins/plugin_utils.py",
    wrong='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache,mempool\\"}"',
    right='"plugin_params": "{\\"plugin_type\\":\\"prefix_cache,kv_pool\\"}"',
)  # fmt: skip
def words_are_known(view: View) -> Iterator[Fault]:
    """The worker refuses unknown words, after the weights are loaded."""
    for _, plugins, path in _parts(view):
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
    for _, plugins, path in _parts(view):
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
    for _, plugins, path in _parts(view):
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
    for _, plugins, path in _parts(view):
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
    "HC-11", "error", "late",
    "mtp: 参数说明; parallel_decoding: 参数说明; code: mindie_llm/text_generator/plugins/plugin_utils.py",
    wrong='"{\\"plugin_type\\":\\"mtp\\"}"',
    right='"{\\"plugin_type\\":\\"mtp\\",\\"num_speculative_tokens\\":1}"',
)  # fmt: skip
def words_have_their_fields(view: View) -> Iterator[Fault]:
    """mtp, la and memory_decoding need numbers that fit speculationGamma."""
    gamma = integer(view.deploy, "speculationGamma", 0) or 0
    for _, plugins, path in _parts(view):
        content = plugins.content or {}
        tokens = content.get("num_speculative_tokens")
        if "mtp" in plugins.words and isinstance(tokens, int) and tokens > 0:
            gamma = max(tokens, 2 * tokens - 2)  # the host sets it anew
        if "mtp" in plugins.words:
            yield from _mtp(content, path, view)
        if "la" in plugins.words:
            yield from _la(content, path, gamma)
        if "memory_decoding" in plugins.words:
            yield from _memory_decoding(content, path, gamma)


def _mtp(content: dict[str, Any], path: tuple[str | int, ...], view: View) -> Iterator[Fault]:
    if "num_speculative_tokens" not in content:
        yield _absent(content, path, "mtp", "num_speculative_tokens")
        return
    tokens = content["num_speculative_tokens"]
    if tokens is True:
        yield _counted(path, "num_speculative_tokens")
    elif not isinstance(tokens, (int, float)):
        yield fault(*path, variant="mtp_type", outcome="boot", found=str(tokens)[:20])
    elif isinstance(tokens, float) or not 0 <= tokens <= MAX_MTP_TOKENS:
        yield fault(*path, variant="mtp_range", found=str(tokens)[:20])
    elif tokens not in DOCUMENTED_MTP_TOKENS:
        yield fault(*path, variant="mtp_documented", severity="warning", outcome="advice", found=tokens)
    elif tokens == 2 and any((worker_integer(model, "cp") or 1) > 1 for model in view.models):
        yield fault(*path, variant="mtp_cp", severity="warning", outcome="advice")


def _la(content: dict[str, Any], path: tuple[str | int, ...], gamma: int) -> Iterator[Fault]:
    for name in NEEDED_KEYS["la"]:
        if name not in content:
            yield _absent(content, path, "la", name)
            return
    level, window, guess = (content[name] for name in NEEDED_KEYS["la"])
    for name in ("window", "guess_set_size"):
        if content[name] is True:
            yield _counted(path, name)
    if not all(isinstance(number, int) for number in (level, window, guess)):
        yield fault(*path, variant="numbers", word="la")
    elif level < MIN_LA_LEVEL or window < 1 or guess < 1:
        yield fault(*path, variant="la_range")
    elif (level - 1) * (window + guess) > gamma:
        yield fault(*path, variant="gamma", word="la", needed=(level - 1) * (window + guess), gamma=gamma)
    elif max(level, window, guess) > MAX_NUMBER:
        yield _clamped(path, "la")


def _memory_decoding(content: dict[str, Any], path: tuple[str | int, ...], gamma: int) -> Iterator[Fault]:
    if "decoding_length" not in content:
        yield _absent(content, path, "memory_decoding", "decoding_length")
        return
    length = content["decoding_length"]
    if length is True:
        yield _counted(path, "decoding_length")
    if not isinstance(length, int):
        yield fault(*path, variant="numbers", word="memory_decoding")
    elif length > gamma:
        yield fault(*path, variant="gamma", word="memory_decoding", needed=int(length), gamma=gamma)
    elif not 1 <= length <= MAX_NUMBER:
        yield _clamped(path, "memory_decoding")


def _absent(content: dict[str, Any], path: tuple[str | int, ...], word: str, name: str) -> Fault:
    close = _misspelt(content, name)
    return fault(*path, variant="close" if close else "absent", word=word, field=name, close=close)


def _misspelt(content: dict[str, Any], name: str) -> str | None:
    """The unknown key that was probably meant to be ``name``."""
    return next((key for key in content if key not in KNOWN_KEYS and typos.closest(key, (name,))), None)


def _clamped(path: tuple[str | int, ...], word: str) -> Fault:
    return fault(*path, variant="clamped", severity="warning", outcome="silent", word=word, low=1, high=MAX_NUMBER)


def _counted(path: tuple[str | int, ...], name: str) -> Fault:
    """A true that passes as 1 in scheduler and worker."""
    return fault(*path, variant="true", severity="warning", outcome="silent", field=name)


@rule(
    "CF-21", "warning", "silent",
    "code: mindie_llm/text_generator/plugins/plugin_utils.py",
    wrong='"{\\"plugin_type\\":\\"memory_decoding\\",\\"decoding_length\\":16,\\"dynamic_alg\\":true}"',
    right='"{\\"plugin_type\\":\\"memory_decoding\\",\\"decoding_length\\":16,\\"dynamic_algo\\":true}"',
)  # fmt: skip
def keys_of_the_text_are_read(view: View) -> Iterator[Fault]:
    """Unknown ones do nothing, of repeated ones the last counts, and a few collide with arguments of the worker."""
    for _, plugins, path in _parts(view):
        for key in plugins.repeated[:20]:
            yield fault(*path, variant="twice", key=key[:40])
        content = plugins.content or {}
        for key in list(content)[:20]:
            if key in TAKEN_KEYS:
                yield fault(*path, variant="taken", severity="error", outcome="late", key=key)
            elif key not in KNOWN_KEYS and not is_comment(key):
                close = typos.closest(key, KNOWN_KEYS)
                if close is None or close in content or not _is_needed(close, plugins):  # else HC-08 or HC-11 tells
                    yield fault(*path, variant="close" if close else "", key=key[:40], close=close)


def _is_needed(key: str, plugins: Plugins) -> bool:
    return key == "plugin_type" or any(key in NEEDED_KEYS.get(word, ()) for word in plugins.words)


@rule(
    "HC-41", "error", "late",
    "async: 限制与约束; features: 特性叠加矩阵",
    wrong="export MINDIE_ASYNC_SCHEDULING_ENABLE=1   (with la or memory_decoding)",
    right="unset MINDIE_ASYNC_SCHEDULING_ENABLE",
)  # fmt: skip
def async_scheduling_excludes_parallel_decoding(view: View) -> Iterator[Fault]:
    """The worker raises on this pair."""
    both = sorted({"la", "memory_decoding"} & view.words)
    if both and view.situation.variable("MINDIE_ASYNC_SCHEDULING_ENABLE") == "1":
        yield fault(*view.plugins_path(), words=", ".join(both))


@rule(
    "HC-42", "warning", "advice",
    "features: 特性叠加矩阵; splitfuse: 限制与约束",
    wrong='"{\\"plugin_type\\":\\"la,memory_decoding\\"}"',
    right='"{\\"plugin_type\\":\\"la\\"}"',
)  # fmt: skip
def words_go_together(view: View) -> Iterator[Fault]:
    """Pairs the documents exclude; what kv_pool refuses of them is told by KP-14."""
    for one, other in combinations(STEP_WORDS, 2):
        if {one, other} <= view.words and KV_POOL not in view.words:
            yield fault(*view.plugins_path(), one=one, other=other)
    for word in STEP_WORDS if view.has_lora else ():
        if word in view.words and not _is_told_elsewhere(view, word):
            yield fault(*view.plugins_path(), one=word, other="LoRA")


def _is_told_elsewhere(view: View, word: str) -> bool:
    is_refused = KV_POOL in view.words and bool(support.refusals({word, "lora"}))
    return is_refused or (word == "splitfuse" and any(True for _ in _split_with_lora(view)))


@rule(
    "HC-43", "error", "late",
    "splitfuse: 限制与约束",
    wrong='"{\\"plugin_type\\":\\"splitfuse\\"}" with "LoraModules": [...]',
    right='"{\\"plugin_type\\":\\"splitfuse\\"}" without adapters',
)  # fmt: skip
def splitfuse_excludes_lora(view: View) -> Iterator[Fault]:
    """The worker raises on backendType atb when adapters are named at start; with kv_pool KP-14 tells it."""
    if KV_POOL not in view.words:
        yield from _split_with_lora(view)


def _split_with_lora(view: View) -> Iterator[Fault]:
    for index, model in enumerate(view.models):
        is_named = bool(view.deploy.get("LoraModules")) or view.lora_file(index) is not None
        if is_named and "splitfuse" in view.plugins[index].words and text(model, "backendType") == "atb":
            yield fault(*view.model_path(index, "plugin_params"))


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
    for _, plugins, path in _parts(view):
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
