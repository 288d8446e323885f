"""The keys of plugin_params beside plugin_type: what each word needs, and what nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.check.rules.plugins import KNOWN_KEYS, TAKEN_KEYS, Plugins
from mindie_kvpool_plugin.check.rules.registry import Fault, fault, rule
from mindie_kvpool_plugin.check.rules.view import View, integer, worker_integer
from mindie_kvpool_plugin.options import typos
from mindie_kvpool_plugin.options.pool_file import is_comment

MAX_MTP_TOKENS = 5
DOCUMENTED_MTP_TOKENS = (1, 2)
MIN_LA_LEVEL = 3
# la and memory_decoding run with it instead of a larger number
MAX_NUMBER = 16
NEEDED_KEYS = {
    "mtp": ("num_speculative_tokens",),
    "la": ("level", "window", "guess_set_size"),
    "memory_decoding": ("decoding_length",),
}


@rule(
    "HC-11", "error", "late",
    "mtp: 参数说明; parallel_decoding: 参数说明; code: mindie_llm/text_generator/plugins/plugin_utils.py",
    wrong='"{\\"plugin_type\\":\\"mtp\\"}"',
    right='"{\\"plugin_type\\":\\"mtp\\",\\"num_speculative_tokens\\":1}"',
)  # fmt: skip
def words_have_their_fields(view: View) -> Iterator[Fault]:
    """mtp, la and memory_decoding need numbers that fit speculationGamma."""
    gamma = integer(view.deploy, "speculationGamma", 0) or 0
    for _, plugins, path in view.plugin_texts():
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
    for _, plugins, path in view.plugin_texts():
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
