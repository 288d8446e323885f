"""``mindie-kvpool schema``: print a JSON Schema, for editors and other tools."""

from __future__ import annotations

import os
import sys

import click

from mindie_kvpool_plugin.check.messages import language, words
from mindie_kvpool_plugin.check.schema import profiles


@click.command(name="schema", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False)
@click.option("--lang", type=click.Choice(["en", "zh", "auto"]), default="auto", show_default=True)
def command(name: str | None, lang: str) -> None:
    """Print the schema NAME; without it, list all names."""
    if name is None:
        click.echo("\n".join(profiles.names()))
        return
    if name not in profiles.names():
        known = ", ".join(profiles.names())
        click.echo(words("check.no_schema", language(lang, os.environ), name=name, known=known), err=True)
        sys.exit(2)
    click.echo(profiles.text(name), nl=False)
