"""The probe of this plugin's own processes on this machine: who runs, as what, and whether they can be asked."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mindie_kvpool_plugin import __version__
from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.lines import Line, absent, good, note, trouble, warning
from mindie_kvpool_plugin.observability.questions import TIMEOUT_S, Reply, ask_all

Answer = Mapping[str, Any]


def presence(case: Case) -> Iterator[Line]:
    """Ask all that have a socket in the run directory, whose rights are judged by whoever asks."""
    replies = ask_all({"ask": "stats"}, case.left_s(TIMEOUT_S))
    if not replies:
        yield absent("presence.none")
    for reply in replies:
        if reply.trouble is not None:
            yield _in_trouble(reply)
    answers = [reply.answer for reply in replies if isinstance(reply.answer, dict)]
    ours = [each for each in answers if _uses(each, case)]
    addresses = [str(each.get("metrics_address") or "") for each in ours]
    case.metrics_addresses = [each for each in addresses if each.rpartition(":")[2].isdecimal()]
    if ours:
        yield good("presence.ours", roles=_roles(ours), pids=_pids(ours))
    others = [each for each in answers if each not in ours]
    if others:
        yield note("presence.others", roles=_roles(others), pids=_pids(others))
    old = [each for each in ours if each.get("version") != __version__]
    if old:
        versions = ", ".join(sorted({str(each.get("version")) for each in old}))
        yield warning("presence.other_version", pids=_pids(old), versions=versions, ours=__version__)


def _in_trouble(reply: Reply) -> Line:
    """A process that says nothing, or a folder that others may write."""
    if reply.is_folder:
        return trouble("presence.folder", reason=reply.trouble)
    params = {"seconds": f"{reply.timeout_s:g}"}
    reason = Line("presence.silent", "warning", params, text_key=f"asked.{reply.kind}") if reply.kind else reply.trouble
    return warning("presence.silent", socket=reply.socket, reason=reason)


def _parts(answer: Answer) -> list[Any]:
    parts = answer.get("parts")
    return [each for each in parts if isinstance(each, dict)] if isinstance(parts, list) else []


def _uses(answer: Answer, case: Case) -> bool:
    """Whether any part of the process uses this pool file."""
    path = os.path.realpath(case.pool_path or "")
    return any(os.path.realpath(str(each.get("pool_file", ""))) == path for each in _parts(answer))


def _roles(answers: Sequence[Answer]) -> str:
    counts = Counter(str(each.get("role")) for answer in answers for each in _parts(answer))
    return ", ".join(f"{count} {role}" for role, count in sorted(counts.items())) or "-"


def _pids(answers: Sequence[Answer]) -> str:
    return ", ".join(str(each.get("pid")) for each in answers[:16])
