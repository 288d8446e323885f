"""Whether the pool is on in this worker, decided from what the host was configured with.

One rule for all who ask (the plugin, and the two hooks that make the host's own pooling stand aside):
on means ``plugin_type`` names kv_pool and prefix_cache, ``kvPoolConfig`` has backend and configPath,
and the pool file has a ``kv_pool`` section.  Otherwise the host's worker runs as without this package.  On a
decode node the host forbids prefix_cache, and kv_pool does without: it only stores there.

The scheduler's process is told backend and pool file, and nothing of ``plugin_type``.  So a section without the word
parts it from its workers: it asks for our names, they store the host's.  An error of the check, a warning in the log.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mindie_kvpool_plugin.options.pool_file import SECTION, has_section

PLUGIN_NAME = "kv_pool"
PREFIX_CACHE = "prefix_cache"
DECODE_ROLE = "decoder"


def plugin_words(plugin_type: Any) -> list[str]:
    """The plugin names in a ``plugin_type`` text, split the way the host does."""
    return [word for word in re.split(r",\s*", plugin_type) if word] if isinstance(plugin_type, str) else []


def words_of_params(plugin_params: Any) -> list[str]:
    """The plugin names in the ``plugin_params`` JSON text of a model config."""
    try:
        params = json.loads(plugin_params) if plugin_params else {}
    except (TypeError, ValueError):
        return []  # the host's validator reports it
    return plugin_words(params.get("plugin_type")) if isinstance(params, dict) else []


def parted_warning(words: list[str], backend: str, config_path: str) -> str | None:
    """What is wrong where the scheduler asks for our names and the workers store the host's; None where they agree."""
    if PLUGIN_NAME in words or not backend or not config_path or not has_section(config_path, unreadable=False):
        return None
    return (
        f'the pool file {config_path} has a "{SECTION}" section, but plugin_type does not name "{PLUGIN_NAME}": the '
        "scheduler asks for names of this package, MindIE-LLM's own pooling stores others, so no block is ever found; "
        f'write "plugin_type":"{PREFIX_CACHE},{PLUGIN_NAME}" or remove the section'
    )


def why_off(words: list[str], backend: str, config_path: str, role: str = "standard") -> str | None:
    """Why the pool is off, or None when it is on.

    Args:
        words: of ``plugin_type``.
        backend, config_path: of ``kvPoolConfig``.
        role: the node's, as the host names it.

    Raises:
        Nothing: a pool file that cannot be read counts as one that asks for us, so that reading it
        properly reports the mistake.
    """
    if PLUGIN_NAME not in words:
        return f'plugin_type does not name "{PLUGIN_NAME}"'
    if PREFIX_CACHE not in words and role != DECODE_ROLE:
        return (
            f'plugin_type names "{PLUGIN_NAME}" without "{PREFIX_CACHE}"; the scheduler then hashes no blocks. '
            f'Write "plugin_type":"{PREFIX_CACHE},{PLUGIN_NAME}"'
        )
    if not backend:
        return "kvPoolConfig.backend is empty"
    if not config_path:
        return "kvPoolConfig.configPath is empty; name the pool file there"
    if not has_section(config_path, unreadable=True):
        return (
            f'the pool file {config_path} has no "{SECTION}" section, so the host\'s own pooling stays in charge; '
            f'add "{SECTION}": {{}} to hand it over'
        )
    return None
