"""The list of rules: what each decides, how bad it is, when it shows, and where it is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from mindie_kvpool_plugin.check.findings import Code, Edit, Elsewhere, Finding, Outcome, Severity, pointer
from mindie_kvpool_plugin.check.rules.view import View

Check = Callable[[View], Iterator["Fault"]]


@dataclass(frozen=True, slots=True)
class Fault:
    """What a rule yields: where, and the values for the message.

    Attributes:
        path: JSON Pointer, or the parts of one.
        params: values for the message.
        variant: which of the rule's messages.
        severity, outcome: set when this case differs from the rule's own.
        place: set when the fault is in a file config.json refers to.
        edits: an unambiguous repair.
    """

    path: str | tuple[str | int, ...]
    params: dict[str, Any]
    variant: str = ""
    severity: Severity | None = None
    outcome: Outcome | None = None
    place: Elsewhere | None = None
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what is known about its code, and the function."""

    kind: Code
    check: Check


RULES: list[Rule] = []


def rule(
    code: str, severity: Severity, outcome: Outcome, source: str, *, wrong: str, right: str, **facts: Any
) -> Callable[[Check], Check]:
    """Register a function as a rule; the arguments are those of ``Code``."""

    def register(check: Check) -> Check:
        RULES.append(Rule(Code(code, severity, outcome, source, wrong, right, **facts), check))
        return check

    return register


def fault(
    *path: str | int,
    variant: str = "",
    severity: str | None = None,
    outcome: str | None = None,
    place: Elsewhere | None = None,
    edits: tuple[Edit, ...] = (),
    **params: Any,
) -> Fault:
    """A fault at a path such as ``fault("ServerConfig", "port", value=80)``."""
    return Fault(
        path,
        params,
        variant,
        cast("Severity | None", severity),
        cast("Outcome | None", outcome),
        place,
        edits,
    )


def run_rules(view: View) -> list[Finding]:
    """All findings of all rules, in the rules' order."""
    return [_finding(each, found, view) for each in RULES for found in each.check(view)]


def _finding(each: Rule, found: Fault, view: View) -> Finding:
    path = found.path if isinstance(found.path, str) else pointer(*found.path)
    return each.kind.found(
        path,
        severity=found.severity,
        outcome=found.outcome,
        value=found.params.get("value", view.at(path)),
        params=found.params,
        variant=found.variant,
        place=found.place,
        edits=found.edits,
    )
