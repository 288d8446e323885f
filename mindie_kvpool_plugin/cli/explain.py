"""``mindie-kvpool explain``: what a finding, or a message of MindIE-LLM, means and what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from mindie_kvpool_plugin.check.findings import Code
from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.check.rules import all_codes
from mindie_kvpool_plugin.check.sources import told
from mindie_kvpool_plugin.cli.host_messages import KNOWN, HostMessage, known_message
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option, suggestion
from mindie_kvpool_plugin.observability.causes import CAUSES
from mindie_kvpool_plugin.options.typos import closest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

PLACEHOLDERS = ("ago", "adapter", "namespace", "fingerprint", "since", "took", "arrived")
"""What the text of a cause says of one prompt."""

_SPELLING = re.compile(r"([A-Z]{2})[-_ ]?0*(\d{1,2})")


def complete_code(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes, and causes of ``mindie-kvpool why``, that begin like ``incomplete``, for a shell."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  # only when a shell asks

    del ctx, param
    lang = chosen_language("auto")
    begun = [code for code in sorted(all_codes()) if code.startswith(incomplete.upper())]
    items = [CompletionItem(code, help=words(f"{code}.title", lang)) for code in begun]
    named = [cause for cause in CAUSES if incomplete and cause.startswith(incomplete.lower())]
    return items + [CompletionItem(cause, help=words(f"why.{cause}.title", lang)) for cause in named]


@click.command(name="explain", cls=SpeakingCommand)
@click.argument("words_given", metavar="[CODE]", nargs=-1, shell_complete=complete_code)
@lang_option
def command(words_given: tuple[str, ...], lang: str) -> None:
    """Explain a code or a message of MindIE-LLM; without one, list all."""
    chosen, asked = chosen_language(lang), " ".join(words_given)
    codes = all_codes()
    if not asked:
        click.echo("\n".join(_all(codes, chosen)))
        return
    found, said = codes.get(_as_written(asked)), known_message(asked)
    if found is not None:
        click.echo("\n".join(_explained(found, chosen)))
    elif said is not None:
        click.echo("\n".join(_explained_message(said, chosen)))
    elif asked.lower() in CAUSES:
        click.echo("\n".join(_explained_cause(asked.lower(), chosen)))
    else:
        meant = suggestion(closest(_as_written(asked), codes) or closest(asked, CAUSES), chosen)
        click.echo(words("explain.unknown", chosen, code=asked) + meant, err=True)
        sys.exit(2)


def _all(codes: Mapping[str, Code], lang: Language) -> Iterator[str]:
    yield from (f"{name}  {words(f'{name}.title', lang)}" for name in sorted(codes))
    yield from ("", words("explain.messages", lang) + ":")
    yield from (f"    {each.words.rstrip(': ')}" for each in KNOWN)
    yield from ("", words("explain.causes", lang) + ":")
    yield from (f"    {cause}  {words(f'why.{cause}.title', lang)}" for cause in CAUSES)


def _as_written(code: str) -> str:
    """``hc1`` is HC-01."""
    spelt = _SPELLING.fullmatch(code.strip().upper())
    return f"{spelt[1]}-{int(spelt[2]):02d}" if spelt else code.strip().upper()


def _explained(kind: Code, lang: Language) -> list[str]:
    severity, outcome = words(f"severity.{kind.severity}", lang), words(f"outcome.{kind.outcome}", lang)
    lines = [f"{click.style(kind.id, bold=True)}  {words(f'{kind.id}.title', lang)}", ""]
    lines += [words(f"{kind.id}.why", lang), ""]
    for when, example in (("before", kind.wrong), ("after", kind.right)):
        lines.append(words(f"explain.{when}", lang, severity=severity, outcome=outcome) + ":")
        lines += [f"    {line}" for line in example.splitlines()]
    return [*lines, "", words("explain.source", lang) + ":", *(f"    {each}" for each in told(kind.source, lang))]


def _explained_message(said: HostMessage, lang: Language) -> list[str]:
    lines = [click.style(said.words.rstrip(": "), bold=True), "", words(f"said.{said.name}.why", lang)]
    lines.append(words("status.fix", lang, fix=words(f"said.{said.name}.fix", lang)))
    return [*lines, "", words("explain.source", lang) + f": MindIE-LLM, {said.source}"] if said.source else lines


def _explained_cause(cause: str, lang: Language) -> list[str]:
    """What ends a prompt's prefix; what belongs to one prompt is left open."""
    told = [words(f"why.{cause}.{part}", lang, **dict.fromkeys(PLACEHOLDERS, "…")) for part in ("why", "todo")]
    heading = f"{click.style(cause, bold=True)}  {words(f'why.{cause}.title', lang)}"
    return [heading, "", told[0], f"{words('explain.todo', lang)}: {told[1]}"]
