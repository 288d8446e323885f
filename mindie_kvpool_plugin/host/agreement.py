"""The ranks of one model agree on how much of each pool hit may be used: the minimum over all of them.

Tensor-parallel ranks run one batch together, so a block that one of them did not get is a block none
of them may use.  They agree over a Gloo group of the plugin's own; no default process group is
needed and none is touched.  Ranks meet through a file on one node, or a TCP store of rank 0 across
nodes.  Step thread; called for steps with a pool hit, which every rank sees in the same batch, or
for every prefill step where ranks run batches of their own (``told_lengths``).

Two rounds, because the answer must be the same on all of them also when one is late.  In the first,
every rank waits ``timeout_s`` for the lengths of all others.  In the second they vote: a rank that got
everything in time says so, one that gave up says nothing, and the lengths count only if all said yes.
The second wait is twice the first, and who is past one and a half of the first votes no.  So when a
rank leaves the second round without an answer, every other one votes no or has left too; a message
would have to take longer than half of ``timeout_s`` to part them.

A rank whose device has failed knows the answer, since it can use nothing: it votes zeros and goes on (``give_up``).
The others may hear of the failure only through it, and hang in the batch before until then.

A group that failed once is not used again: its ranks no longer know where the others are.  They meet again in another
one (``meeting_again``), the sooner the fewer times that was needed; until then they use no hits.  With every question
goes its number: ranks that count differently are not asked the same, and are not helped by meeting again.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import gloo, process_stat
from mindie_kvpool_plugin.host.meeting_again import MeetingAgain, WaitFor
from mindie_kvpool_plugin.observability.log import logger

Lengths = npt.NDArray[np.int64]

MEETING_TIMEOUT_S = 60.0
"""Ranks reach this point together, right after the warm-up; a minute covers the slowest of them."""

HELD_UP_TIMEOUT_S = 60.0
"""How long the others find the votes of a rank that did not wait for them: until they hear that a device has failed,
or give up waiting for the batch before, whichever comes first."""

PAUSE_S = 60.0
LONGEST_PAUSE_S = 3600.0
"""Before ranks meet a second time again, and every further time twice as long: each time they may wait for a late one
as long as before."""

_rounds: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)


class Alone:
    """One rank: nothing to agree on."""

    broken = False

    def minimum(self, lengths: Lengths) -> Lengths:
        """The lengths themselves."""
        return lengths

    def give_up(self, count: int) -> Lengths:
        """Zeros."""
        return np.zeros(count, dtype=np.int64)

    def close(self) -> None:
        """Nothing to do."""


class Agreement:
    """A Gloo group of the ranks that run one batch together.

    Args:
        rank, size: this rank's place among them.
        rendezvous: "auto" or "tcp://host:port" of rank 0.
        group_name: tells groups on one node apart.
        timeout_s: how late another rank may be; the whole of it is bounded by three times this.
        ends_service: a failure ends the step with an error, and the service with it: the ranks need not meet again.

    Attributes:
        broken: an agreement failed, and the ranks have not met again.

    Raises:
        HostCompatError: this torch has no Gloo, or the ranks did not meet.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        rendezvous: str,
        group_name: str,
        timeout_s: float,
        *,
        ends_service: bool = False,
    ) -> None:
        self.broken = False
        self._rank, self._size, self._timeout_s = rank, size, timeout_s
        self._ends_service = ends_service
        self._again: MeetingAgain | None = None
        self._num_failures = self._number = 0
        place = self._place = rendezvous if rendezvous != "auto" else str(_meeting_file(group_name, rank))
        meeting_timeout = timedelta(seconds=MEETING_TIMEOUT_S)
        gloo.require()
        try:
            self._store, self._address = gloo.open_store(place, rank, size, meeting_timeout)
            gloo.meet(self._store, rank, size, meeting_timeout)
            self._group = self._open_group(self._store, place)
        except (RuntimeError, ValueError, OSError) as error:
            raise HostCompatError(
                f"rank {rank} of {size} could not meet the other ranks at {place} within {MEETING_TIMEOUT_S:.0f} s: "
                f"{error}; if the ranks are on several nodes set kv_pool.agreement in the pool file to "
                '"tcp://<address of rank 0>:<free port>"'
            ) from error

    def minimum(self, lengths: Lengths) -> Lengths:
        """The smallest of every entry over all ranks; zeros when the ranks cannot agree any more."""
        number = self._begin()
        if self.broken:
            return np.zeros_like(lengths)
        began = time.monotonic()
        agreed = torch.tensor([*lengths.tolist(), number, -number], dtype=torch.int64)
        vote = torch.ones(1, dtype=torch.int64)
        try:
            self._reduce_to_minimum(agreed, self._timeout_s)
            vote[0] = int(time.monotonic() - began <= 1.5 * self._timeout_s)
            self._reduce_to_minimum(vote, 2 * self._timeout_s)
        except RuntimeError as error:
            self._break(str(error))
            return np.zeros_like(lengths)
        if not vote[0]:
            self._break("one of them was too late")
            return np.zeros_like(lengths)
        *lengths_agreed, first, last = agreed.tolist()
        if first != -last:
            self._break(f"they are at questions {first} to {-last}", for_good=True)
            return np.zeros_like(lengths)
        return np.array(lengths_agreed, dtype=np.int64)

    def give_up(self, count: int) -> Lengths:
        """Zeros, which the other ranks will hear when they come; nobody is waited for."""
        number = self._begin()
        if not self.broken:
            try:
                told = torch.tensor([*[0] * count, number, -number], dtype=torch.int64)
                for values in (told, torch.ones(1, dtype=torch.int64)):
                    self._reduce(values, HELD_UP_TIMEOUT_S)
            except RuntimeError as error:
                self._break(str(error))
        return np.zeros(count, dtype=np.int64)

    def close(self) -> None:
        """Meet nobody any more."""
        if self._again is not None:
            self._again.close()

    def _begin(self) -> int:
        """A question; its number.  The ranks may have met again, and begin with it."""
        self._number += 1
        group = None if self._again is None else self._again.group_from(self._number, self._timeout_s)
        if group is not None:
            gloo.keep(self._group)  # what it was given up in may go on
            self._group, self._again, self.broken = group, None, False
        return self._number

    def _reduce_to_minimum(self, values: torch.Tensor, timeout_s: float) -> None:
        work = self._reduce(values, timeout_s)
        try:
            work.wait(timedelta(seconds=timeout_s))
        except RuntimeError:
            gloo.keep_if_running(self._group, work)
            raise

    def _reduce(self, values: torch.Tensor, timeout_s: float) -> Any:
        return gloo.reduce_to_minimum(self._group, values, timedelta(seconds=timeout_s))

    def _break(self, reason: str, *, for_good: bool = False) -> None:
        self.broken = True
        if self._ends_service:
            follows = "this step and the service end"
        elif for_good:
            follows = "pool hits are off until the service restarts"
        else:
            follows = "pool hits are off until they have met again"
            pause_s = min(PAUSE_S * 2 ** (self._num_failures - 1), LONGEST_PAUSE_S) if self._num_failures else 0.0
            self._num_failures += 1
            self._again = MeetingAgain(self._open_again, self._number, MEETING_TIMEOUT_S, pause_s)
        logger.error("ranks could not agree on a pool hit (%s); %s", reason, follows)

    def _open_again(self, wait_for: WaitFor) -> Any | None:
        """Another group, once all ranks are there."""
        place = f"{self._place}-{self._num_failures}"
        store = gloo.open_another_store(self._store, place, self._size, self._num_failures)
        store.set(f"here/{self._rank}", "1")
        if not wait_for(lambda: bool(store.check([f"here/{rank}" for rank in range(self._size)]))):
            return None
        return self._open_group(store, place)

    def _open_group(self, store: Any, place: str) -> Any:
        """The group of all ranks, which are at the store."""
        longest = timedelta(seconds=max(MEETING_TIMEOUT_S, HELD_UP_TIMEOUT_S, 2 * self._timeout_s))
        group = gloo.open_group(store, self._rank, self._size, longest, self._address)
        # until everybody is here nobody goes on
        group.barrier().wait(timedelta(seconds=MEETING_TIMEOUT_S))
        if self._rank == 0 and not place.startswith("tcp://"):
            Path(place).unlink(missing_ok=True)
        return group


