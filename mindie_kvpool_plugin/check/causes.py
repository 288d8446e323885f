"""One cause first: what follows from a finding is not told beside it, only counted.

Three kinds of causes.  A slip whose meaning is plain: findings that are gone once it is repaired follow
from it, which is found out by judging the repaired value.  Text that is damaged beyond a certain reading:
what stands behind the place may be elsewhere than it seems.  A part of a file, with dots for what was left
out or without the braces around it: keys are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import replace
from typing import Any

from mindie_kvpool_plugin.check import codes, meaning
from mindie_kvpool_plugin.check.findings import SEVERITY_ORDER, Finding
from mindie_kvpool_plugin.check.plugin_text import pointed
from mindie_kvpool_plugin.check.schema.names import section_name

Judge = Callable[[Any], list[Finding]]

# each slip is judged by itself to learn what follows from it; further ones only together
MAX_SLIPS = 4
# the names of missing keys are listed up to so many characters
MAX_NAMES_CHARS = 160


def without_followers(found: list[Finding], text_findings: list[Finding], value: Any, judge: Judge) -> list[Finding]:
    """What is to be told of the findings about a value, and of those about its text.

    Args:
        found: what ``judge`` said about ``value``.
        text_findings: what the load stage said.
        value: the value, of the repaired text.
        judge: schema and rules.
    """
    told = [pointed(finding, meaning.at(value, finding.path)) for finding in found]
    told = _explained(told, value, judge)
    return _joined(_settled(text_findings, told, value))


def _explained(found: list[Finding], value: Any, judge: Judge) -> list[Finding]:
    """Without findings that are gone once a slip is repaired; the slip is then as bad as the worst of them."""
    slips = [finding for finding in found if meaning.can_change(finding)]
    if not slips:
        return found
    try:
        followers = _followers(found, slips, value, judge)
    except RecursionError:  # nested deeper than any configuration
        return found
    gone = {id(finding) for each in followers.values() for finding in each}
    return [_with(each, followers.get(id(each), ())) for each in found if id(each) not in gone]


def _followers(found: list[Finding], slips: list[Finding], value: Any, judge: Judge) -> dict[int, list[Finding]]:
    """Slip, by identity -> what follows from it."""
    left = _gone(found, slips, slips, value, judge)
    by_slip: dict[int, list[Finding]] = {}
    for slip in slips[:MAX_SLIPS] if len(slips) > 1 and left else ():
        mine = _gone(left, slips, [slip], value, judge)
        by_slip[id(slip)] = mine
        left = [finding for finding in left if all(finding is not each for each in mine)]
    by_slip.setdefault(id(slips[0]), []).extend(left)
    return by_slip


def _gone(
    found: list[Finding], slips: list[Finding], repaired: list[Finding], value: Any, judge: Judge
) -> list[Finding]:
    """Findings, other than slips, that are not said of the value with some slips repaired."""
    changed = deepcopy(value)
    for slip in sorted(repaired, key=lambda each: each.path.count("/"), reverse=True):
        meaning.change(changed, slip)
    still = {(each.code, each.path, each.place) for each in judge(changed)}
    are_slips = {id(slip) for slip in slips}
    return [f for f in found if id(f) not in are_slips and (f.code, f.path, f.place) not in still]


def _with(cause: Finding, followers: Iterable[Finding]) -> Finding:
    """A cause that stands for others too: as bad as the worst."""
    serious = [each for each in followers if each.severity != "info"]
    worst = min([cause, *serious], key=lambda each: SEVERITY_ORDER[each.severity])
    count = cause.followers + sum(1 + each.followers for each in serious)
    return replace(cause, severity=worst.severity, outcome=worst.outcome, followers=count)


def _settled(text_findings: list[Finding], found: list[Finding], value: Any) -> list[Finding]:
    """Without what may be wrong only because the text is damaged, or a part of one."""
    in_order = sorted(text_findings, key=lambda each: (each.line or 0, each.column or 0))
    dots = next((each for each in in_order if each.kind is codes.ELLIPSIS), None)
    damage = next((each for each in in_order if each.kind.unsettles and not each.edits), None)
    frame = next((each for each in in_order if each.message_id == "JS-11.start"), None)
    cause = damage or dots or (frame if not {"ServerConfig", "BackendConfig"} & set(value) else None)
    if cause is None:
        return [*text_findings, *found]
    followers = [each for each in found if not _is_certain(each, is_snippet=cause is dots)]
    joints = [each for each in text_findings if cause is dots and each.kind.is_joint and each.edits]
    gone = {id(each) for each in (cause, *joints, *followers)}
    edits = cause.edits + tuple(edit for each in joints for edit in each.edits)
    if cause is dots and any(each.kind is codes.MISSING_KEY and each.severity == "error" for each in followers):
        edits = ()  # what the dots stand for is missing: taking them away would hide that
    told = replace(_with(cause, [*joints, *followers]), edits=edits)
    return [told, *(each for each in [*text_findings, *found] if id(each) not in gone)]


def _is_certain(finding: Finding, *, is_snippet: bool) -> bool:
    """Whether a finding holds whatever stands elsewhere in the file."""
    if is_snippet and finding.kind in {codes.UNKNOWN_KEY, codes.MISSPELT_KEY, codes.DEAD_KEY}:
        return True
    return finding.kind.about_value


def _joined(findings: list[Finding]) -> list[Finding]:
    """With the missing keys of one object in one finding."""
    groups: dict[tuple[str, Any], list[Finding]] = {}
    for finding in findings:
        if finding.kind is codes.MISSING_KEY:
            groups.setdefault((_object(finding), finding.place and finding.place.file), []).append(finding)
    joined = {id(group[0]): group for group in groups.values() if len(group) > 1}
    gone = {id(each) for group in joined.values() for each in group[1:]}
    return [_one(joined[id(f)]) if id(f) in joined else f for f in findings if id(f) not in gone]


def _object(missing: Finding) -> str:
    """The object that lacks a key, in the file that the finding is about."""
    return (missing.path if missing.place is None else missing.place.pointer).rpartition("/")[0]


def _one(missing: list[Finding]) -> Finding:
    worst = min(missing, key=lambda each: SEVERITY_ORDER[each.severity])
    above = _object(worst)
    names = ", ".join(str(each.params["key"]) for each in missing)
    names = names if len(names) <= MAX_NAMES_CHARS else names[: MAX_NAMES_CHARS - 4] + " ..."
    params = {"section": section_name(above), "count": len(missing), "keys": names}
    if worst.place is not None:
        return replace(worst, place=replace(worst.place, pointer=above), params=params, variant="several")
    return replace(worst, path=above, params=params, variant="several")
