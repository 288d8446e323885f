"""``mindie-kvpool support``: what pooling may be combined with."""

from __future__ import annotations

import click

from mindie_kvpool_plugin import support


@click.command("support")
@click.option("--lang", type=click.Choice(["en", "zh"]), default="en", help="Language of the table.")
def command(lang: support.Language) -> None:
    """Print what pooling may be combined with, as Markdown: works, refused, or never run."""
    click.echo(support.table(lang))
