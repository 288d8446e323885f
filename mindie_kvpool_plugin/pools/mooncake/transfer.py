"""One put or get on its way through the binding, in pieces.

A **piece** is what one call of the binding moves: some blocks of the call, few enough for the transport
(``gate``) and small enough that others get their turn.  A slice is Mooncake's own unit, one segment of one
block; only the gate counts in it.  Rows are indices into the call's keys, in every piece and result.

Pieces at home, in this process's own segment, are copied in memory: two lanes move them, because each
call's questions to the master take as long as the copy, and they pass no gate, since they fill no queue.
Pieces that are away go one at a time (two are slower, measured: a fifth) and through the gate.  A put takes
its pieces as they come; a get over tcp finds out where the next few blocks lie while others are moving.

Ownership: what is ready and what is not yet asked for belong to ``_changed``, which nobody holds while the
network is asked or a piece moves; one lane asks at a time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.pools.mooncake import codes
from mindie_kvpool_plugin.pools.mooncake.client import Connection
from mindie_kvpool_plugin.pools.mooncake.limits import SLOW_S
from mindie_kvpool_plugin.pools.mooncake.link import Link

GATE_TIMEOUT_S = 5.0  # a call of the allowed size takes tens of milliseconds; longer means a stuck transfer
# Mooncake waits for each key of a call in turn, 1 to 2 s (``start``), if their peer hangs.  A get's first piece
# is this small, so that a peer that hung after it was last heard is met with few keys; the rest is then given up.
FIRST_KEYS = 4
GROWTH = 4
PIECE_BYTES = 32 << 20  # larger calls gain nothing; this bounds how long a reload waits for a spill's turn at the gate

_HOPELESS = codes.SERVICE_FAILED | {codes.NOT_OPEN}  # not about one key

CodeByRow: TypeAlias = dict[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """What the binding is given in one call.

    Attributes:
        rows: whose blocks.
        is_home: they lie in the own segment.
        peers: with whom else they lie, ``host:port``, where that is known.
        refusal: the code of all of them, which are not moved; 0: they are.
    """

    rows: list[int]
    is_home: bool = False
    peers: frozenset[str] = frozenset()
    refusal: int = 0


class Found(NamedTuple):
    """An answer to where blocks lie: their pieces, and how many more to ask about next (0: none any more)."""

    pieces: list[Piece]
    num_next: int


class Transfer(ABC):
    """The blocks of one call, moved once.

    Attributes:
        is_given_up: a piece failed in a way that spoke against moving the others.
    """

    what: ClassVar[Literal["put", "get"]]

    def __init__(self, link: Link, keys: Sequence[str], buffers: Buffers) -> None:
        self.is_given_up = False
        self._link = link
        self._keys = keys
        self._buffers = buffers
        self._sizes: list[int] = buffers.sizes.tolist()
        blocks = min(link.max_slices // max(1, len(self._sizes)), PIECE_BYTES // max(1, buffers.block_bytes))
        self._max_blocks = max(1, blocks)
        self._ready: deque[Piece] = deque()
        self._unasked: list[int] = []
        self._num_next = 0
        self._is_asking = False
        self._changed = threading.Condition()
        self._away = threading.Lock()

    def move(self, rows: list[int]) -> CodeByRow:
        """Move these blocks, once; the binding's code, or one of ours, for each row that was not given up."""
        both = self._plan(rows)
        found: CodeByRow = {}
        for of_lane in self._link.lanes[self.what].run(self._work, both=both):
            found |= of_lane
        return found

    @abstractmethod
    def _plan(self, rows: list[int]) -> bool:
        """Decide on the pieces, or on what to ask for; whether both lanes have something to do."""

    @abstractmethod
    def _binding(self, connection: Connection, piece: Piece) -> tuple[Callable[..., list[int]], Any]:
        """The binding's function that moves a piece, and its last argument."""

    def _find(self, rows: list[int]) -> Found:
        """Ask where these lie; for calls that have rows to ask for."""
        raise NotImplementedError

    def _work(self) -> CodeByRow:
        """One lane: take pieces and move them until there are no more."""
        codes_found: CodeByRow = {}
        is_done = False
        try:
            while (piece := self._take()) is not None:
                codes_found.update(zip(piece.rows, self._move(piece), strict=True))
            is_done = True
        finally:
            if not is_done:
                self._give_up()
        return codes_found

    def _take(self) -> Piece | None:
        """The next piece, asked for if none is ready; None when there are no more or the call is given up."""
        while True:
            with self._changed:
                while self._is_asking and not self._ready and not self.is_given_up:
                    self._changed.wait()
                if self.is_given_up or not (self._ready or self._num_next):
                    return None
                if self._ready:
                    return self._ready.popleft()
                rows, self._unasked = self._unasked[: self._num_next], self._unasked[self._num_next :]
                self._is_asking = True
            found = Found([], 0)
            try:
                found = self._find(rows)
            finally:
                with self._changed:
                    self._is_asking = False
                    self._ready.extend(found.pieces)
                    self._num_next = min(found.num_next, len(self._unasked))
                    self._changed.notify_all()

    def _move(self, piece: Piece) -> list[int]:
        """Give one piece to the binding: one code per row."""
        if piece.refusal:
            return [piece.refusal] * len(piece.rows)
        names = [self._keys[row] for row in piece.rows]
        addresses = self._buffers.addresses[piece.rows].tolist()
        sizes = [self._sizes] * len(names)
        answers: Sequence[int] = [codes.NOT_OPEN] * len(names)
        with contextlib.nullcontext() if piece.is_home else self._away:
            if self.is_given_up:
                return [codes.GIVEN_UP] * len(names)
            started = time.monotonic()
            with self._link.client.lent() as connection:
                if connection is not None:
                    call, last = self._binding(connection, piece)
                    with self._turn(connection, piece) as is_granted:
                        answers = call(names, addresses, sizes, last) if is_granted else [codes.NO_TURN] * len(names)
            answers = codes.one_per_key(answers, len(names))
            is_slow = time.monotonic() - started > SLOW_S
            # a dead or hanging peer is not paid for piece by piece
            if _HOPELESS.issuperset(answers) or (is_slow and codes.TRANSFER_FAILED in answers):
                self._give_up()
        self._link.learn(self.what, names, answers, piece.peers)
        return answers

    def _turn(self, connection: Connection, piece: Piece) -> contextlib.AbstractContextManager[bool]:
        """What is copied at home fills no queue and waits for nobody; a put that goes away after all adds two calls."""
        if piece.is_home:
            return contextlib.nullcontext(True)
        return connection.gate.passing(len(piece.rows) * len(self._sizes), GATE_TIMEOUT_S)

    def _give_up(self) -> None:
        with self._changed:
            self.is_given_up = True
            self._changed.notify_all()

    def _cut(self, rows: list[int]) -> Iterator[list[int]]:
        """The rows of each piece."""
        return (rows[at : at + self._max_blocks] for at in range(0, len(rows), self._max_blocks))


