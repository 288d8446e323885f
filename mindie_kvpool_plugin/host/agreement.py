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

A group that failed once is not used again: its ranks no longer know where the others are.
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
from mindie_kvpool_plugin.observability.log import logger

Lengths = npt.NDArray[np.int64]

MEETING_TIMEOUT_S = 60.0
"""Ranks reach this point together, right after the warm-up; a minute covers the slowest of them."""

HELD_UP_TIMEOUT_S = 60.0
"""How long the others find the votes of a rank that did not wait for them: until they hear that a device has failed,
or give up waiting for the batch before, whichever comes first."""

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
        if_broken: what follows from a failure, for the log.

    Attributes:
        broken: an agreement failed, and no other will be tried.

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
        if_broken: str = "pool hits are off until the service restarts",
    ) -> None:
        self.broken = False
        self._if_broken = if_broken
        place = rendezvous if rendezvous != "auto" else str(_meeting_file(group_name, rank))
        meeting_timeout = timedelta(seconds=MEETING_TIMEOUT_S)
        gloo.require()
        try:
            store, address = gloo.open_store(place, rank, size, meeting_timeout)
            gloo.meet(store, rank, size, meeting_timeout)
            longest = timedelta(seconds=max(MEETING_TIMEOUT_S, HELD_UP_TIMEOUT_S, 2 * timeout_s))
            self._group = gloo.open_group(store, rank, size, longest, address)
            # until everybody is here nobody starts serving
            self._group.barrier().wait(meeting_timeout)
            if rank == 0 and rendezvous == "auto":
                Path(place).unlink(missing_ok=True)
        except (RuntimeError, ValueError, OSError) as error:
            raise HostCompatError(
                f"rank {rank} of {size} could not meet the other ranks at {place} within {MEETING_TIMEOUT_S:.0f} s: "
                f"{error}; if the ranks are on several nodes set kv_pool.agreement in the pool file to "
                '"tcp://<address of rank 0>:<free port>"'
            ) from error
        self._timeout_s = timeout_s

    def minimum(self, lengths: Lengths) -> Lengths:
        """The smallest of every entry over all ranks; zeros when the ranks cannot agree any more."""
        if self.broken:
            return np.zeros_like(lengths)
        began = time.monotonic()
        agreed, vote = torch.tensor(lengths.tolist(), dtype=torch.int64), torch.ones(1, dtype=torch.int64)
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
        return np.array(agreed.tolist(), dtype=np.int64)

    def give_up(self, count: int) -> Lengths:
        """Zeros, which the other ranks will hear when they come; nobody is waited for."""
        if not self.broken:
            try:
                for values in (torch.zeros(count, dtype=torch.int64), torch.ones(1, dtype=torch.int64)):
                    self._reduce(values, HELD_UP_TIMEOUT_S)
            except RuntimeError as error:
                self._break(str(error))
        return np.zeros(count, dtype=np.int64)

    def _reduce_to_minimum(self, values: torch.Tensor, timeout_s: float) -> None:
        work = self._reduce(values, timeout_s)
        try:
            work.wait(timedelta(seconds=timeout_s))
        except RuntimeError:
            gloo.keep_if_running(self._group, work)
            raise

    def _reduce(self, values: torch.Tensor, timeout_s: float) -> Any:
        return gloo.reduce_to_minimum(self._group, values, timedelta(seconds=timeout_s))

    def _break(self, reason: str) -> None:
        self.broken = True
        logger.error("ranks could not agree on a pool hit (%s); %s", reason, self._if_broken)


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
