"""A program that runs for us: started, watched until it serves, told our signals, its exit status passed on.

Main thread only: it takes SIGTERM, SIGINT and SIGHUP over for the length of a ``with`` block.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.observability.log import logger

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POLL_S = 0.05
GRACE_S = 20.0
"""From the first signal that is forwarded to the end."""
KILLED = 128
"""Added to the number of the signal that ended a program, as shells do."""

_PR_SET_PDEATHSIG = 1


class Child:
    """One program.

    Attributes:
        told: the last signal that was forwarded to it; None if it was told none.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.told: int | None = None
        self._told_s: float | None = None
        self._process = process
        self._began = time.monotonic()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def age_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._began

    def tell(self, number: int) -> None:
        """Send it a signal; nothing happens if it has ended."""
        self.told = number
        self._told_s = time.monotonic() if self._told_s is None else self._told_s
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def ended(self) -> int | None:
        """Its exit status if it has ended."""
        code = self._process.poll()
        return None if code is None else _status(code)

    def wait(self) -> int:
        """Its exit status, when it ends; ``GRACE_S`` after it was told to, it is killed.

        Looked at again and again: a signal that comes just before ``waitpid`` would be heard when the program ends.
        """
        while (status := self.ended()) is None:
            if self._told_s is not None and time.monotonic() - self._told_s > GRACE_S:
                logger.warning("process %d did not end within %g s of signal %s: killed", self.pid, GRACE_S, self.told)
                self.kill()
            else:
                time.sleep(POLL_S)
        return status

    def wait_until(self, is_met: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait for a condition while it lives.

        Raises:
            PoolError: it ended, or the condition did not come in time.
        """
        while not is_met():
            code = self.ended()
            if code is not None:
                raise PoolError(f"it ended with status {code} after {self.age_s:.1f} s, before {what}")
            if self.age_s > timeout_s:
                raise PoolError(f"not {what} within {timeout_s:g} s")
            time.sleep(POLL_S)

    def kill(self) -> None:
        """End it at once, whatever state it is in."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[Child]:
    """Start a program, in a session of its own; it does not outlive the block, nor this process.

    Raises:
        PoolError: it cannot be started.
    """
    pending: list[int] = []
    child: Child | None = None

    def forward(number: int, _: FrameType | None) -> None:
        pending.append(number)
        if child is not None:
            child.tell(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        child = Child(_start(command))
        for number in pending:
            child.tell(number)
        yield child
    finally:
        if child is not None and child.ended() is None:
            child.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        # a session of its own: a terminal's Ctrl-C would reach it twice, from the terminal and from us
        return subprocess.Popen(command, start_new_session=True, preexec_fn=_end_with_parent)  # noqa: S603, PLW1509
    except OSError as error:
        raise PoolError(f"cannot start {command[0]}: {error}") from error


def _end_with_parent() -> None:
    """In the child: SIGTERM when our process dies, also by SIGKILL, so that no master is left on the port."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _status(code: int) -> int:
    return code if code >= 0 else KILLED - code
