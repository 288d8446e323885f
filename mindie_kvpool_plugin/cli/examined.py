"""The lines of an examination, for people and for programs: what ``doctor`` and ``acceptance`` share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from mindie_kvpool_plugin.check.messages import Language, Refused, words
from mindie_kvpool_plugin.check.pipeline import CheckReport, check_file
from mindie_kvpool_plugin.check.situation import Situation, default_config, find_home
from mindie_kvpool_plugin.cli.targets import find_config
from mindie_kvpool_plugin.doctor.examine import Probe
from mindie_kvpool_plugin.doctor.lines import Line, as_object

Results = Iterable[tuple[Probe[Any], list[Line]]]
Mark = Callable[[Line], tuple[str, str | None]]
"""A line's word, and its colour if it has one."""


def read_report(config: Path | None) -> CheckReport:
    """The check's report on the file, or on the one that lies in a folder, or where the host would look.

    Raises:
        Refused: there is none, or several.
        OSError: it cannot be read.
    """
    env = dict(os.environ)
    named = config or default_config(env)
    if named is None:
        raise Refused("check.no_default")
    path = find_config(named)
    return check_file(path, Situation(env=env, is_env_known=True, config_path=path, home=find_home(env, path)))


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
