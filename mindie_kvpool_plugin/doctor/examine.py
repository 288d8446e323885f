"""Run the table of probes, in order, each within what is left of the time.

A probe never stops another one: what it raises becomes its own line, and one that does not come back is left
behind on its thread.  Whatever depends on a probe that found trouble is told as not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.lines import Line, is_trouble, of_probe, skipped
from mindie_kvpool_plugin.pools.call_thread import CallThread

GRACE_S = 0.5  # a probe bounds its own waits by the same end; this long it may take to say so


AnyCase_contra = TypeVar("AnyCase_contra", bound=Case, contravariant=True)


@dataclass(frozen=True)
class Probe(Generic[AnyCase_contra]):
    """One row of the table.

    Attributes:
        name: stable, and the first part of its lines' ids.
        run: looks, and yields what it saw.
        needs: probes that must not have found trouble.
        backend: for this backend only; "" for all.
    """

    name: str
    run: Callable[[AnyCase_contra], Iterable[Line]]
    needs: tuple[str, ...] = ()
    backend: str = ""


def examine(
    case: AnyCase_contra,
    probes: Iterable[Probe[AnyCase_contra]],
    began: Callable[[Probe[AnyCase_contra]], None] = lambda _: None,
) -> Iterator[tuple[Probe[AnyCase_contra], list[Line]]]:
    """Each probe with its lines, as soon as they are there; ``began`` hears of it before it looks."""
    failed: set[str] = set()
    for probe in probes:
        if probe.backend not in ("", case.backend):
            continue
        began(probe)
        lines = _run(probe, case, failed)
        if is_trouble(lines) or any(line.verdict == "skipped" for line in lines):
            failed.add(probe.name)
        yield probe, lines


def _run(probe: Probe[AnyCase_contra], case: AnyCase_contra, failed: set[str]) -> list[Line]:
    cause = next((name for name in probe.needs if name in failed), None)
    if cause is not None:
        return [skipped(probe.name, "because", cause=cause)]
    if case.is_time_up:
        return [skipped(probe.name, "time", timeout=f"{case.timeout_s:g}")]
    lines: list[Line] = []
    thread = CallThread("kvpool-doctor")

    def collect() -> bool:
        lines.extend(probe.run(case))
        return True

    job = thread.start(collect)
    try:
        is_done = job.wait(case.left_s(case.timeout_s) + GRACE_S) is not None
    except Exception as error:  # noqa: BLE001 - one probe's own mistake must not hide what the others see
        return [*lines, of_probe(probe.name, "failed", error=repr(error))]
    finally:
        thread.close()
    return list(lines) if is_done else [*lines, of_probe(probe.name, "too_slow", timeout=f"{case.timeout_s:g}")]
