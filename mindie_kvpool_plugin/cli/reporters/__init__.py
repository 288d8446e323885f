"""How findings are said: text for people, the other forms for programs, editors and code hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module

from mindie_kvpool_plugin.check.messages import Language
from mindie_kvpool_plugin.check.pipeline import CheckReport

Reporter = Callable[[Sequence[CheckReport], Language], str]

FOR_PEOPLE = ("text", "concise")
"""Formats in which a file that cannot be read is told on standard error; the others hold it as a finding."""


def _late(module: str, name: str) -> Reporter:
    """A reporter whose module is imported when it reports: a run needs one of them."""

    def report(results: Sequence[CheckReport], lang: Language) -> str:
        text: str = getattr(import_module(f"{__name__}.{module}"), name)(results, lang)
        return text

    return report


REPORTERS: Mapping[str, Reporter] = {
    "text": _late("text", "text_report"),
    "concise": _late("text", "concise_report"),
    "json": _late("objects", "json_report"),
    "sarif": _late("sarif", "sarif_report"),
    "github": _late("annotations", "github_report"),
    "gitlab": _late("annotations", "gitlab_report"),
}
"""Format name -> reporter of all checked files."""
quiet_report = _late("text", "quiet_report")
"""``text`` without a summary."""
