"""The probe of the interpreters that the service uses: will the hooks be set in the daemon and in the workers."""

from __future__ import annotations

from collections.abc import Iterator

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.lines import Line, Verdict, absent, good, trouble
from mindie_kvpool_plugin.host.interpreters import Problem, Side, Survey, UserError, survey
from mindie_kvpool_plugin.host.interpreters.users import named


def status(case: Case) -> Iterator[Line]:
    """What ``mindie-kvpool status`` says; on a machine without MindIE-LLM there is nothing to ask."""
    try:
        found = survey(named(case.user) if case.user else None, env=case.env)
    except UserError as error:
        yield trouble("status.user", name=error.args[1])
        return
    if _is_elsewhere(found):
        yield absent("status.no_host")
        return
    yield from _side("daemon", found.daemon)
    yield from _side("worker", found.worker)
    for each in found.differences:
        yield _told(each, "trouble")
    for each in found.remarks:
        yield _told(each, "note")


def _is_elsewhere(found: Survey) -> bool:
    """Neither a worker's script nor a host: MindIE-LLM is not on this machine."""
    has_host = found.daemon.seen is not None and found.daemon.seen.host is not None
    return not has_host and found.worker.problem is not None and found.worker.problem.name == "no_worker"


def _side(name: str, side: Side) -> Iterator[Line]:
    for each in side.warnings:
        yield _told(each, "note", name)
    if side.problem is not None:
        yield _told(side.problem, "trouble", name)
    elif side.seen is not None:
        yield good(f"status.{name}", python=side.seen.executable, version=side.seen.host_version)


def _told(problem: Problem, verdict: Verdict, side: str = "") -> Line:
    """In the words of ``mindie-kvpool status``, with the side it is about."""
    text, fix = f"status.cause.{problem.name}", f"status.fix.{problem.name}"
    if not side:
        return Line(f"status.{problem.name}", verdict, problem.values, text_key=text, fix_key=fix)
    inner = Line(f"status.{problem.name}", verdict, problem.values, text_key=text)
    values = {**problem.values, "problem": inner}
    return Line(inner.id, verdict, values, text_key=f"doctor.status.of_{side}", fix_key=fix)
