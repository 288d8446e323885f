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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.config.models import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import codes
from mindie_kvpool_plugin.pools.mooncake.client import Connection, MooncakeClient
from mindie_kvpool_plugin.pools.mooncake.lanes import Lanes
from mindie_kvpool_plugin.pools.mooncake.limits import P2P_HANDSHAKE, SLOW_S
from mindie_kvpool_plugin.pools.mooncake.peers import Peers
from mindie_kvpool_plugin.pools.mooncake.places import Places
from mindie_kvpool_plugin.pools.mooncake.wedge import UNKNOWN_PEER, WedgeWatch

GATE_TIMEOUT_S = 5.0  # a call of the allowed size takes tens of milliseconds; longer means a stuck transfer
# Mooncake waits for each key of a call in turn, 1 to 2 s (``start``), if their peer hangs.  A get's first piece
# is this small, so that a peer that hung after it was last heard is met with few keys; the rest is then given up.
FIRST_KEYS = 4
GROWTH = 4
PIECE_BYTES = 32 << 20  # larger calls gain nothing; this bounds how long a reload waits for a spill's turn at the gate

_SUSPECT = frozenset({codes.TRANSFER_FAILED, codes.NO_TURN})  # what a lost peer looks like
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


class Link:
    """What all transfers of one pool share.

    Attributes:
        client: the life of the connection.
        places: where its objects lie.
        watch: which peers it may have lost.
        lanes: the helper threads of puts and of gets.
        max_slices: in one piece.
        is_tcp: the transport with queues, whose peers may hang or be lost.
        has_segment: this process owns a part of the pool.
        new_config: makes the binding's configuration of a put.
        one_transfer_per_peer: move all slices of one peer as one transfer: fewer round trips, which Ascend needs.
            The price: one bad slice fails every key of that peer, memcpy is not used for the own segment, and the
            lease is not checked again afterwards, so the master's default_kv_lease_ttl must exceed the slowest get.
    """

    def __init__(self, client: MooncakeClient, options: MooncakeOptions, new_config: Callable[[], Any]) -> None:
        self.client = client
        self.places = Places(client, Peers() if options.metadata_server == P2P_HANDSHAKE else None)
        self.watch = WedgeWatch()
        self.lanes = {"put": Lanes("kvpool-put"), "get": Lanes("kvpool-get")}
        self.max_slices = options.max_slices_in_flight
        self.is_tcp = options.protocol == "tcp"
        self.has_segment = options.global_segment_size > 0
        self.new_config = new_config
        self.one_transfer_per_peer = options.protocol == "ascend"

    def learn(self, what: Literal["put", "get"], names: list[str], answers: list[int], peers: frozenset[str]) -> None:
        """What became of a piece says who is well, and in time whether the client has lost a peer for good."""
        if peers and min(answers) >= 0:
            self.places.heard(peers)
        if self.is_tcp and (not _SUSPECT.isdisjoint(answers) or self.watch.is_suspicious):
            self._look_for_wedge(what, names, answers)

    def _look_for_wedge(self, what: str, names: list[str], answers: list[int]) -> None:
        is_placed = what == "get" and codes.NO_TURN not in answers
        peers = self.places.of(names) if is_placed else [UNKNOWN_PEER] * len(names)
        worked: dict[str, bool] = {}
        for peer, code in zip(peers, answers, strict=True):
            if peer is not None and (code >= 0 or code in _SUSPECT):
                worked[peer] = worked.get(peer, False) or code >= 0
        for peer in self.watch.observe(worked):
            if peer == UNKNOWN_PEER or self.places.answers(peer):
                self.watch.forget()
                self.client.replace(f"every transfer to {peer or 'the pool'} fails, though it answers")

    def close(self) -> None:
        """Wait for calls in flight, then close the client."""
        for lanes in self.lanes.values():
            lanes.close()
        self.client.close()


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

    @abstractmethod
    def move(self, rows: list[int]) -> CodeByRow:
        """Move these blocks; the binding's code, or one of ours, for each row that was not given up."""

    @abstractmethod
    def _binding(self, connection: Connection, piece: Piece) -> tuple[Callable[..., list[int]], Any]:
        """The binding's function that moves a piece, and its last argument."""

    def _find(self, rows: list[int]) -> Found:
        """Ask where these lie; for calls that have rows to ask for."""
        raise NotImplementedError

    def _run(self, *, both: bool) -> CodeByRow:
        merged: CodeByRow = {}
        for found in self._link.lanes[self.what].run(self._work, both=both):
            merged |= found
        return merged

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

    def _pieces(self, placed: Sequence[tuple[int, str | None]], *, is_home: bool) -> list[Piece]:
        """Cut rows, each with its peer if that is known, into pieces."""
        parts = [placed[at : at + self._max_blocks] for at in range(0, len(placed), self._max_blocks)]
        return [
            Piece(
                [row for row, _ in part],
                is_home,
                frozenset() if is_home else frozenset(peer for _, peer in part if peer is not None),
            )
            for part in parts
        ]


class Put(Transfer):
    """A put: the master decides where each block goes, so where the last ones went must do."""

    what = "put"

    def __init__(self, link: Link, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None) -> None:
        super().__init__(link, keys, buffers)
        self._groups = groups

    def move(self, rows: list[int]) -> CodeByRow:
        """Write, in two lanes if puts were last seen to go to the own segment."""
        is_home = self._link.places.stays_home
        self._ready.extend(self._pieces([(row, None) for row in rows], is_home=is_home))
        return self._run(both=is_home and len(self._ready) > 1)

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

    def move(self, rows: list[int]) -> CodeByRow:
        """Read, in two lanes if some of it may be at home."""
        link = self._link
        if not link.is_tcp:
            self._ready.extend(self._pieces([(row, None) for row in rows], is_home=False))
            return self._run(both=False)
        self._unasked, self._num_next = rows, min(FIRST_KEYS, len(rows))
        return self._run(both=link.has_segment and len(rows) > FIRST_KEYS)

    def _binding(self, connection: Connection, piece: Piece) -> tuple[Callable[..., list[int]], Any]:
        return connection.store.batch_get_into_multi_buffers, self._link.one_transfer_per_peer

    def _find(self, rows: list[int]) -> Found:
        found = self._link.places.find([self._keys[row] for row in rows])
        if found is None:
            return Found([Piece(rows, refusal=codes.RPC_TIMEOUT)], 0)
        home: list[tuple[int, str | None]] = []
        away: list[tuple[int, str | None]] = []
        lost: list[int] = []
        for row, peer in zip(rows, found.peers, strict=True):
            if peer in found.lost:
                lost.append(row)
            else:
                (home if peer in found.home else away).append((row, peer))
        pieces = [*self._pieces(home, is_home=True), *self._pieces(away, is_home=False)]
        if not lost:
            return Found(pieces, len(rows) * GROWTH)
        # one more question about all the others, not one for every few of them
        return Found([Piece(lost, refusal=codes.SILENT_PEER), *pieces], len(self._keys))
