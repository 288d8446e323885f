"""``mindie-kvpool status``: would this interpreter's MindIE-LLM be hooked, and if not, why."""

from __future__ import annotations

import importlib.util
import sys

import click

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.host import activate, compat


@click.command("status")
def command() -> None:
    """Say which MindIE-LLM this interpreter has and which of its places are hooked.

    Exit status: 0 when all hooks will be set, 1 when this package stays out.
    """
    click.echo(f"mindie-kvpool-plugin {__version__}, Python {sys.version.split()[0]} at {sys.executable}")
    is_armed = activate.is_armed()
    click.echo(
        "start-up hook: "
        + ("active" if is_armed else "missing; reinstall the wheel so that its .pth file is in site-packages")
    )
    is_disabled = activate.is_disabled()
    if is_disabled:
        click.echo(f"switched off by {activate.DISABLE_VARIABLE}=1")
    report = compat.inspect_host()
    if report.directory is None:
        click.echo("MindIE-LLM: not installed for this interpreter")
    else:
        tested = ", ".join(compat.TESTED_VERSIONS)
        click.echo(f"MindIE-LLM: {report.version} (tested with {tested}) at {report.directory}")
        wrong = dict(report.problems)
        for place in compat.PLACES:
            mark = f"DOES NOT FIT, {wrong[place]}" if place in wrong else "fits"
            click.echo(f"  {place.module}.{place.name}: {mark} ({place.why})")
    click.echo(f"Mooncake: {'installed' if importlib.util.find_spec('mooncake') else 'not installed'}")
    active = report.fits and is_armed and not is_disabled
    click.echo(
        "result: " + ("all hooks will be set" if active else "stays out, MindIE-LLM runs as without this package")
    )
    sys.exit(0 if active else 1)
