"""Probes of the files: what the check says, how start-up reads the pool file, and who may read and write it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from mindie_kvpool_plugin.check.findings import Finding
from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.lines import Line, absent, good, note, trouble, warning
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.host.interpreters import users
from mindie_kvpool_plugin.host.interpreters.users import User
from mindie_kvpool_plugin.options.pool_file import RECORDS, build, read_pool_file
from mindie_kvpool_plugin.options.records import MooncakeOptions

MAX_FINDINGS = 20


def check(case: Case) -> Iterator[Line]:
    """What ``mindie-kvpool check`` finds: errors by themselves, warnings counted."""
    errors, warnings = case.report.counts
    file = case.report.document.name
    for finding in [each for each in case.report.findings if each.severity == "error"][:MAX_FINDINGS]:
        yield Line("check.error", "trouble", {"place": _place(finding, file)}, finding)
    if errors:
        yield note("check.errors", errors=errors, warnings=warnings, file=file)
    elif warnings:
        yield warning("check.warnings", warnings=warnings, file=file)
    else:
        yield good("check.passed", file=file)


def _place(finding: Finding, file: str) -> str:
    place = finding.place
    line = finding.line if place is None else place.line
    return f"{file if place is None else place.file}:{line}: " if line else ""


def pool_file(case: Case) -> Iterator[Line]:
    """As start-up reads it: everything after this needs its values."""
    path = case.pool_path
    if path is None:
        yield trouble("pool_file.none", file=case.report.document.name)
        return
    try:
        case.pool_file = read_pool_file(str(path))
        record = RECORDS.get(case.backend)
        own = build(record, case.pool_file.backend_keys, str(path), strict=False) if record is not None else None
    except ConfigError as error:
        yield trouble("pool_file.refused", error=error)
        return
    case.mooncake = own if isinstance(own, MooncakeOptions) else None
    if case.pool_file.options is None:
        yield trouble("pool_file.no_section", file=path)
    elif own is None:
        yield trouble("pool_file.backend", backend=case.backend, known=", ".join(sorted(RECORDS)))
    else:
        yield good("pool_file.read", file=path, backend=case.backend)


def permissions(case: Case) -> Iterator[Line]:
    """The service's user reads the file through every folder above it, and nobody else writes it."""
    try:
        user = users.named(case.user) if case.user else users.current()
    except users.UserError:
        yield trouble("permissions.no_user", user=case.user)
        return
    if user.uid == 0 and not case.user:
        yield note("permissions.root")
    paths = [path.absolute() for path in (case.pool_path, case.report.situation.config_path) if path is not None]
    for path in dict.fromkeys(paths):
        try:
            yield _of_file(path, user)
        except OSError as error:
            yield trouble("permissions.unknown", file=path, reason=error.strerror or error)


def _of_file(path: Path, user: User) -> Line:
    status = path.stat()
    closed = next((each for each in path.parents if not users.may(user, each.stat(), 1)), None)
    writable = _open_to_all(path.parent)
    if closed is not None:
        return trouble("permissions.folder", file=path, folder=closed, user=user.name)
    if not users.may(user, status, 4):
        return trouble("permissions.unreadable", file=path, mode=f"{stat.S_IMODE(status.st_mode):o}", user=user.name)
    if status.st_mode & stat.S_IWOTH:
        return trouble("permissions.writable", file=path, mode=f"{stat.S_IMODE(status.st_mode):o}")
    if writable:
        return warning("permissions.folder_writable", file=path, folder=path.parent)
    return good("permissions.right", file=path, mode=f"{stat.S_IMODE(status.st_mode):o}", user=user.name)


def _open_to_all(folder: Path) -> bool:
    """Whether anybody may put another file in the place of one in it; with the sticky bit only its owner may."""
    mode = folder.stat().st_mode
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def no_service(case: Case) -> Iterator[Line]:
    """``local_dram`` lives in one process."""
    del case
    yield absent("local_dram.embedded")
