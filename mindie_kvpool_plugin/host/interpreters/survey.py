"""Daemon and workers side by side: what each runs, whether all hooks will be set, and where they differ."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mindie_kvpool_plugin.host.interpreters import launches, users
from mindie_kvpool_plugin.host.interpreters.causes import Problem, cause
from mindie_kvpool_plugin.host.interpreters.launches import Launch, Library
from mindie_kvpool_plugin.host.interpreters.probe import Interpreter, ProbeError, ask
from mindie_kvpool_plugin.host.interpreters.users import User


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two processes.

    Attributes:
        launch: how it gets its interpreter.
        seen: what that said; None when it could not be asked.
        problem: why its hooks will not be set, or why that is not known; None when they will be.
        warnings: what does not keep the hooks out and should be known.
    """

    launch: Launch
    seen: Interpreter | None
    problem: Problem | None
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """Both processes.

    Attributes:
        user: as whom was looked.
        daemon, worker: its two sides.
        differences: what is not alike in both and has to be.
        remarks: what is not alike and may be.
    """

    user: User
    daemon: Side
    worker: Side
    differences: tuple[Problem, ...]
    remarks: tuple[Problem, ...]

    @property
    def is_hooked(self) -> bool:
        """Whether all hooks will be set in both, by the same version, in the same host."""
        return not (self.daemon.problem or self.worker.problem or self.differences)


def survey(
    user: User | None = None,
    daemon_python: Path | None = None,
    worker: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Survey:
    """Ask both interpreters, one after the other; each child has 30 s.

    Args:
        user: as whom the service runs; if not given, for root the owner of the workers' script, else ourselves.
        daemon_python: interpreter to take for the daemon's.
        worker: script or interpreter to take for the workers'.
        env: the service's environment; this process' own if not given.
    """
    env = os.environ if env is None else env
    user = user or _owner_of(worker or launches.find_program(launches.WORKER_COMMAND, env))
    with user.looking():
        workers_launch = launches.workers_python(worker, env)
    workers = _side(workers_launch, user, env)
    packages = () if workers.seen is None or workers.seen.host is None else (Path(workers.seen.host),)
    with user.looking():
        library = launches.daemons_library(env, packages)
        daemons_launch = launches.daemons_python(daemon_python, library, env)
    daemon = _daemon(daemons_launch, None if daemon_python else library, user, env)
    differences, remarks = _compare(daemon.seen, workers.seen)
    return Survey(user, daemon, workers, differences, remarks)


def _owner_of(script: Path | None) -> User:
    return users.current() if script is None or not script.exists() else users.owner(script)


def _daemon(launch: Launch, library: Library | None, user: User, env: Mapping[str, str]) -> Side:
    """What ``python3`` of PATH says; if its version is not the library's, what that makes of PATH."""
    side = _side(launch, user, env)
    if library is None or side.seen is None or side.seen.version.split(".")[1] == str(library.minor):
        return side
    other = Problem("other_version", {"python": side.seen.version, "library": f"3.{library.minor}"})
    with user.looking():
        embedded = launches.library_python(launch.origin, library)
    found = _side(embedded, user, env)
    return Side(embedded, found.seen, found.problem, (other, *found.warnings))


def _side(launch: Launch, user: User, env: Mapping[str, str]) -> Side:
    if launch.problem is not None:
        values = {"origin": launch.origin, "words": " ".join(launch.words), "user": user.name}
        return Side(launch, None, Problem(launch.problem, values))
    try:
        seen = ask(launch, user, env)
    except ProbeError as error:
        return Side(launch, None, Problem("silent", {"executable": launch.executable, "error": error}))
    return Side(launch, seen, cause(seen), tuple(_warnings(seen, user)))


def _warnings(seen: Interpreter, user: User) -> Iterator[Problem]:
    others = [f"{folder} ({version})" for folder, version in seen.copies if folder != seen.plugin]
    if seen.plugin is not None and others:
        values = {"plugin": seen.plugin, "version": seen.plugin_version, "others": ", ".join(others)}
        yield Problem("shadowed", values)
    if seen.is_private and seen.is_attached:
        yield Problem("private", {"plugin": seen.plugin, "user": user.name})


def _compare(daemon: Interpreter | None, worker: Interpreter | None) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """(What has to be alike and is not, what may differ and does)."""
    if daemon is None or worker is None:
        return (), ()
    differences, remarks = [], []
    for name, one, other in (
        ("plugin_versions", daemon.plugin_version, worker.plugin_version),
        ("host_versions", daemon.host_version, worker.host_version),
    ):
        if one != other and daemon.is_attached and worker.is_attached:
            differences.append(Problem(name, {"daemon": one, "worker": other}))
    for name, one, other in (
        ("prefixes", daemon.prefix, worker.prefix),
        ("hosts", daemon.host, worker.host),
        ("plugins", daemon.plugin, worker.plugin),
    ):
        if one != other:
            remarks.append(Problem(name, {"daemon": one, "worker": other}))
    return tuple(differences), tuple(remarks)
