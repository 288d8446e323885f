"""One put or get on its way through the binding, in pieces.

A **piece** is what one call of the binding moves: some blocks of the call, few enough for the transport
(``gate``) and small enough that others get their turn.  A slice is Mooncake's own unit, one segment of one
block; only the gate counts in it.  Rows are indices into the call's keys, in every piece and result.

A put takes its pieces as they come; a get over tcp asks where its blocks lie first.  Pieces at home, in this
process's own segment, are copied in memory by a thread of Mooncake's: they fill no queue and pass no gate.
Each call costs a quarter of a millisecond that no second call at the same time makes up for, so what a
get finds at home it fetches in larger ones.

Everything here runs on the caller's thread.  What a piece needs is laid out before the first one moves:
after it the processor's caches hold blocks instead of Python.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.pools.base import NOTHING, Elsewhere
from mindie_kvpool_plugin.pools.mooncake import codes
from mindie_kvpool_plugin.pools.mooncake.client import Connection
from mindie_kvpool_plugin.pools.mooncake.gate import SliceGate
from mindie_kvpool_plugin.pools.mooncake.limits import LEASE_S, SLOW_S
from mindie_kvpool_plugin.pools.mooncake.link import Link

GATE_TIMEOUT_S = 5.0  # a call of the allowed size takes tens of milliseconds; longer means a stuck transfer
# Mooncake waits for each key of a call in turn, 1 to 2 s (``start``), if their peer hangs.  A get's first piece
# is this small, so that a peer that hung after it was last heard is met with few keys; the rest is then given up.
FIRST_KEYS = 4
ASKED_KEYS = 256  # of one question: it takes half a millisecond, and what it says gets no older than their transfer
PIECE_BYTES = 32 << 20  # larger calls gain little; this bounds how long a reload waits for a spill's turn at the gate
HOME_GET_BYTES = 128 << 20  # 20 ms of copying in memory, for which a spill may wait
HOME_PUT_BYTES = 64 << 20  # a reload waits for it; and should it go away after all,
HOME_PUT_KEYS = 32  # that many keys meet a peer that hangs, or as many as PIECE_BYTES hold

_HOPELESS = codes.SERVICE_FAILED | {codes.NOT_OPEN}  # not about one key

CodeByRow: TypeAlias = dict[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """What the binding is given in one call.

    Attributes:
        rows: whose blocks.
        names: their keys.
        addresses, sizes: of their segments.
        good: what the binding answers when all of it is moved.
        is_home: they lie in the own segment.
        peers: with whom else they lie, ``host:port``, where that is known.
    """

    rows: list[int]
    names: list[str]
    addresses: list[list[int]]
    sizes: list[list[int]]
    good: list[int]
    is_home: bool = False
    peers: frozenset[str] = frozenset()


class Transfer(ABC):
    """The blocks of one call, moved once.

    Attributes:
        is_given_up: a piece failed in a way that spoke against moving the others.
        elsewhere: what the pieces not at home moved, and took.
    """

    what: ClassVar[Literal["put", "get"]]

    def __init__(self, link: Link, keys: Sequence[str], buffers: Buffers) -> None:
        self.is_given_up = False
        self.elsewhere = NOTHING
        self._link = link
        self._keys = keys
        # a call takes so many slices: one per block instead of one per layer
        self._buffers = buffers.joined()
        self._sizes: list[int] = self._buffers.sizes.tolist()
        self._block_bytes: int = sum(self._sizes)

    @abstractmethod
    def move(self, rows: list[int]) -> CodeByRow:
        """Move these blocks, once; the binding's code, or one of ours, for each row that was not given up."""

    @abstractmethod
    def _good(self) -> int:
        """What the binding says of a block that it moved."""

    def _lasts_s(self) -> float:
        """Seconds for which what a call brought is what was put, though nobody looked again."""
        return math.inf

    @abstractmethod
    def _binding(self, connection: Connection, piece: Piece) -> tuple[Callable[..., list[int]], Any]:
        """The binding's function that moves a piece, and its last argument."""

    def _move_all(self, pieces: list[Piece]) -> CodeByRow:
        """Give pieces to the binding, one after the other, until one ends the call."""
        client, watch = self._link.client, self._link.watch
        moved: list[tuple[Piece, Sequence[int]]] = []
        with client.lent() as connection, self._link.contacts.bounded():
            if connection is None:
                self.is_given_up = True
                return {row: codes.NOT_OPEN for piece in pieces for row in piece.rows}
            calls = [self._call(connection, piece) for piece in pieces]
            for piece, call in zip(pieces, calls, strict=True):
                began = time.monotonic()
                answers = call()
                took_s = time.monotonic() - began
                if took_s > self._lasts_s():
                    answers = [codes.LEASE_OVER] * len(piece.rows)
                if answers != piece.good or piece.peers or watch.is_suspicious:
                    answers = codes.one_per_key(answers, len(piece.rows))
                    self._judge(piece, answers, took_s)
                if not piece.is_home:
                    self.elsewhere = self.elsewhere.plus(Elsewhere(list(answers).count(self._good()), took_s))
                moved.append((piece, answers))
                if self.is_given_up or not client.is_current(connection):
                    self.is_given_up = True
                    break
        return {row: code for piece, answers in moved for row, code in zip(piece.rows, answers, strict=True)}

    def _call(self, connection: Connection, piece: Piece) -> Callable[[], Sequence[int]]:
        """The call that moves a piece."""
        function, last = self._binding(connection, piece)
        move = partial(function, piece.names, piece.addresses, piece.sizes, last)
        # what is copied at home fills no queue and waits for nobody; a put that goes away after all adds one call
        return move if piece.is_home else partial(self._in_turn, connection.gate, len(piece.rows), move)

    def _in_turn(self, gate: SliceGate, num_blocks: int, move: Callable[[], Sequence[int]]) -> Sequence[int]:
        with gate.passing(num_blocks * len(self._sizes), GATE_TIMEOUT_S) as is_granted:
            return move() if is_granted else [codes.NO_TURN] * num_blocks

    def _judge(self, piece: Piece, answers: list[int], seconds: float) -> None:
        """What the codes of a piece say about the call's other pieces, and about peers."""
        is_slow = seconds > SLOW_S
        # a dead or hanging peer is not paid for piece by piece
        self.is_given_up |= _HOPELESS.issuperset(answers) or (is_slow and codes.TRANSFER_FAILED in answers)
        self._link.learn(self.what, piece.names, answers, piece.peers)

    def _cut(self, rows: list[int], home_bytes: int = 0, home_keys: int = ASKED_KEYS) -> list[list[int]]:
        """The rows of each piece; of those at home up to so many bytes and keys, if that is more than elsewhere."""
        block_bytes = max(1, self._block_bytes)
        most = max(PIECE_BYTES // block_bytes, min(home_bytes // block_bytes, home_keys))
        most = max(1, min(most, self._link.max_slices // max(1, len(self._sizes))))
        return [rows[at : at + most] for at in range(0, len(rows), most)]

    def _piece(self, rows: list[int], *, is_home: bool = False, peers: frozenset[str] = frozenset()) -> Piece:
        names, addresses = [self._keys[row] for row in rows], self._buffers.addresses[rows].tolist()
        return Piece(rows, names, addresses, [self._sizes] * len(rows), [self._good()] * len(rows), is_home, peers)


class Put(Transfer):
    """A put: the master decides where each block goes, so where the last ones went must do."""

    what = "put"

    def __init__(self, link: Link, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None) -> None:
        super().__init__(link, keys, buffers)
        self._groups = groups
        self._config: Any = None

    def move(self, rows: list[int]) -> CodeByRow:
        """Move them without a question."""
        is_home = self._link.places.stays_home
        parts = self._cut(rows, HOME_PUT_BYTES, HOME_PUT_KEYS) if is_home else self._cut(rows)
        return self._move_all([self._piece(part, is_home=is_home) for part in parts])

    def _good(self) -> int:
        return 0

    def _binding(self, connection: Connection, piece: Piece) -> tuple[Callable[..., list[int]], Any]:
        config = self._config
        if config is None or self._groups is not None:
            config = self._config = self._link.new_config()
            if self._link.has_segment:
                config.preferred_segment = connection.name
            if self._groups is not None:
                config.group_ids = [self._groups[row] for row in piece.rows]
        return connection.store.batch_put_from_multi_buffers, config


class Get(Transfer):
    """A get: over tcp it asks where its blocks lie."""

    what = "get"

    def move(self, rows: list[int]) -> CodeByRow:
        """Ask where they lie, then move them."""
        if not self._link.is_tcp:
            return self._move_all([self._piece(part) for part in self._cut(rows)])
        found: CodeByRow = {}
        most = ASKED_KEYS
        while rows and not self.is_given_up:
            asked, rows = rows[:most], rows[most:]
            found |= self._find_and_move(asked)
            if codes.SILENT_PEER in found.values():
                most = len(rows)  # one more question about all the others, not one for every few of them
        return found

    def _find_and_move(self, rows: list[int]) -> CodeByRow:
        places = self._link.places.find([self._keys[row] for row in rows])
        if places is None:
            self.is_given_up = True
            return dict.fromkeys(rows, codes.RPC_TIMEOUT)
        home: list[int] = []
        away: list[int] = []
        lost: list[int] = []
        for row, peer in zip(rows, places.peers, strict=True):
            (home if peer in places.home else lost if peer in places.lost else away).append(row)
        if lost:
            self._link.places.forget([self._keys[row] for row in lost], places.lost)
        pieces = [self._piece(part, is_home=True) for part in self._cut(home, HOME_GET_BYTES)]
        if away:
            peer_of = dict(zip(rows, places.peers, strict=True))
            for part in (*self._cut(away[:FIRST_KEYS]), *self._cut(away[FIRST_KEYS:])):
                pieces.append(self._piece(part, peers=frozenset(filter(None, map(peer_of.get, part)))))
        return dict.fromkeys(lost, codes.SILENT_PEER) | self._move_all(pieces)

    def _lasts_s(self) -> float:
        """With one transfer per peer Mooncake does not see that a lease ran out: others may have put there since."""
        return LEASE_S if self._link.one_transfer_per_peer else math.inf

    def _good(self) -> int:
        return self._block_bytes

    def _binding(self, connection: Connection, piece: Piece) -> tuple[Callable[..., list[int]], Any]:
        return connection.store.batch_get_into_multi_buffers, self._link.one_transfer_per_peer
