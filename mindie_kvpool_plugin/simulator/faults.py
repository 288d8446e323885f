"""Breaks a pool on purpose: what a spec such as ``get_fail=0.05,evict=0.02,rank=1`` asks for, seeded, and counted.

``injected`` puts a ``FaultyPool`` between the plugin and its backend, by registering a backend name that
exists only inside the ``with`` block; a service that never imports the simulator cannot reach it.  A fault is
counted when it really happened: a get that would have missed anyway is none.  Reads that fail leave the
destination as a real one would, half written or untouched, never with the right bytes.

All ranks and the scheduler of one pool file share what was lost (``FaultRecord``, locked); the random
numbers belong to one client and one kind of call, so a run without threads of its own repeats exactly.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.check.messages import Refused
from mindie_kvpool_plugin.options.pool_file import PoolFile
from mindie_kvpool_plugin.pools import registry
from mindie_kvpool_plugin.pools.base import NOTHING, Answers, PoolBackend, PoolWrapper, Role

FAULTY = "faulty"
"""The backend's name inside ``injected``."""

KINDS = {
    "get_fail": "per block: a get answers no and writes nothing",
    "short": "per block: a get fills the first half and answers no",
    "torn": "per block: a get leaves right bytes, wrong bytes and old bytes mixed, and answers no",
    "flip": "per block: a get delivers one wrong bit and answers no",
    "undetected_flip": "per block: the same, but it answers yes: no key can tell, only the model's check sees it",
    "evict": "per block: the pool evicts it between lookup and get; its alias stays",
    "put_fail": "per block: a put answers no and stores nothing",
    "stale": "per block: a put answers yes and the data is lost at once; counted by the gets that then miss",
    "lie": "per alias: exists answers yes for a block that is not in the pool",
    "deny": "per alias: exists answers no for a block that is",
    "raise": "per call: half of it is done, then an exception",
    "wrong_length": "per call: one answer too few",
    "slow_ms": "per call, MS:RATE: it takes MS longer",
    "hang_ms": "per call, MS:RATE: it does nothing for MS, then fails as a whole",
    "slow_lookup_ms": "per lookup, MS:RATE: its answer takes MS longer; gets and puts do not",
    "crash": "per get call: an instance dies with its segment, half of all blocks; their aliases stay for a while",
}
"""Name in a spec -> what happens, at the given rate."""

TIMED = ("slow_ms", "hang_ms", "slow_lookup_ms")
MAX_DELAY_MS = 10_000.0
CRASH_ALIAS_CALLS = 40
"""Lookups that still see the aliases of a dead instance: the master forgets it after a while."""

_OF_GET = ("get_fail", "short", "torn", "flip", "undetected_flip", "evict")
_OF_PUT = ("put_fail", "stale")
_OF_EXISTS = ("lie", "deny")
_OF_CALL = ("raise", "wrong_length", "hang_ms", "slow_ms")
_OF_LOOKUP = (*_OF_CALL, "slow_lookup_ms")
_ALIAS_PARTS = 3  # <namespace>/<model>/<hash>; data keys have one part more


