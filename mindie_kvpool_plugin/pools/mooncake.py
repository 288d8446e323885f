"""The Mooncake Store behind the pool contract.

Each call becomes calls of the binding that its transport survives (``slice_gate``), and the binding's
many ways to say "no" become one ``bool`` per key: negative codes, which Python takes for true; sizes;
result lists that are empty; keys of which only the last destination would have been filled.

A put that succeeded is no lease: the master may evict the key at once, and a master that was restarted
has forgotten everything.  So "the pool holds it" is believed for ``put_proof_s`` only, and a get that
misses must undo the belief.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.observability.log import RateLimited
from mindie_kvpool_plugin.options.pool_file import PoolFile, build
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools import mooncake_codes as codes
from mindie_kvpool_plugin.pools import mooncake_start as start
from mindie_kvpool_plugin.pools.base import Answers, PoolBackend, Role
from mindie_kvpool_plugin.pools.lanes import Lanes, Part, Rows
from mindie_kvpool_plugin.pools.mooncake_address import P2P_HANDSHAKE
from mindie_kvpool_plugin.pools.mooncake_client import Connection, MooncakeClient
from mindie_kvpool_plugin.pools.mooncake_peers import Peers
from mindie_kvpool_plugin.pools.mooncake_places import Places
from mindie_kvpool_plugin.pools.wedge_watch import UNKNOWN_PEER, WedgeWatch

NO_SPACE_RETRIES = 3  # eviction runs every 10 ms: after a retry or two there is space, or all is leased
NO_SPACE_PAUSE_S = 0.0075  # measured: 6 ms in the median until a full pool took the next block
GATE_TIMEOUT_S = 5.0  # a call of the allowed size takes tens of milliseconds; longer means a stuck transfer
# Mooncake waits for each key of a call in turn, 1 to 2 s (mooncake_start), if their peer hangs.  A get's first piece
# is this small, so that a peer that hung after it was last heard is met with few keys; the rest is then given up.
FIRST_KEYS = 4
GROWTH = 4
PIECE_BYTES = 32 << 20  # larger calls gain nothing; this bounds how long a reload waits for a spill's turn at the gate
SLOW_FAILURE_S = 0.5  # a transfer that failed after this was a dead or hanging peer: do not pay for it piece by piece

Codes: TypeAlias = npt.NDArray[np.int64]

_SUSPECT = frozenset({codes.TRANSFER_FAILED, codes.NO_TURN})  # what a lost peer looks like
_HOPELESS = codes.SERVICE_FAILED | {codes.NOT_OPEN}  # not about one key
_log = RateLimited()


@dataclass(frozen=True, slots=True)
class Piece:
    """As much of a call as the binding is given at once, in its form.

    Attributes:
        rows: the keys' places in the call.
        names: one per row.
        addresses: per row, one per segment.
        sizes: per row, one per segment.
    """

    rows: Rows
    names: list[str]
    addresses: list[list[int]]
    sizes: list[list[int]]


Transfer: TypeAlias = Callable[[Piece, Connection], list[int]]


def open_pool(pool_file: PoolFile, role: Role) -> MooncakePool:
    """Connect to the configured Mooncake Store.

    Raises:
        ConfigError: an option cannot work.
        PoolError: the library is missing, the master cannot be reached, or the client cannot be set up.
    """
    place = str(pool_file.path)
    options = build(MooncakeOptions, pool_file.backend_keys, place, strict=False)
    start.check_options(options, place, role)
    start.set_environment(options)  # before the import, which reads the log level
    library = start.load_library()
    client = MooncakeClient(
        lambda is_replacement: start.connect(library, options, role, place, is_replacement=is_replacement)
    )
    return MooncakePool(client, options, library.ReplicateConfig)


class MooncakePool(PoolBackend):
    """One process's access to the store.

    Attributes:
        client: the life of the connection.
        watch: which peers this client may have lost.
    """

    # no lease comes with a put; this long, offering the block again costs more than the rare loss
    put_proof_s = 10.0
    # a waiting request is looked up at every step; the lease that came with the first answer lasts 5 s by default
    answer_proof_s = 1.0

    def __init__(self, client: MooncakeClient, options: MooncakeOptions, replicate_config: Callable[[], Any]) -> None:
        self.client = client
        self.watch = WedgeWatch()
        self._max_slices = options.max_slices_in_flight
        self._new_replicate_config = replicate_config
        self._has_segment = options.global_segment_size > 0
        self._is_tcp = options.protocol == "tcp"
        self._places = Places(client, Peers() if options.metadata_server == P2P_HANDSHAKE else None)
        self._lanes = {"put": Lanes("kvpool-put"), "get": Lanes("kvpool-get")}
        # True moves all slices of one peer as one transfer: fewer round trips, which Ascend needs.  The price: one
        # bad slice fails every key of that peer, memcpy is not used for the own segment, and the lease is not
        # checked again afterwards, so the master's default_kv_lease_ttl must exceed the slowest get.
        self._one_transfer_per_peer = options.protocol == "ascend"

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Ask the master in one call; takes a lease on the keys that exist."""
        if not keys:
            return []
        names = list(keys)
        answers = self._ask(len(names), lambda connection: connection.store.batch_is_exist(names))
        if answers.count(1) == len(answers):
            return Answers([True] * len(answers))
        if min(answers) < 0:
            self._note("exists", [code for code in answers if code < 0])
        return Answers([code == 1 for code in answers], codes.trouble(answers))

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """Write to this process's segment if it has one and there is space, else where the master says."""
        if self._is_tcp and not self._places.are_safe_for_puts():
            return Answers([False] * len(keys))
        results = np.empty(len(keys), dtype=np.int64)
        rows: Rows = np.arange(len(keys))
        for attempt in range(1 + NO_SPACE_RETRIES):
            if attempt:
                time.sleep(NO_SPACE_PAUSE_S)
            results[rows] = codes.GIVEN_UP
            is_home = self._places.stays_home
            parts = self._home_parts(rows, buffers) if is_home else self._away_parts(rows, buffers)
            is_done = self._move(
                "put",
                iter(parts),
                keys,
                buffers,
                results,
                partial(self._put_piece, groups),
                both=is_home and len(parts) > 1,
            )
            rows = np.flatnonzero(results == codes.NO_SPACE)
            if len(rows) == 0 or not is_done:
                break
        if self._is_tcp:
            self._places.note_puts([keys[row] for row in np.flatnonzero(results == 0).tolist()])
        found: list[int] = results.tolist()
        if not results.any():
            return Answers([True] * len(found))
        self._note("put", [code for code in found if code != 0])
        return Answers([code == 0 for code in found], codes.trouble(found))

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Read into the buffers; True only if the object has exactly the buffers' size."""
        results = np.full(len(keys), codes.GIVEN_UP, dtype=np.int64)
        for rows in _rounds_of_distinct(keys):
            parts = self._found_parts(rows, keys, buffers, results) if self._is_tcp else self._away_parts(rows, buffers)
            both = self._is_tcp and self._has_segment and len(rows) > FIRST_KEYS
            self._move("get", iter(parts), keys, buffers, results, self._get_piece, both=both)
        good = results == buffers.block_bytes
        if good.all():
            return Answers([True] * len(keys))
        self._note("get", results[~good].tolist())
        return Answers(good.tolist(), codes.trouble(results.tolist()))

    def register(self, regions: Sequence[Region]) -> None:
        """Register each region once; call before the first put or get, the Ascend transport needs it so."""
        self.client.register(regions)

    def close(self) -> None:
        """Wait for calls in flight, then close the client; this process's segment leaves the pool."""
        for lanes in self._lanes.values():
            lanes.close()
        self.client.close()

    def _home_parts(self, rows: Rows, buffers: Buffers) -> list[Part]:
        """Parts that Mooncake copies in memory: two at a time, because a call's questions to the master take as long.

        They pass no gate, since they fill no queue; a put that goes elsewhere after all adds two calls to it.
        """
        return [Part(part, goes_alone=False) for part in self._chunks(rows, buffers)]

    def _away_parts(self, rows: Rows, buffers: Buffers) -> list[Part]:
        """Parts for other processes: one at a time, two are slower (measured: a fifth)."""
        return [Part(part, goes_alone=True) for part in self._chunks(rows, buffers)]

    def _chunks(self, rows: Rows, buffers: Buffers) -> list[Rows]:
        slices = self._max_slices // max(1, len(buffers.sizes))
        step = max(1, min(slices, PIECE_BYTES // max(1, buffers.block_bytes)))
        return [rows[at : at + step] for at in range(0, len(rows), step)]

    def _found_parts(self, rows: Rows, keys: Sequence[str], buffers: Buffers, results: Codes) -> Iterator[Part]:
        """Parts of a get, found out as they are taken: few at first, then more at a time."""
        first, count = 0, FIRST_KEYS
        while first < len(rows):
            some = rows[first : first + count]
            first, count = first + count, count * GROWTH
            found = self._places.sort_out([keys[row] for row in some])
            if found is None:
                results[some] = codes.RPC_TIMEOUT
                return
            at_home, is_lost = np.array(found.at_home), np.array(found.is_lost)
            results[some[is_lost]] = codes.SILENT_PEER
            if is_lost.any():
                count = len(rows)  # one more question about all the others, not one for every few of them
            yield from self._home_parts(some[at_home], buffers)
            for part in self._chunks(some[~at_home & ~is_lost], buffers):
                places = (found.places[at] for at in np.searchsorted(some, part).tolist())
                yield Part(part, goes_alone=True, peers=frozenset(filter(None, places)))

    def _move(
        self,
        what: Literal["put", "get"],
        parts: Iterator[Part],
        keys: Sequence[str],
        buffers: Buffers,
        results: Codes,
        transfer: Transfer,
        *,
        both: bool,
    ) -> bool:
        """Move blocks in pieces that fit the gate, and note each one's code in ``results``; whether all were tried."""
        sizes = buffers.sizes.tolist()

        def move(part: Part) -> bool:
            names = [keys[row] for row in part.rows]
            piece = Piece(part.rows, names, buffers.addresses[part.rows].tolist(), [sizes] * len(names))
            call = partial(_through_gate, transfer, piece) if part.goes_alone else partial(transfer, piece)
            goes_on = self._move_piece(what, piece, results, call)
            if part.peers and (results[part.rows] >= 0).all():
                self._places.heard(part.peers)
            return goes_on

        return self._lanes[what].run(parts, move, both=both)

    def _move_piece(
        self, what: Literal["put", "get"], piece: Piece, results: Codes, call: Callable[[Connection], list[int]]
    ) -> bool:
        """Move one piece; whether the next one is worth trying."""
        started = time.monotonic()
        answers = self._ask(len(piece.rows), call)
        results[piece.rows] = answers
        if self._is_tcp and (not _SUSPECT.isdisjoint(answers) or self.watch.is_suspicious):
            self._look_for_wedge(what, piece.names, answers)
        is_slow = time.monotonic() - started > SLOW_FAILURE_S
        return not (_HOPELESS.issuperset(answers) or (is_slow and codes.TRANSFER_FAILED in answers))

    def _put_piece(self, groups: Sequence[str] | None, piece: Piece, connection: Connection) -> list[int]:
        config = self._new_replicate_config()
        if groups is not None:
            config.group_ids = [groups[row] for row in piece.rows]
        if self._has_segment:
            config.preferred_segment = connection.name
        answers: list[int] = connection.store.batch_put_from_multi_buffers(
            piece.names, piece.addresses, piece.sizes, config
        )
        return answers

    def _get_piece(self, piece: Piece, connection: Connection) -> list[int]:
        answers: list[int] = connection.store.batch_get_into_multi_buffers(
            piece.names, piece.addresses, piece.sizes, self._one_transfer_per_peer
        )
        return answers

    def _ask(self, count: int, call: Callable[[Connection], list[int]]) -> list[int]:
        """The binding's codes, or one of ours for every key if it gave none."""
        try:
            answers = self.client.lend(call)
        except Exception:  # noqa: BLE001 - whatever the binding raises is a failure of the pool
            _log.warning("the Mooncake client raised; the call counts as failed", exc_info=True)
            return [codes.RAISED] * count
        if answers is None:
            return [codes.NOT_OPEN] * count
        return answers if len(answers) == count else [codes.WRONG_LENGTH] * count

    def _note(self, what: str, failures: list[int]) -> None:
        unusual = [code for code in failures if code not in codes.EVERYDAY]
        if unusual:
            kinds = ", ".join(codes.meaning(code) for code in sorted(set(unusual), reverse=True))
            _log.warning(f"pool {what}: %d keys failed: %s", len(unusual), kinds)

    def _look_for_wedge(self, what: str, names: list[str], answers: list[int]) -> None:
        is_placed = what == "get" and codes.NO_TURN not in answers
        peers = self._places.of(names) if is_placed else [UNKNOWN_PEER] * len(names)
        worked: dict[str, bool] = {}
        for peer, code in zip(peers, answers, strict=True):
            if peer is not None and (code >= 0 or code in _SUSPECT):
                worked[peer] = worked.get(peer, False) or code >= 0
        for peer in self.watch.observe(worked):
            if peer == UNKNOWN_PEER or self._places.answers(peer):
                self.watch.forget()
                self.client.replace(f"every transfer to {peer or 'the pool'} fails, though it answers")


def _through_gate(transfer: Transfer, piece: Piece, connection: Connection) -> list[int]:
    slices = sum(len(addresses) for addresses in piece.addresses)
    with connection.gate.passing(slices, GATE_TIMEOUT_S) as is_granted:
        return transfer(piece, connection) if is_granted else [codes.NO_TURN] * len(piece.names)


def _rounds_of_distinct(keys: Sequence[str]) -> list[Rows]:
    """Rows in rounds without a repeated key: of equal keys in one get, Mooncake fills only the last destination."""
    if len(set(keys)) == len(keys):
        return [np.arange(len(keys))]
    rounds: list[list[int]] = []
    times_seen: dict[str, int] = {}
    for row, key in enumerate(keys):
        seen = times_seen.get(key, 0)
        times_seen[key] = seen + 1
        if seen == len(rounds):
            rounds.append([])
        rounds[seen].append(row)
    return [np.array(rows, dtype=np.int64) for rows in rounds]
