"""``mindie-kvpool explain``: what a finding means, why, and a right and a wrong example."""

from __future__ import annotations

import os
import sys

import click

from mindie_kvpool_plugin.check.messages import language, words
from mindie_kvpool_plugin.check.rules import all_codes


@click.command(name="explain", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("code", required=False)
@click.option("--lang", type=click.Choice(["en", "zh", "auto"]), default="auto", show_default=True)
def command(code: str | None, lang: str) -> None:
    """Explain CODE, such as HC-01; without it, list all codes."""
    chosen = language(lang, os.environ)
    codes = all_codes()
    if code is None:
        for name in sorted(codes):
            click.echo(f"{name}  {words(f'{name}.title', chosen)}")
        return
    found = codes.get(code.upper())
    if found is None:
        click.echo(words("explain.unknown", chosen, code=code, known=", ".join(sorted(codes))), err=True)
        sys.exit(2)
    severity, outcome = words(f"severity.{found.severity}", chosen), words(f"outcome.{found.outcome}", chosen)
    click.echo(f"{click.style(found.id, bold=True)}  {words(f'{found.id}.title', chosen)}\n")
    click.echo(words(f"{found.id}.why", chosen) + "\n")
    click.echo(f"{words('explain.severity', chosen)}: {severity}")
    click.echo(f"{words('explain.outcome', chosen)}: {outcome}")
    click.echo(f"{words('explain.source', chosen)}: {found.source}\n")
    for kind, example in (("wrong", found.wrong), ("right", found.right)):
        click.echo(words(f"explain.{kind}", chosen) + ":")
        click.echo("\n".join(f"    {line}" for line in example.splitlines()))
