"""``mindie-kvpool status``: would this interpreter's MindIE-LLM be hooked, and if not, why."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import click

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.check.messages import Language, words
from mindie_kvpool_plugin.cli.speaking import SpeakingCommand, chosen_language, lang_option
from mindie_kvpool_plugin.host import activate, compat


@click.command("status", cls=SpeakingCommand)
@lang_option
def command(lang: str) -> None:
    """Exit status: 0 when all hooks will be set, 1 when this package stays out."""
    chosen = chosen_language(lang)
    report = compat.inspect_host()
    python = sys.version.split()[0]
    click.echo(f"mindie-kvpool-plugin {__version__}, Python {python}: {sys.executable}")
    click.echo(words("status.armed" if activate.is_armed() else "status.not_armed", chosen))
    if activate.is_disabled():
        click.echo(words("status.disabled", chosen, variable=activate.DISABLE_VARIABLE))
    for line in _host_lines(report, chosen):
        click.echo(line)
    click.echo("Mooncake: " + words("status.installed" if _has_mooncake() else "status.not_installed", chosen))
    is_active = report.fits and activate.is_armed() and not activate.is_disabled()
    click.echo(words("status.active" if is_active else "status.stays_out", chosen))
    sys.exit(0 if is_active else 1)


def _has_mooncake() -> bool:
    return importlib.util.find_spec("mooncake") is not None


def _host_lines(report: compat.HostReport, lang: Language) -> Iterator[str]:
    """The host, and every place of it that is hooked."""
    if report.directory is None:
        yield "MindIE-LLM: " + words("status.not_installed", lang)
        return
    tested = ", ".join(compat.TESTED_VERSIONS)
    yield words("status.host", lang, version=report.version, tested=tested, directory=report.directory)
    wrong = dict(report.problems)
    for place in compat.PLACES:
        mark = words("status.fits", lang)
        if place in wrong:
            mark = words("status.does_not_fit", lang, problem=wrong[place])
        yield f"  {place.module}.{place.name}: {mark} ({place.why(lang)})"
