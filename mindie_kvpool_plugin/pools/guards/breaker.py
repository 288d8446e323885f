"""A circuit breaker around any backend: a pool in trouble costs a moment once, not a moment per call.

States: closed (calls pass), open (every key is answered False at once, the backend is not touched) and
half-open (one call passes and decides).  It opens after ``failures`` calls in a row that the backend
reports as failed (``base.Answers``) or that raise, and at once when a call takes longer than the slow
bound.  A call that is still running past the bound opens it too: its caller waits for it, because it
may be writing into device memory, and nobody else starts anything.  While it is open a thread asks the
backend for one key every ``retry_s``, so no step and no lookup ever pays for finding out; when that is
answered, the next call is the trial.  A trial that fails doubles the time to the next one.

No library: pybreaker holds one lock for the length of every call, so a hung get would stop the spill
thread and vice versa; circuitbreaker has no lock and lets every thread through when half-open; neither
knows slow calls, calls still running, or an outcome that is not an exception.

Ownership: all state under ``_lock``, which is never held during a call.  The probe thread lives while
the breaker is open.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.observability.counters import CLOSED, HALF_OPEN, OPEN, Counters
from mindie_kvpool_plugin.observability.log import RateLimited, logger
from mindie_kvpool_plugin.options.records import KvPoolOptions
from mindie_kvpool_plugin.pools.attempt import Failed, attempt
from mindie_kvpool_plugin.pools.base import Answers, PoolBackend, PoolWrapper
from mindie_kvpool_plugin.pools.call_thread import CallThread

SLOW_BYTES_PER_S = 256 * 1024**2  # a large transfer may take longer: this much more per second of it
LONGEST_RETRY_S = 60.0
PROBE_KEY = "mindie-kvpool/probe"

_DEFAULTS = KvPoolOptions()


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """When the breaker opens and tries again.

    Attributes:
        failures: failed calls in a row.
        slow_call_s: a call that takes longer opens it at once; transfers get ``SLOW_BYTES_PER_S`` on top.
        retry_s: seconds between probes.
        lookup_budget_s: ``exists`` is given up after this long, which counts as a failed call, and runs on
            in a thread of its own, with nothing started beside it; None: it runs on the caller's thread.
    """

    failures: int = _DEFAULTS.breaker_failures
    slow_call_s: float = _DEFAULTS.breaker_slow_call_s
    retry_s: float = _DEFAULTS.breaker_retry_s
    lookup_budget_s: float | None = None


class State(enum.Enum):
    """Where the breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


_GAUGE = {State.CLOSED: CLOSED, State.HALF_OPEN: HALF_OPEN, State.OPEN: OPEN}


@dataclass(eq=False, slots=True)
class _Call:
    what: str
    late_s: float  # past this it counts as failed, and nothing is started beside it
    due_s: float  # past this the breaker opens
    is_trial: bool
    began_s: float


class _Trouble(NamedTuple):
    kind: Literal["raised", "miscounted", "service", "late"]
    told: str


