"""``mindie-kvpool support``: what pooling may be combined with."""

from __future__ import annotations

import click

from mindie_kvpool_plugin import support
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option


@click.command("support", cls=SpeakingCommand)
@lang_option
def command(lang: str) -> None:
    """Print the table, as Markdown."""
    click.echo(support.table(chosen_language(lang)))
