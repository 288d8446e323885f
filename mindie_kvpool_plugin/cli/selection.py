"""Which findings a user wants to hear: ``--select``, ``--ignore`` and ``--quiet``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import click

from mindie_kvpool_plugin.check import codes
from mindie_kvpool_plugin.check.findings import Finding, Severity
from mindie_kvpool_plugin.check.messages import words
from mindie_kvpool_plugin.check.pipeline import CheckReport
from mindie_kvpool_plugin.check.rules import all_codes
from mindie_kvpool_plugin.cli.speaking import chosen_language, suggestion
from mindie_kvpool_plugin.options.typos import closest


@dataclass(frozen=True, slots=True)
class Selection:
    """What is left of a report.

    Attributes:
        select: codes, or beginnings of codes, that are told; all when empty.
        ignore: those that are not; wins over ``select``.
        failing: severities that make the exit status 1.
        quiet: tell only these.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    failing: frozenset[Severity] = frozenset({"error"})
    quiet: bool = False

    def wants(self, finding: Finding) -> bool:
        """Whether it is told."""
        if finding.kind is codes.CANNOT_READ:
            return True
        is_selected = not self.select or finding.code.startswith(self.select)
        is_ignored = bool(self.ignore) and finding.code.startswith(self.ignore)
        return is_selected and not is_ignored and (not self.quiet or finding.severity in self.failing)

    def of(self, result: CheckReport) -> CheckReport:
        """The report with what is told of it."""
        return replace(result, findings=[finding for finding in result.findings if self.wants(finding)])

    def fails(self, result: CheckReport) -> bool:
        """Whether it makes the exit status 1."""
        return any(finding.severity in self.failing and self.wants(finding) for finding in result.findings)


def codes_named(values: Iterable[str], option: str) -> tuple[str, ...]:
    """Codes of an option such as ``--select KP,HC-0``.

    Raises:
        click.BadParameter: no code begins like that.
    """
    named = tuple(each.strip().upper() for value in values for each in value.split(",") if each.strip())
    for each in named:
        if not any(code.startswith(each) for code in all_codes()):
            close = closest(each, all_codes())
            lang = chosen_language("auto")
            text = words("check.no_such_code", lang, begun=each) + suggestion(close, lang)
            raise click.BadParameter(text, param_hint=option)
    return named
