"""``mindie-kvpool explain``: what a finding means, a case before and after, and where the rule is written down."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import click

from mindie_kvpool_plugin.check.findings import Code
from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.check.rules import all_codes
from mindie_kvpool_plugin.check.sources import told
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option, suggestion
from mindie_kvpool_plugin.options.typos import closest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_SPELLING = re.compile(r"([A-Z]{2})[-_ ]?0*(\d{1,2})")


def complete_code(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes that begin like ``incomplete``, for a shell."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  # only when a shell asks

    del ctx, param
    lang = chosen_language("auto")
    begun = [code for code in sorted(all_codes()) if code.startswith(incomplete.upper())]
    return [CompletionItem(code, help=words(f"{code}.title", lang)) for code in begun]


@click.command(name="explain", cls=SpeakingCommand)
@click.argument("code", required=False, shell_complete=complete_code)
@lang_option
def command(code: str | None, lang: str) -> None:
    """Explain a code; without one, list all."""
    chosen = chosen_language(lang)
    codes = all_codes()
    if code is None:
        for name in sorted(codes):
            click.echo(f"{name}  {words(f'{name}.title', chosen)}")
        return
    found = codes.get(_as_written(code))
    if found is None:
        meant = suggestion(closest(_as_written(code), codes), chosen)
        click.echo(words("explain.unknown", chosen, code=code) + meant, err=True)
        sys.exit(2)
    click.echo("\n".join(_explained(found, chosen)))


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
