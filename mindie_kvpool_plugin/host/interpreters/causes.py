"""Why the hooks will not be set in an interpreter: the one cause to remove first.

Each cause is a name; ``status.cause.<name>`` in ``locale/`` says it and ``status.fix.<name>`` what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mindie_kvpool_plugin.host.activate import DISABLE_VARIABLE
from mindie_kvpool_plugin.host.interpreters.probe import Interpreter


@dataclass(frozen=True, slots=True)
class Problem:
    """Attributes: ``name`` of the cause; ``values`` for the placeholders of its texts."""

    name: str
    values: Mapping[str, object] = field(default_factory=dict)


def cause(seen: Interpreter) -> Problem | None:
    """None when every hook was set and can be run; else the first thing that keeps them from it."""
    causes = _late_causes(seen) if seen.is_attached else _causes(seen)
    return next(causes, None)


def _late_causes(seen: Interpreter) -> Iterator[Problem]:
    """What is read at start is not all that is read later."""
    if seen.missing:
        yield Problem("missing", {"names": ", ".join(seen.missing)})
    if seen.unreadable is not None:
        yield Problem("unreadable", {"path": seen.unreadable})


def _causes(seen: Interpreter) -> Iterator[Problem]:
    """Every cause that is seen, the one that hides the others first."""
    if "S" in seen.flags:
        yield Problem("no_site")
    if seen.host is None:
        yield Problem("no_host", {"prefix": seen.prefix})
    if not seen.is_armed:
        yield from _unarmed_causes(seen)
    if seen.is_disabled:
        yield Problem("disabled", {"variable": DISABLE_VARIABLE})
    if seen.missing:
        yield Problem("missing", {"names": ", ".join(seen.missing)})
    if seen.problems:
        yield _misfit(seen)
    yield Problem("not_attached", {"said": seen.said})


def _unarmed_causes(seen: Interpreter) -> Iterator[Problem]:
    if not seen.startup_files:
        kind = "not_installed" if seen.plugin is None else "no_startup_file"
        yield Problem(kind, {"prefix": seen.prefix, "plugin": seen.plugin})
    read = [file for file in seen.startup_files if file.is_read]
    if seen.startup_files and not read:
        file = seen.startup_files[0]
        yield Problem("user_site_off" if file.is_user_site else "not_processed", {"path": file.path})
    hidden = next((file.path for file in read if not file.may_read), seen.unreadable)
    if hidden is not None:
        yield Problem("unreadable", {"path": hidden})
    if read and seen.plugin is None:
        yield Problem("package_gone", {"path": read[0].path})
    yield Problem("broken", {"plugin": seen.plugin, "error": seen.not_armed_because or seen.said})


def _misfit(seen: Interpreter) -> Problem:
    if len(seen.problems) == seen.places and all("[Errno 2]" in problem for _, _, problem in seen.problems):
        return Problem("sourceless", {"host": seen.host})
    return Problem("misfit", {"version": seen.host_version, "count": len(seen.problems)})
