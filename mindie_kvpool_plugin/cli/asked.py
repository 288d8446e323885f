"""How commands that ask the processes of this machine say why one did not tell anything."""

from __future__ import annotations

from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.observability.questions import Reply


def silence(reply: Reply, lang: Language) -> str:
    """Why there is no answer that can be used."""
    if reply.kind:
        return words(f"asked.{reply.kind}", lang, seconds=f"{reply.timeout_s:g}")
    return reply.trouble or words("stats.other_version", lang)
