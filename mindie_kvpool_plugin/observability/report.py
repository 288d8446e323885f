"""The line in the log that says what the pool did in the last minute.

The host's own "Prefix Cache Reporter" speaks of one batch on rank 0; this one of a minute, also of what is stored, and
of trouble.
"""

from __future__ import annotations

import time
from dataclasses import fields

from mindie_kvpool_plugin.observability.counters import HALF_OPEN, OPEN, Counters, Histogram
from mindie_kvpool_plugin.observability.part import Part

Counts = dict[str, float]
_PROPERTIES = ("dropped_blocks", "recomputed_blocks", "questions")


class Reporter:
    """One part's.

    Args:
        part: whose counts.
        now_s: seconds, monotonic.

    Attributes:
        due_s: when the next line is due; infinite when there is none.
    """

    def __init__(self, part: Part, now_s: float) -> None:
        self._part = part
        self._interval_s = part.settings.report_interval_s
        self._before = _counts(part.counters)
        self._began_s = now_s
        self.due_s = now_s + self._interval_s if self._interval_s else float("inf")

    def line(self, now_s: float | None = None) -> str | None:
        """What happened since the last line; None when nothing did."""
        now_s = time.monotonic() if now_s is None else now_s
        counts = _counts(self._part.counters)
        new = {name: count - self._before.get(name, 0) for name, count in counts.items()}
        seconds, self._before, self._began_s = now_s - self._began_s, counts, now_s
        self.due_s = now_s + self._interval_s
        told = _worker(new) if self._part.identity.role == "worker" else _scheduler(new)
        if told is None:
            return None
        who = f"{self._part.identity.role} {self._part.label}"
        return f"pool in the last {seconds:.0f} s, {who}: {told}; {_trouble(new, self._part.counters)}"


def _worker(new: Counts) -> str | None:
    if not (new["prompts"] or new["freed_blocks"]):
        return None
    unadmitted = f"{new['unadmitted_blocks']:,.0f} not admitted, " if new["unadmitted_blocks"] else ""
    share = f" ({100 * new['loaded_tokens'] / new['promised_tokens']:.0f} %)" if new["promised_tokens"] else ""
    return (
        f"{new['loaded_depth']:,.0f} of {new['prompts']:,.0f} prompts hit, {new['loaded_tokens']:,.0f} of "
        f"{new['promised_tokens']:,.0f} promised tokens loaded{share}, {new['recomputed_blocks']:,.0f} blocks "
        f"recomputed{_named(new, 'recomputed_')}; reloads took {new['reload_seconds']:.3f} s and saved "
        f"{new['saved_seconds']:.3f} s of prefill; {new['spilled_blocks']:,.0f} blocks spilled, {unadmitted}"
        f"{new['dropped_blocks'] + new['withdrawn_blocks'] + new['failed_put_blocks']:,.0f} dropped"
        f"{_named(new, 'dropped_', withdrawn=new['withdrawn_blocks'], put_failed=new['failed_put_blocks'])}"
    )


def _scheduler(new: Counts) -> str | None:
    if not new["questions"]:
        return None
    return (
        f"{new['questions']:,.0f} questions, {new['answered_all'] + new['answered_some']:,.0f} with hits; "
        f"{new['found_keys']:,.0f} of {new['asked_keys']:,.0f} keys in the pool; "
        f"{1000 * new['lookup_seconds'] / new['questions']:.2f} ms each"
    )


def _trouble(new: Counts, counters: Counters) -> str:
    """The pool's."""
    found = [
        f"{new[name]:,.0f} {words}"
        for name, words in (
            ("breaker_openings", "times left alone"),
            ("refused_keys", "keys refused meanwhile"),
            ("corrupt_blocks", "blocks damaged"),
            ("hook_errors", "calls with something unexpected"),
            ("lookup_errors", "lookups with something unexpected"),
        )
        if new[name]
    ]
    # codes of single keys are no trouble: blocks are evicted all the time
    failures = {name.partition("|")[2]: count for name, count in new.items() if name.startswith("pool_failures|")}
    found += [f"{count:,.0f} calls failed ({what})" for what, count in failures.items() if count]
    if not counters.pool_is_open:
        found.append("there is no pool yet")
    if not counters.ranks_agree:
        found.append("ranks cannot agree on its hits")
    if counters.breaker_state in (OPEN, HALF_OPEN):
        found.append("it is left alone now")
    return "pool trouble: " + ", ".join(found) if found else "pool fine"


def _named(new: Counts, prefix: str, **more: float) -> str:
    """In brackets: each reason and its count."""
    skipped = {"dropped_blocks", "recomputed_blocks"}
    reasons = {name[len(prefix) :]: n for name, n in new.items() if name.startswith(prefix) and name not in skipped}
    told = [f"{reason} {count:,.0f}" for reason, count in (reasons | more).items() if count]
    return f" ({', '.join(told)})" if told else ""


def _counts(counters: Counters) -> Counts:
    """Every count as a number: of a histogram of seconds their sum, of one of blocks how many there were."""
    found: Counts = {}
    for each in (*(field.name for field in fields(counters)), *_PROPERTIES):
        value = getattr(counters, each)
        if isinstance(value, Histogram):
            found[each] = value.total if each.endswith("_seconds") else value.count
        elif isinstance(value, dict):
            found |= {f"{each}|{' '.join(labels)}": count for labels, count in value.copy().items()}
        else:
            found[each] = value
    return found
