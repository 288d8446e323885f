"""A scheduler without workers, or workers without a scheduler: each looks for the other when nothing comes of its work.

Both are hooked one by one, and a half that is missing fails nowhere: who asks is answered no, who stores is never
asked.  Prompts that do not repeat look the same, so traffic alone says nothing.  But the host's daemon forks its
workers, and each of our processes has a socket, named by its process id, in the run directory.  A daemon that never
found a block looks for a socket of a process below it, a worker whose blocks nobody ever promised for one of a process
above it.
What is found, or told to be missing, is not looked for again.

Each machine is judged by itself: a daemon has workers on its own, whatever nodes there are besides.  Of the workers
only rank 0 looks, since on other nodes the scheduler may be another machine's.  Observer's thread, every few seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

from mindie_kvpool_plugin.host import process_stat
from mindie_kvpool_plugin.observability import run_directory
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.observability.observer import observed

LEAST_QUESTIONS = 50
"""Without one block found: fewer may all be first turns."""

LEAST_PROMPTS = 50
"""Without one block promised."""

PATIENCE_S = 60.0
"""After the first look: the other side may still be starting."""

MAX_GENERATIONS = 8
"""Between a daemon and its workers: a launcher or two."""


class Watch:
    """Looks until the other side was seen, or says once that it is not there.

    Args:
        is_wanting: whether nothing ever came of many tries; None when something did.
        is_there: whether the other side has a socket; None when that cannot be told.
        complaint: what is said, with what to do.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        is_wanting: Callable[[], bool | None],
        is_there: Callable[[], bool | None],
        complaint: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_wanting = is_wanting
        self._is_there = is_there
        self._complaint = complaint
        self._clock = clock
        self._since_s = clock()

    def look(self) -> bool:
        """Look, unless it is too early; whether everything is known now, and no further look needed."""
        if self._clock() < self._since_s + PATIENCE_S:
            return False
        wanting = self._is_wanting()
        if wanting and self._is_there() is False:
            logger.warning("%s", self._complaint())
        return wanting is not False


def scheduler_watch(counters: Counters, clock: Callable[[], float] = time.monotonic) -> Watch:
    """What a scheduler's lookups look for: a worker of this daemon."""

    def is_wanting() -> bool | None:
        return None if counters.found_keys else counters.questions >= LEAST_QUESTIONS

    def complaint() -> str:
        return (
            f"{counters.questions} lookups found no block, and no worker of this daemon (process {os.getpid()}) stores "
            "any for this package: kv_pool is not in plugin_type (mindie-kvpool check), or the workers' interpreter "
            "is not hooked (mindie-kvpool status)"
        )

    return Watch(is_wanting, worker_is_there, complaint, clock)


def worker_watch(counters: Counters, clock: Callable[[], float] = time.monotonic) -> Watch:
    """What a worker looks for: the scheduler of the daemon that started it."""

    def is_wanting() -> bool | None:
        return None if counters.promised_blocks else counters.prompts >= LEAST_PROMPTS and counters.spilled_blocks > 0

    def complaint() -> str:
        return (
            f"{counters.prompts} prompts, {counters.spilled_blocks} blocks stored and none ever promised: the daemon "
            f"that started this worker (process {os.getppid()}) does not look for this package's blocks; is its "
            "interpreter hooked? Run mindie-kvpool status where the service is started"
        )

    return Watch(is_wanting, scheduler_is_there, complaint, clock)


def worker_is_there() -> bool | None:
    """Whether a process below this one, or this one itself, serves as a worker; None when that cannot be told."""
    return _is_there("worker", lambda pid: os.getpid() in ancestors(pid))


def scheduler_is_there() -> bool | None:
    """Whether a process above this one, or this one itself, looks blocks up; None when that cannot be told."""
    above = set(ancestors(os.getpid()))
    return _is_there("scheduler", above.__contains__)


def _is_there(role: str, is_kin: Callable[[int], bool]) -> bool | None:
    if any(part.identity.role == role for part in observed()):
        return True
    try:
        with run_directory.opened(run_directory.own_path()) as folder:
            heard = {_pid(name) for name in run_directory.names(folder) if run_directory.is_heard(folder, name)}
    except (OSError, run_directory.RunDirectoryError):
        return None
    if os.getpid() not in heard:
        return None  # nobody could be seen here
    return any(is_kin(pid) for pid in heard - {os.getpid()})


def _pid(name: str) -> int:
    """Of a socket's name, ``<pid>.sock`` or ``<pid>-<number>.sock``; 0 for another one."""
    digits = name.partition(".")[0].partition("-")[0]
    return int(digits) if digits.isdecimal() else 0


def ancestors(pid: int) -> Iterator[int]:
    """The process that started ``pid``, the one that started that, and so on; none of one that is gone."""
    for _ in range(MAX_GENERATIONS):
        found = process_stat.fields(pid)
        if not found:
            return
        pid = int(found[process_stat.PARENT])
        yield pid
