"""``mindie-kvpool schema``: print a JSON Schema, for editors and other tools."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from mindie_kvpool_plugin.check.messages import words
from mindie_kvpool_plugin.check.schema import profiles
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option, suggestion
from mindie_kvpool_plugin.options.typos import closest

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_schema(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of schemas that begin like ``incomplete``, for a shell."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415  # only when a shell asks

    del ctx, param
    return [CompletionItem(name) for name in profiles.names() if name.startswith(incomplete)]


@click.command(name="schema", cls=SpeakingCommand)
@click.argument("name", required=False, shell_complete=complete_schema)
@lang_option
def command(name: str | None, lang: str) -> None:
    """Print a schema; without a name, list all."""
    if name is None:
        click.echo("\n".join(profiles.names()))
        return
    if name not in profiles.names():
        chosen, known = chosen_language(lang), ", ".join(profiles.names())
        meant = suggestion(closest(name, profiles.names()), chosen)
        click.echo(words("check.no_schema", chosen, name=name, known=known) + meant, err=True)
        sys.exit(2)
    click.echo(profiles.text(name), nl=False)