class Put(Transfer):
    """A put: the master decides where each block goes, so where the last ones went must do."""

    what = "put"

    def __init__(self, link: Link, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None) -> None:
        super().__init__(link, keys, buffers)
        self._groups = groups

    def _plan(self, rows: list[int]) -> bool:
        is_home = self._link.places.stays_home
        self._ready.extend(Piece(part, is_home) for part in self._cut(rows))
        return is_home and len(self._ready) > 1

    def _binding(self, connection: Connection, piece: Piece) -> tuple[Callable[..., list[int]], Any]:
        config = self._link.new_config()
        if self._groups is not None:
            config.group_ids = [self._groups[row] for row in piece.rows]
        if self._link.has_segment:
            config.preferred_segment = connection.name
        return connection.store.batch_put_from_multi_buffers, config


class Get(Transfer):
    """A get: over tcp it asks where its blocks lie, about few at first and then about more at a time."""

    what = "get"

    def _plan(self, rows: list[int]) -> bool:
        if not self._link.is_tcp:
            self._ready.extend(Piece(part) for part in self._cut(rows))
            return False
        self._unasked, self._num_next = rows, min(FIRST_KEYS, len(rows))
        return self._link.has_segment and len(rows) > FIRST_KEYS

    def _binding(self, connection: Connection, piece: Piece) -> tuple[Callable[..., list[int]], Any]:
        return connection.store.batch_get_into_multi_buffers, self._link.one_transfer_per_peer

    def _find(self, rows: list[int]) -> Found:
        found = self._link.places.find([self._keys[row] for row in rows])
        if found is None:
            return Found([Piece(rows, refusal=codes.RPC_TIMEOUT)], 0)
        home: list[int] = []
        away: list[int] = []
        lost: list[int] = []
        for row, peer in zip(rows, found.peers, strict=True):
            (home if peer in found.home else lost if peer in found.lost else away).append(row)
        pieces = [Piece(part, is_home=True) for part in self._cut(home)]
        if away:
            peer_of = dict(zip(rows, found.peers, strict=True))
            for part in self._cut(away):
                pieces.append(Piece(part, peers=frozenset(filter(None, map(peer_of.get, part)))))
        if not lost:
            return Found(pieces, len(rows) * GROWTH)
        # one more question about all the others, not one for every few of them
        return Found([Piece(lost, refusal=codes.SILENT_PEER), *pieces], len(self._keys))