class Carrying:
    """An agreement that takes figures along: they are told behind the lengths, and heard when the ranks have agreed.

    Args:
        agreement: of the lengths.
        num_figures: how many, on every rank, whether it has any to tell or not.
        tells: int64 [num_figures], this rank's; zeros say nothing.
        hears: is given the smallest of each over all ranks, unless the ranks could not agree.
    """

    def __init__(
        self,
        agreement: Agreement | Alone,
        num_figures: int,
        tells: Callable[[], Lengths] | None = None,
        hears: Callable[[Lengths], None] | None = None,
    ) -> None:
        self._agreement = agreement
        self._num_figures = num_figures
        self._tells = tells
        self._hears = hears

    @property
    def broken(self) -> bool:
        """The agreement's."""
        return self._agreement.broken

    def minimum(self, lengths: Lengths) -> Lengths:
        """The agreement's."""
        figures = np.zeros(self._num_figures, dtype=np.int64) if self._tells is None else self._tells()
        agreed = self._agreement.minimum(np.concatenate((lengths, figures)))
        if self._hears is not None and not self.broken:
            self._hears(agreed[len(lengths) :])
        return agreed[: len(lengths)]

    def give_up(self, count: int) -> Lengths:
        """The agreement's."""
        return self._agreement.give_up(count + self._num_figures)[:count]


def is_daemons_child() -> bool:
    """Whether this process was started by the daemon, as one worker of one server (executor.cpp)."""
    return "--shm_name_prefix" in sys.argv[:-1]


def _meeting_file(group_name: str, rank: int) -> Path:
    """A path all ranks of one engine compute alike, and no other engine and no earlier start.

    The daemon starts its workers as children, one shared-memory prefix per engine (executor.cpp).
    Without that argument the ranks are taken to be threads of this process.
    """
    if is_daemons_child():
        pid, engine = os.getppid(), sys.argv[sys.argv.index("--shm_name_prefix") + 1]
    else:
        pid, engine = os.getpid(), ""
    identity = [str(os.getuid()), str(pid), _start_ticks(pid), engine, group_name]
    # a process may build a rank again (tests, a restarted engine): each time is a meeting of its own
    identity.append(str(next(_rounds[f"{identity} {rank}"])))
    name = hashlib.sha256("\n".join(identity).encode()).hexdigest()[:24]
    return Path(tempfile.gettempdir(), f"mindie-kvpool-{name}")


def _start_ticks(pid: int) -> str:
    """When a process started, so that a reused pid is not taken for it."""
    return next(iter(process_stat.fields(pid)[process_stat.STARTED :]), "")
