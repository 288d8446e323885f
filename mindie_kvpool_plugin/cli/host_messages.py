"""Messages of MindIE-LLM that people search for when pooling does not work, for ``mindie-kvpool explain``.

``said.<name>.why`` and ``said.<name>.fix`` in ``locale/`` explain them; ``docs/troubleshooting.md`` goes by symptom.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HostMessage:
    """One of the host's messages.

    Attributes:
        name: of its texts.
        words: what it always says, as its source writes it.
        source: the file that writes it, from the top of the host's source tree; empty when that is Python itself.
    """

    name: str
    words: str
    source: str


_GENERATOR = "mindie_llm/text_generator/generator.py"

KNOWN = (
    HostMessage("plugin_type", "Unsupported plugin type: ", "mindie_llm/text_generator/plugins/plugin_utils.py"),
    HostMessage("no_backend", "execvp mindie_llm_backend failed", "src/executor/executor.cpp"),
    HostMessage(
        "protocol", "The current mooncake protocol supports", "mindie_llm/text_generator/mempool/mooncake_mempool.py"
    ),
    HostMessage("engine", "Unknown cache engine type", "mindie_llm/text_generator/mempool/factory.py"),
    HostMessage(
        "decode_node",
        "Prefix Cache is not supported on D nodes under PD separation",
        "mindie_llm/text_generator/generator.py",
    ),
    HostMessage("splitfuse", "Async mempool does not support plugin_type: splitfuse", _GENERATOR),
    HostMessage("no_module", "No module named 'mindie_llm'", ""),
)


def known_message(text: str) -> HostMessage | None:
    """The message that ``text`` is, or has in it, as a log line has; upper and lower case are alike."""
    folded = text.casefold()
    return next((each for each in KNOWN if each.words.strip().casefold() in folded), None)