class GuardedPool(PoolWrapper):
    """A backend behind a breaker; ``register``, a start-up call, passes unguarded.

    Attributes:
        state: where the breaker stands.
    """

    def __init__(self, inner: PoolBackend, name: str, policy: BreakerPolicy, counters: Counters) -> None:
        super().__init__(inner)
        self.state = State.CLOSED
        self._name = name
        self._policy = policy
        self._counters = counters
        self._lock = threading.Lock()
        self._running: set[_Call] = set()
        self._failed_in_a_row = 0
        self._has_trial = False
        self._opened_s = 0.0
        self._retry_s = policy.retry_s
        self._prober: threading.Thread | None = None
        self._closing = threading.Event()
        self._lookups = CallThread("kvpool-lookup") if policy.lookup_budget_s is not None else None
        self._log = RateLimited()

    @property
    def is_available(self) -> bool:
        """Whether a call would reach the backend."""
        if self.state is State.OPEN:
            if self._prober is None:
                with self._lock:
                    self._start_prober()
            return False
        return not self._is_late(time.monotonic()) and self.inner.is_available

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """The backend's answer, or no within the budget."""
        return self._guard("exists", len(keys), 0, lambda: self.inner.exists(keys))

    def lie_elsewhere(self, keys: Sequence[str]) -> list[bool]:
        """The backend's answer, or none; it counts as a lookup."""
        told = self._guard("exists", len(keys), 0, lambda: self.inner.lie_elsewhere(keys))
        return told if isinstance(told, Answers) and told.trouble is None else []

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """The backend's answer, or nothing stored."""
        size = len(keys) * buffers.block_bytes
        return self._guard("put", len(keys), size, lambda: self.inner.put(keys, buffers, groups))

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """The backend's answer, or nothing delivered; once begun it is waited for."""
        size = len(keys) * buffers.block_bytes
        return self._guard("get", len(keys), size, lambda: self.inner.get(keys, buffers))

    def close(self) -> None:
        """End the probes, then close the backend."""
        self._closing.set()
        if self._lookups is not None:
            self._lookups.close()
        super().close()

    def _guard(self, what: str, count: int, size_bytes: int, ask: Callable[[], Sequence[bool]]) -> list[bool]:
        if not count:
            return []
        call = self._begin(what, count, size_bytes)
        if call is None:
            return [False] * count

        def run() -> list[bool]:
            return self._run(call, count, ask)

        if self._lookups is None or what != "exists":
            return run()
        try:
            job = self._lookups.start(run)
        except RuntimeError as error:
            self._end(call, _Trouble("raised", f"no thread could be started for it: {error}"), ())
            return [False] * count
        answers = job.wait(self._policy.lookup_budget_s)
        return [False] * count if answers is None else answers

    def _run(self, call: _Call, count: int, ask: Callable[[], Sequence[bool]]) -> list[bool]:
        trouble: _Trouble | None = _Trouble("raised", "it did not return")
        codes: Sequence[str] = ()
        try:
            answers = attempt(ask)
            trouble = _trouble(answers, count)
            codes = answers.codes if isinstance(answers, Answers) else ()
        finally:
            self._end(call, trouble, codes)
        if isinstance(answers, Failed):
            what = f"pool {self._name} raised in {call.what}; the call counts as failed"
            self._log.warning(what, exc_info=answers.error)
            return [False] * count
        if len(answers) != count:
            return [False] * count
        return answers if isinstance(answers, list) else [bool(answer) for answer in answers]

    def _begin(self, what: str, count: int, size_bytes: int) -> _Call | None:
        now = time.monotonic()
        with self._lock:
            self._look_at_overdue(now)
            self._start_prober()
            if self._closing.is_set() or self.state is State.OPEN or self._has_trial or self._is_late(now):
                self._counters.refused_keys += count
                return None
            is_trial = self.state is State.HALF_OPEN
            self._has_trial = is_trial
            due_s = now + self._policy.slow_call_s + size_bytes / SLOW_BYTES_PER_S
            budget_s = self._policy.lookup_budget_s if what == "exists" else None
            late_s = due_s if budget_s is None else min(due_s, now + budget_s)
            call = _Call(what, late_s, due_s, is_trial, now)
            self._running.add(call)
            return call

    def _end(self, call: _Call, trouble: _Trouble | None, codes: Sequence[str]) -> None:
        now = time.monotonic()
        with self._lock:
            self._running.discard(call)
            if call.is_trial:
                self._has_trial = False
            if trouble is None and now > call.late_s:
                trouble = _Trouble("late", "its answer came too late")
            self._count(call, now - call.began_s, trouble, codes)
            if now > call.due_s:
                self._open(f"{call.what} took {now - call.due_s:.1f} s longer than allowed", now, call.is_trial)
            elif trouble is None:
                self._failed_in_a_row = 0
                if call.is_trial and self.state is State.HALF_OPEN:
                    self._close_again(now)
            else:
                self._failed_in_a_row += 1
                if call.is_trial or self._failed_in_a_row >= self._policy.failures:
                    times = "the trial" if call.is_trial else f"{self._failed_in_a_row} calls in a row"
                    self._open(f"{times} failed, the last one {call.what}: {trouble.told}", now, call.is_trial)

    def _count(self, call: _Call, took_s: float, trouble: _Trouble | None, codes: Sequence[str]) -> None:
        counters = self._counters
        times = {"exists": counters.exists_seconds, "get": counters.get_seconds, "put": counters.put_seconds}
        times[call.what].add(took_s)
        if trouble is not None:
            _add(counters.pool_failures, (call.what, trouble.kind), 1)
        for code, times_told in Counter(codes).items():
            _add(counters.pool_errors, (call.what, code), times_told)

    def _is_late(self, now: float) -> bool:
        return any(now > call.late_s for call in tuple(self._running))

    def _look_at_overdue(self, now: float) -> None:
        late = [call for call in self._running if now > call.due_s]
        if late and self.state is not State.OPEN:
            self._open(f"{late[0].what} has not returned in the time allowed", now, late[0].is_trial)

    def _open(self, reason: str, now: float, is_trial: bool) -> None:
        if is_trial and self.state is State.HALF_OPEN:
            self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        elif self.state is State.CLOSED:
            self._opened_s = now
            self._counters.breaker_openings += 1
            logger.warning(
                "pool %s: %s; it is left alone and asked again every %.1f s, prompts are computed meanwhile",
                self._name,
                reason,
                self._retry_s,
            )
        self._turn(State.OPEN)
        self._start_prober()

    def _start_prober(self) -> None:
        """Under the lock: while it is open somebody asks; if no thread is left now, whoever comes next sees to it."""
        if self.state is not State.OPEN or self._prober is not None or self._closing.is_set():
            return
        prober = threading.Thread(target=self._probe, name="kvpool-probe", daemon=True)
        with contextlib.suppress(RuntimeError):
            prober.start()
            self._prober = prober

    def _close_again(self, now: float) -> None:
        self._turn(State.CLOSED)
        self._retry_s = self._policy.retry_s
        logger.warning("pool %s: works again after %.1f s", self._name, now - self._opened_s)

    def _turn(self, state: State) -> None:
        self.state = state
        self._counters.breaker_state = _GAUGE[state]

    def _probe(self) -> None:
        """Ask the backend for one key until it answers; then leave the rest to the next call."""
        wait_s = self._retry_s
        while not self._closing.wait(wait_s):
            # a doubled wait is for trials; the question alone costs nobody anything
            wait_s = self._policy.retry_s
            if self._is_late(time.monotonic()):
                continue
            if self._answers_in_time():
                with self._lock:
                    self._turn(State.HALF_OPEN)
                    self._failed_in_a_row = 0
                    self._prober = None
                return
        with self._lock:
            self._prober = None

    def _answers_in_time(self) -> bool:
        began = time.monotonic()
        answers = attempt(lambda: self.inner.exists([PROBE_KEY]))
        bound_s = self._policy.lookup_budget_s or self._policy.slow_call_s
        return _trouble(answers, 1) is None and time.monotonic() - began <= bound_s


def _trouble(answers: Sequence[bool] | Failed, count: int) -> _Trouble | None:
    """Why a call failed, or None."""
    if isinstance(answers, Failed):
        return _Trouble("raised", f"it raised {answers.error!r}")
    if len(answers) != count:
        return _Trouble("miscounted", "it answered another number of keys")
    told = answers.trouble if isinstance(answers, Answers) else None
    return None if told is None else _Trouble("service", told)


def _add(counts: dict[tuple[str, str], int], key: tuple[str, str], more: int) -> None:
    counts[key] = counts.get(key, 0) + more
