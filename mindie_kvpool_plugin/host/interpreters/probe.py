"""Asks one interpreter: a child process of bounded time runs ``snippet`` in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mindie_kvpool_plugin.host.interpreters.launches import Launch
from mindie_kvpool_plugin.host.interpreters.users import User

PROBE_TIMEOUT_S = 30.0
"""An interpreter on a busy machine answers within a second; one whose start-up code hangs is given up."""

_SNIPPET = Path(__file__).with_name("snippet.py")
_MARK = "mindie-kvpool-seen:"
_MAX_SAID_CHARS = 200


@dataclass(frozen=True, slots=True)
class StartupFile:
    """Our .pth file in one folder.

    Attributes:
        path: of the file.
        is_read: whether the interpreter reads .pth files of that folder.
        may_read: whether the user may read it.
        is_user_site: whether the folder is the user's own site-packages.
    """

    path: str
    is_read: bool
    may_read: bool
    is_user_site: bool


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What an interpreter said of itself.

    Attributes:
        executable, version, prefix: ``sys.executable`` (empty when the daemon found none), "3.11.7", ``sys.prefix``.
        flags: letters of the options it was started with that matter: S, I, E, s.
        is_disabled: the kill switch is set.
        is_armed: the trigger was on ``sys.meta_path`` at start.
        is_attached: every hook was set when the host was looked for.
        startup_files: our .pth files, wherever they lie.
        copies: (folder, version) of every copy of this package on ``sys.path``.
        plugin, plugin_version: the copy that is imported; None when there is none.
        unreadable: its first file or folder that the user may not read, or None.
        is_private: others than owner and group may not read it.
        not_armed_because: what importing the trigger said, if it was not armed.
        missing: libraries that the hooks need and are not there.
        has_mooncake: Mooncake's client can be imported.
        host, host_version: the folder of ``mindie_llm``, or None, and its version.
        places, problems: how many places of the host were judged, and (module, name, problem) of each misfit.
        said: the end of what it wrote to standard error.
    """

    executable: str
    version: str
    prefix: str
    flags: str
    is_disabled: bool
    is_armed: bool
    is_attached: bool
    startup_files: tuple[StartupFile, ...]
    copies: tuple[tuple[str, str], ...]
    plugin: str | None
    plugin_version: str | None
    unreadable: str | None
    is_private: bool
    not_armed_because: str
    missing: tuple[str, ...]
    has_mooncake: bool
    host: str | None
    host_version: str
    places: int
    problems: tuple[tuple[str, str, str], ...]
    said: str = ""


class ProbeError(Exception):
    """The interpreter could not be asked; ``str`` says what it said."""


def ask(launch: Launch, user: User, env: Mapping[str, str], timeout_s: float = PROBE_TIMEOUT_S) -> Interpreter:
    """Run the snippet as ``user`` in the interpreter of ``launch``.

    Raises:
        ProbeError: it did not start, died, answered nonsense, or took longer than ``timeout_s``.
    """
    script = [] if launch.script is None else [str(launch.script)]
    command = [*launch.words, "-c", _SNIPPET.read_text(encoding="utf-8"), *script]
    out, said = _run(command, str(launch.executable), user, env, timeout_s)
    _, mark, text = out.rpartition(_MARK)
    if not mark:
        raise ProbeError(said or "no answer")
    try:
        return _read(json.loads(text), said)
    except (ValueError, KeyError, TypeError) as error:
        raise ProbeError(f"no answer but {text[:80]!r}") from error


def _run(command: list[str], executable: str, user: User, env: Mapping[str, str], timeout_s: float) -> tuple[str, str]:
    """What it printed to standard output, and the end of what it printed to standard error."""
    try:
        # a session of its own: what a launcher started is ended with it
        process = subprocess.Popen(  # noqa: S603 - what the service itself runs
            command,
            executable=executable,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**user.environment(env), "PYTHONDONTWRITEBYTECODE": "1"},
            **user.process_options(),
        )
    except OSError as error:
        raise ProbeError(f"{executable}: {error.strerror}") from None
    try:
        out, said = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise ProbeError(f"no answer within {timeout_s:g} s") from None
    return out, said.strip()[-_MAX_SAID_CHARS:]


def _read(facts: Mapping[str, Any], said: str) -> Interpreter:
    values = {each.name: facts[each.name] for each in fields(Interpreter) if each.name != "said"}
    values["startup_files"] = tuple(StartupFile(**each) for each in facts["startup_files"])
    for name in ("copies", "problems"):
        values[name] = tuple(tuple(each) for each in facts[name])
    values["missing"] = tuple(facts["missing"])
    return Interpreter(**values, said=said)
