"""The lines of an examination, for people and for programs: what ``doctor`` and ``acceptance`` share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.messages import Language, message, system_reason, words
from mindie_kvpool_plugin.check.pipeline import CheckReport, check_file
from mindie_kvpool_plugin.check.situation import Situation, find_home
from mindie_kvpool_plugin.doctor.examine import Probe
from mindie_kvpool_plugin.doctor.lines import Line, as_object

UNREADABLE = 2

Results = Iterable[tuple[Probe[Any], list[Line]]]
Mark = Callable[[Line], tuple[str, str | None]]
"""A line's word, and its colour if it has one."""


def read_report(config: Path | None, lang: Language) -> CheckReport:
    """The check's report on the file; exit 2 where there is none."""
    if config is None:
        click.echo(words("check.no_default", lang), err=True)
        sys.exit(UNREADABLE)
    env = dict(os.environ)
    situation = Situation(env=env, is_env_known=True, config_path=config, home=find_home(env, config))
    try:
        return check_file(config, situation)
    except OSError as error:
        found = codes.CANNOT_READ.found(params={"file": str(config), "reason": system_reason(error)})
        click.echo(message(found, lang), err=True)
        sys.exit(UNREADABLE)


def say_title(probe: Probe[Any], lang: Language) -> None:
    """What is looked at now: some of it takes minutes."""
    click.echo(click.style(words(f"doctor.title.{probe.name}", lang), bold=True))


def say(results: Results, lang: Language, mark: Mark) -> Iterator[tuple[Probe[Any], list[Line]]]:
    """Print each probe's lines as soon as they are there, and hand them on."""
    for probe, lines in results:
        for line in lines:
            word, colour = mark(line)
            click.echo(f"  {click.style(word, fg=colour, bold=colour is not None)}  {line.text(lang)}")
            fix = line.fix(lang)
            if fix:
                click.echo(f"      {words('report.hint', lang)}: {fix}")
        yield probe, lines


def objects(results: Results, lang: Language) -> list[dict[str, Any]]:
    """The lines for programs."""
    return [{"probe": probe.name, **as_object(line, lang)} for probe, lines in results for line in lines]
