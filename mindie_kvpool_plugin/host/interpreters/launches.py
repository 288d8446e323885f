"""How the host's two processes get their interpreter.

The daemon calls ``Py_Initialize`` (llm_daemon.cpp): libpython looks ``python3`` up in PATH, takes the installation
or the ``pyvenv.cfg`` around what it finds, and falls back to where it was built for when that is another version
or nothing.  An executable of the same version that is started under the name ``python3`` decides alike.  The workers
are ``execvp("mindie_llm_backend")`` (executor.cpp): the kernel reads the first line of that script.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WORKER_COMMAND = "mindie_llm_backend"
DAEMON_PROGRAM = "mindieservice_daemon"
DAEMON_PYTHON = "python3"
HOME_VARIABLE = "MINDIE_LLM_HOME_PATH"

_HEAD_BYTES = 4096
_LDD = "/usr/bin/ldd"  # of the C library; the service's PATH may lack it
_LDD_TIMEOUT_S = 10.0
_LIBRARY = re.compile(r"libpython3\.(\d+)\S*(?: => (/\S+))?")
# of pip and others, where the path is too long or has a space for the kernel
_SHELL_TRICK = re.compile(r"^'''exec' (.+) \"\$0\" \"\$@\"$")
_PYTHON_NAME = re.compile(r"(python|pypy)[\d.]*t?")


@dataclass(frozen=True, slots=True)
class Launch:
    """How one process gets its interpreter.

    Attributes:
        origin: what was found for it in PATH or named by the user: an interpreter, or a worker's script.
        executable: what is run to ask; None when that cannot be told.
        words: its arguments from ``argv[0]`` on, before those of a script.
        script: the worker's script, whose folder its interpreter puts on ``sys.path``; None for the daemon.
        problem: why there is nothing to ask, as in ``causes``.
    """

    origin: Path | None
    executable: str | None
    words: tuple[str, ...] = ()
    script: Path | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Library:
    """The libpython that the daemon loads: ``minor`` of its version, and its ``path`` if it is installed."""

    minor: int
    path: Path | None


def daemons_python(named: Path | None, library: Library | None, env: Mapping[str, str]) -> Launch:
    """The interpreter that the daemon embeds, unless it is another version than the library (``library_python``)."""
    if named is not None:
        return Launch(named, str(named), (str(named),), problem=None if _can_run(named) else "cannot_run")
    found = find_program(DAEMON_PYTHON, env)
    if found is not None and _head(found).startswith(b"\x7fELF"):
        return Launch(found, str(found), (DAEMON_PYTHON,))
    if library is not None:
        return library_python(found, library)
    return Launch(found, None, problem="no_python" if found is None else "python_is_script")


def library_python(origin: Path | None, library: Library) -> Launch:
    """An executable that was installed with the daemon's library, started as that starts: as ``python3``."""
    folders = [] if library.path is None else [*library.path.parents, *library.path.resolve().parents]
    for folder in folders:
        executable = folder / "bin" / f"python3.{library.minor}"
        if _can_run(executable):
            return Launch(origin, str(executable), (DAEMON_PYTHON,))
    return Launch(origin, None, problem="no_library_python")


def workers_python(named: Path | None, env: Mapping[str, str]) -> Launch:
    """The interpreter of the workers' script; ``named`` is such a script, or an interpreter itself."""
    found = named or find_program(WORKER_COMMAND, env)
    if found is None:
        return Launch(None, None, problem="no_worker")
    if not _can_run(found):
        return Launch(found, None, problem="cannot_run")
    head = _head(found)
    if named is not None and head.startswith(b"\x7fELF"):
        return Launch(found, str(found), (str(found),))
    words = script_interpreter(head.decode("utf-8", "replace"))
    if not words:
        return Launch(found, None, script=found, problem="worker_is_no_python")
    if not _can_run(Path(words[0])):
        return Launch(found, None, words, found, problem="interpreter_missing")
    return Launch(found, words[0], words, found)


def script_interpreter(head: str) -> tuple[str, ...]:
    """The words that the kernel, and ``env`` or the shell after it, put before a script; () if that is no Python.

    Args:
        head: the script's beginning.  Everything behind the first word is one argument, as it is to the kernel.
    """
    lines = head.splitlines()
    if not lines or not lines[0].startswith("#!"):
        return ()
    words = tuple(lines[0][2:].strip().split(None, 1))
    trick = _SHELL_TRICK.match(lines[1]) if len(lines) > 1 else None
    if trick is not None:
        return tuple(shlex.split(trick[1]))
    programs = [word for word in " ".join(words).split() if "=" not in word and not word.startswith("-")]
    if programs and Path(programs[0]).name == "env":
        del programs[0]
    return words if programs and _PYTHON_NAME.fullmatch(Path(programs[0]).name) else ()


def daemons_library(env: Mapping[str, str], packages: tuple[Path, ...] = ()) -> Library | None:
    """The libpython of the daemon's program; None when there is no program or it names none.

    Args:
        env: of the service.
        packages: folders of ``mindie_llm``, whose wheel brings the program.
    """
    program = _daemons_program(env, packages)
    if program is None:
        return None
    try:
        # the loader's own answer: it knows LD_LIBRARY_PATH, run paths and libraries of libraries
        asked = subprocess.run(  # noqa: S603 - the service's own program
            [_LDD, str(program)],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LDD_TIMEOUT_S,
            env=dict(env),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _LIBRARY.search(asked.stdout)
    return None if found is None else Library(int(found[1]), Path(found[2]) if found[2] else None)


def _daemons_program(env: Mapping[str, str], packages: tuple[Path, ...]) -> Path | None:
    homes = [Path(env[HOME_VARIABLE])] if env.get(HOME_VARIABLE) else []
    for folder in (*homes, *packages):
        if _can_run(folder / "bin" / DAEMON_PROGRAM):
            return folder / "bin" / DAEMON_PROGRAM
    return find_program(DAEMON_PROGRAM, env)


def find_program(name: str, env: Mapping[str, str]) -> Path | None:
    """What ``execvp`` would run, with the rights of whoever this process acts as."""
    found = (Path(folder or ".", name) for folder in os.get_exec_path(env))
    return next((path.absolute() for path in found if _can_run(path)), None)


def _can_run(path: Path) -> bool:
    """``Path.is_file`` raises where a folder may not be entered."""
    return os.path.isfile(path) and os.access(path, os.X_OK, effective_ids=True)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError:
        return b""
