"""Run what may hang or die, a library of a backend, in a process of its own with a hard time limit.

Mooncake's ``setup`` stops every Python thread of its process for up to 90 s, and a call on a client that is not
open ends it.  So a child does it, and tells each step as a line of JSON; a child that does not end in time is
killed by its pid, and its death is a finding like any other.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARK = "kvpool-step "
"""Begins a child's own lines on standard output, where libraries write too."""

ENDING_S = 2.0  # an object of 16 MiB is written in a tenth of it, and removed

# the path of this interpreter as it is: what the child imports is what this process would
_START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; main()"


_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a child.

    Attributes:
        steps: what it said, in order; each has a "step".
        ending: "" when it ended by itself, else "killed" (the time was up) or how it died.
    """

    steps: list[dict[str, Any]]
    ending: str

    def step(self, name: str) -> dict[str, Any] | None:
        """The first step of a name."""
        return next((each for each in self.steps if each["step"] == name), None)


def run_child(module: str, question: Mapping[str, Any], limit_s: float, env: Mapping[str, str]) -> Told:
    """Run ``module.main`` with a question on its standard input.

    Args:
        limit_s: after this it is killed.
        env: its environment.
    """
    command = [sys.executable, "-c", _START.format(module=module), json.dumps(sys.path)]
    asked = json.dumps({**question, "limit_s": limit_s}).encode()
    piped = subprocess.PIPE
    # this interpreter, and a module of ours
    with subprocess.Popen(command, stdin=piped, stdout=piped, stderr=piped, env=dict(env)) as process:  # noqa: S603
        _running.add(process)
        try:
            output, errors = process.communicate(asked, timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return Told(_steps(process.communicate()[0]), "killed")
        finally:
            _running.discard(process)
    return Told(_steps(output), "" if process.returncode == 0 else _ending(process.returncode, errors))


def end_all() -> None:
    """End every child that runs now; whoever waits for one hears of its death.  Any thread.

    Each is interrupted, so that it ends after the call that it is in: an object whose writer dies while it writes
    cannot be removed.  What has not ended ``ENDING_S`` later is killed.
    """
    asked, killed_at = list(_running), time.monotonic() + ENDING_S
    for process in asked:
        process.send_signal(signal.SIGINT)
    for process in asked:
        try:
            process.wait(max(0.0, killed_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def listen() -> dict[str, Any]:
    """In the child: the question.  The alarm ends it soon after its limit, also when its parent has died."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us in the background ignores it
    question: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, question["limit_s"] + 1.0)
    return question


def tell(step: str, **values: Any) -> None:
    """In the child: one step."""
    sys.stdout.write(f"\n{MARK}{json.dumps({'step': step, **values})}\n")
    sys.stdout.flush()


def end(kept: object) -> None:
    """In the child: end at once, without what a library does at exit or when its client, still ``kept``, is let go."""
    del kept
    sys.stdout.flush()
    os._exit(0)


def _steps(output: bytes | None) -> list[dict[str, Any]]:
    lines = (output or b"").decode("utf-8", "replace").splitlines()
    return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK) and line.endswith("}")]


def _ending(code: int, stderr: bytes) -> str:
    """How it died: a signal's name, or the last line it said."""
    if code < 0:
        return signal.Signals(-code).name
    return (stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit status {code}"])[-1][:200]