class InjectedError(Exception):
    """What a faulty backend raises though it must not."""


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """What goes wrong, and how often.

    Attributes:
        rates: kind -> probability.
        delay_s: timed kind -> seconds.
        rank: the only rank whose pool is faulty; None: all, and the scheduler's lookups.
        seed: of the random numbers.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    delay_s: Mapping[str, float] = field(default_factory=dict)
    rank: int | None = None
    seed: int = 0


def parse_spec(text: str) -> FaultSpec:
    """Read ``name=rate,...``.

    Raises:
        Refused: an unknown name, or a value that is no rate.
    """
    rates: dict[str, float] = {}
    delays: dict[str, float] = {}
    whole = {"rank": -1, "seed": 0}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = (part.strip() for part in item.partition("="))
        if not separator:
            raise Refused("faults.no_value", item=item)
        if name in whole:
            whole[name] = _whole(name, value)
        elif name in TIMED:
            milliseconds, _, rate = value.partition(":")
            delays[name] = _number(name, milliseconds, MAX_DELAY_MS, "time") / 1000
            rates[name] = _number(name, rate, 1.0, "time")
        elif name in KINDS:
            rates[name] = _number(name, value, 1.0, "rate")
        else:
            raise _unknown(name)
    for group in (_OF_GET, _OF_PUT, _OF_EXISTS, _OF_LOOKUP):
        total = sum(rates.get(name, 0.0) for name in group)
        if total > 1:
            named = ", ".join(name for name in group if name in rates)
            raise Refused("faults.above_one", names=named, total=f"{total:g}")
    return FaultSpec(rates, delays, None if whole["rank"] < 0 else whole["rank"], whole["seed"])


@dataclass
class FaultRecord:
    """What all clients of one faulty pool share.

    Attributes:
        spec: what goes wrong.
        backend: the real backend's name.
        happened: kind -> times it really happened.
        sleep: lets a timed fault's seconds pass.
    """

    spec: FaultSpec
    backend: str
    happened: Counter[str] = field(default_factory=Counter)
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._spares = False
        self._gone: set[str] = set()
        self._members: dict[str, set[str]] = {}  # group -> its keys, where crashes are wanted
        self._crashes = self._lookups = 0
        self._aliases_until: deque[tuple[int, set[str]]] = deque()

    @contextlib.contextmanager
    def sparing(self) -> Iterator[None]:
        """Clients that are opened meanwhile break nothing themselves; what they store can be lost like all else."""
        self._spares = True
        try:
            yield
        finally:
            self._spares = False

    @property
    def opening(self) -> FaultSpec:
        """What goes wrong with a client that is opened now."""
        return FaultSpec() if self._spares else self.spec

    def count(self, kind: str, times: int = 1) -> None:
        """It really happened."""
        if times:
            with self._lock:
                self.happened[kind] += times

    def lose(self, keys: Sequence[str]) -> None:
        """These are not in the pool any more, whatever the backend has."""
        with self._lock:
            self._gone.update(keys)

    def restore(self, keys: Sequence[str], groups: Sequence[str] | None) -> None:
        """These were stored again."""
        with self._lock:
            self._gone.difference_update(keys)
            if "crash" in self.spec.rates:
                for key, group in zip(keys, groups or keys, strict=True):
                    self._members.setdefault(group, set()).add(key)

    def are_gone(self, keys: Sequence[str]) -> list[bool]:
        """Which of them were lost."""
        with self._lock:
            return [key in self._gone for key in keys] if self._gone else [False] * len(keys)

    def look(self) -> None:
        """A lookup happened: old aliases of dead instances fade."""
        with self._lock:
            self._lookups += 1
            while self._aliases_until and self._aliases_until[0][0] <= self._lookups:
                self._gone |= self._aliases_until.popleft()[1]

    def crash(self) -> None:
        """Half of all groups die: data at once, aliases later."""
        with self._lock:
            self._crashes += 1
            dead = [group for group in self._members if zlib.crc32(f"{self._crashes} {group}".encode()) % 2]
            lost = {key for group in dead for key in self._members.pop(group)}
            aliases = {key for key in lost if is_alias(key)}
            self._gone |= lost - aliases
            self._aliases_until.append((self._lookups + CRASH_ALIAS_CALLS, aliases))
            self.happened["crash"] += bool(lost)


_records: dict[str, FaultRecord] = {}
_records_lock = threading.Lock()


@contextlib.contextmanager
def injected(spec: FaultSpec, backend: str, pool_file: str) -> Iterator[FaultRecord]:
    """For the length of a ``with`` block ``backend`` FAULTY with this pool file is ``backend``, broken as asked.

    Args:
        spec: what goes wrong.
        backend: the real backend.
        pool_file: the pool file; every client that opens it is faulty.
    """
    path = os.path.realpath(pool_file)
    record = FaultRecord(spec, backend)
    with _records_lock:
        _records[path] = record
        registry.BACKENDS[FAULTY] = replace(registry.BACKENDS[backend], module=__name__)
    try:
        yield record
    finally:
        with _records_lock:
            del _records[path]
            if not _records:
                registry.BACKENDS.pop(FAULTY, None)


def open_pool(options: object, pool_file: PoolFile, role: Role) -> FaultyPool:
    """Open the real backend, broken; for ``pools.registry``."""
    del options  # the real backend reads its own
    record = _records[os.path.realpath(Path(pool_file.path))]
    inner = registry.open_pool(record.backend, pool_file, role)
    rank = -1 if role == "scheduler" else rank_of(threading.current_thread().name)
    return FaultyPool(inner, record, rank)


def rank_of(thread_name: str) -> int:
    """The rank whose inference thread has this name (``simulator.engine``)."""
    _, _, number = thread_name.partition("inference-")
    return int(number) if number.isdigit() else 0


class FaultyPool(PoolWrapper):
    """A backend that breaks its promises as a spec says.

    Args:
        inner: the real one.
        record: shared by all clients of the pool.
        rank: whose client this is, -1 for the scheduler's.
    """

    def __init__(self, inner: PoolBackend, record: FaultRecord, rank: int = 0) -> None:
        super().__init__(inner)
        self._record = record
        spec = record.opening
        self._get_dice, self._put_dice, self._exists_dice = (
            _Dice(spec, rank, name, of_blocks, of_calls)
            for name, of_blocks, of_calls in (
                ("get", _OF_GET, _OF_CALL),
                ("put", _OF_PUT, _OF_CALL),
                ("exists", _OF_EXISTS, _OF_LOOKUP),
            )
        )
        self._crash_rate = spec.rates.get("crash", 0.0) if spec.rank in (None, rank) else 0.0

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """The real answer, with lies."""
        self._record.look()
        fault = self._call_fault(self._exists_dice)
        if fault == "hang_ms":
            return [False] * len(keys)
        if fault == "raise":
            raise InjectedError("exists")
        gone = self._record.are_gone(keys)
        answers = [found and not lost for found, lost in zip(self.inner.exists(keys), gone, strict=True)]
        for row, kind in self._exists_dice.of_rows(len(keys)):
            if answers[row] == (kind == "deny"):
                answers[row] = kind == "lie"
                self._record.count(kind)
        return answers[:-1] if fault == "wrong_length" else answers

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """Store, except for what is refused or lost."""
        fault = self._call_fault(self._put_dice)
        if fault == "hang_ms":
            return [False] * len(keys)
        if fault == "raise":
            self._store(keys, np.arange(len(keys) // 2), buffers, groups, [False] * len(keys))
            raise InjectedError("put")
        answers, lost = [False] * len(keys), []
        kinds = dict(self._put_dice.of_rows(len(keys)))
        for row, kind in kinds.items():
            if kind == "stale" and not is_alias(keys[row]):
                answers[row] = True
                lost.append(keys[row])
        rows = [row for row in range(len(keys)) if kinds.get(row) != "put_fail" and not answers[row]]
        self._store(keys, np.array(rows, dtype=np.int64), buffers, groups, answers)
        # what was there before stays, as in every pool; the rest never arrived
        if lost:
            self._record.lose([k for k, found in zip(lost, self.inner.exists(lost), strict=True) if not found])
        self._record.count("put_fail", sum(kind == "put_fail" for kind in kinds.values()))
        return answers[:-1] if fault == "wrong_length" else answers

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Fetch, except for what is gone, late or damaged."""
        if self._crash_rate and self._get_dice.chance() < self._crash_rate:
            self._record.crash()
        fault = self._call_fault(self._get_dice)
        if fault == "hang_ms":
            return [False] * len(keys)
        if fault == "raise":
            half = slice(0, len(keys) // 2)
            self._fetch(keys[half], buffers.take(half))
            raise InjectedError("get")
        answers = self._fetch(keys, buffers)
        return answers[:-1] if fault == "wrong_length" else answers

    def _store(
        self,
        keys: Sequence[str],
        rows: np.ndarray[tuple[int], np.dtype[np.int64]],
        buffers: Buffers,
        groups: Sequence[str] | None,
        answers: list[bool],
    ) -> None:
        if not len(rows):
            return
        chosen = rows.tolist()
        chosen_groups = [groups[row] for row in chosen] if groups is not None else None
        stored = self.inner.put([keys[row] for row in chosen], buffers.take(rows), chosen_groups)
        for row, is_stored in zip(chosen, stored, strict=True):
            answers[row] = is_stored
        good = [row for row in chosen if answers[row]]
        self._record.restore([keys[row] for row in good], [groups[row] for row in good] if groups is not None else None)

    def _fetch(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        gone = self._record.are_gone(keys)
        self._record.count("stale", sum(gone))
        kinds = {row: kind for row, kind in self._get_dice.of_rows(len(keys)) if not gone[row]}
        if not kinds and not any(gone):
            return self.inner.get(keys, buffers)
        missing = [row for row, kind in kinds.items() if kind in ("get_fail", "evict")]
        self._miss([keys[row] for row in missing], [kinds[row] for row in missing])
        skipped = {row for row, is_gone in enumerate(gone) if is_gone}.union(missing)
        rows = np.array([row for row in range(len(keys)) if row not in skipped], dtype=np.int64)
        damaged = [row for row in kinds if row not in skipped]
        before = {row: _bytes_of(buffers, row) for row in damaged}
        answers, elsewhere = [False] * len(keys), NOTHING
        if len(rows):
            arrived = self.inner.get([keys[row] for row in rows], buffers.take(rows))
            elsewhere = arrived.elsewhere if isinstance(arrived, Answers) else NOTHING
            for row, has_arrived in zip(rows.tolist(), arrived, strict=True):
                answers[row] = has_arrived
        for row in damaged:
            if answers[row]:
                self._record.count(kinds[row])
                self._damage(kinds[row], buffers, row, before[row])
                answers[row] = kinds[row] == "undetected_flip"
        return Answers(answers, elsewhere=elsewhere.at_most(sum(answers)))

    def _miss(self, keys: list[str], kinds: list[str]) -> None:
        if not keys:
            return
        for key, kind, is_there in zip(keys, kinds, self.inner.exists(keys), strict=True):
            if is_there:
                self._record.count(kind)
                if kind == "evict":
                    self._record.lose([key])

    def _damage(self, kind: str, buffers: Buffers, row: int, before: bytes) -> None:
        after = bytearray(_bytes_of(buffers, row))
        half = len(after) // 2
        if kind == "short":
            after[half:] = before[half:]
        elif kind == "torn":
            third = half // 2
            after[third:half] = bytes(~byte & 0xFF for byte in after[third:half])
            after[half:] = before[half:]
        else:
            bit = self._get_dice.number(len(after) * 8)
            after[bit // 8] ^= 1 << bit % 8
        _overwrite(buffers, row, bytes(after))

    def _call_fault(self, dice: _Dice) -> str | None:
        fault = dice.of_call()
        if fault is not None:
            self._record.count(fault)
            if fault in TIMED:
                self._record.sleep(self._record.spec.delay_s[fault])
        return fault


class _Dice:
    """The random numbers of one kind of call of one client."""

    def __init__(
        self, spec: FaultSpec, rank: int, call: str, of_blocks: Sequence[str], of_calls: Sequence[str]
    ) -> None:
        is_faulty = spec.rank in (None, rank)
        self._random = np.random.default_rng(zlib.crc32(f"{spec.seed} {rank} {call}".encode()))
        self._of_blocks = _thresholds(spec, of_blocks if is_faulty else ())
        self._of_calls = _thresholds(spec, of_calls if is_faulty else ())

    def of_call(self) -> str | None:
        """What goes wrong with this call as a whole."""
        return _pick(self._of_calls, float(self._random.random())) if self._of_calls else None

    def of_rows(self, count: int) -> list[tuple[int, str]]:
        """What goes wrong with its blocks: (row, kind)."""
        if not self._of_blocks:
            return []
        drawn = self._random.random(count)
        rows = np.flatnonzero(drawn < self._of_blocks[-1][0]).tolist()
        return [(row, kind) for row in rows if (kind := _pick(self._of_blocks, float(drawn[row]))) is not None]

    def chance(self) -> float:
        """A number from 0 to 1."""
        return float(self._random.random())

    def number(self, below: int) -> int:
        """A whole number."""
        return int(self._random.integers(below))


def _thresholds(spec: FaultSpec, names: Sequence[str]) -> list[tuple[float, str]]:
    found, total = [], 0.0
    for name in names:
        if spec.rates.get(name, 0.0) > 0:
            total += spec.rates[name]
            found.append((total, name))
    return found


def _pick(thresholds: list[tuple[float, str]], drawn: float) -> str | None:
    return next((name for threshold, name in thresholds if drawn < threshold), None)


def is_alias(key: str) -> bool:
    """Whether a key announces a block, and names no bytes."""
    return key.count("/") + 1 == _ALIAS_PARTS


def _bytes_of(buffers: Buffers, row: int) -> bytes:
    segments = zip(buffers.addresses[row].tolist(), buffers.sizes.tolist(), strict=True)
    return b"".join(ctypes.string_at(address, size) for address, size in segments)


def _overwrite(buffers: Buffers, row: int, content: bytes) -> None:
    at = 0
    for address, size in zip(buffers.addresses[row].tolist(), buffers.sizes.tolist(), strict=True):
        ctypes.memmove(address, content[at : at + size], size)
        at += size


def _number(name: str, text: str, largest: float, kind: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= largest:
        raise Refused(f"faults.odd_{kind}", name=name, value=text, most=f"{largest:g}")
    return value


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise Refused("faults.no_whole", name=name, value=text)
    return int(text)


def _unknown(name: str) -> Refused:
    known = [*KINDS, "rank", "seed"]
    close = get_close_matches(name, known, n=1)
    if close:
        return Refused("faults.mistyped", name=name, close=close[0])
    return Refused("faults.unknown", name=name, known=", ".join(known))
