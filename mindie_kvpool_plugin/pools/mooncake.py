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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.config.models import MooncakeOptions
from mindie_kvpool_plugin.config.pool_file import PoolFile, build
from mindie_kvpool_plugin.observability.log import RateLimited
from mindie_kvpool_plugin.pools import mooncake_codes as codes
from mindie_kvpool_plugin.pools import mooncake_start as start
from mindie_kvpool_plugin.pools.base import Answers, PoolBackend, Role
from mindie_kvpool_plugin.pools.mooncake_address import can_connect
from mindie_kvpool_plugin.pools.mooncake_client import Connection, MooncakeClient
from mindie_kvpool_plugin.pools.wedge_watch import UNKNOWN_PEER, WedgeWatch

NO_SPACE_RETRIES = 3  # eviction runs every 10 ms: after a retry or two there is space, or all is leased
NO_SPACE_PAUSE_S = 0.0075  # measured: 6 ms in the median until a full pool took the next block
GATE_TIMEOUT_S = 5.0  # a call of the allowed size takes tens of milliseconds; longer means a stuck transfer
# Mooncake waits for each key of a call in turn, up to 3 s (mooncake_start), if their peer hangs.  A get's first piece
# is this small, so that a peer that hangs is met with few keys; the rest is then given up.
FIRST_KEYS = 4
PIECE_BYTES = 64 << 20  # larger calls gain nothing; this bounds how long a reload waits for a spill's turn at the gate
SLOW_FAILURE_S = 0.5  # a transfer that failed after this was a dead or hanging peer: do not pay for it piece by piece

Rows: TypeAlias = npt.NDArray[np.int64]
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


Transfer: TypeAlias = Callable[[Connection, Piece], list[int]]


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
        self._max_slices = options.max_slices_in_flight
        self.watch = WedgeWatch()
        self._new_replicate_config = replicate_config
        self._has_segment = options.global_segment_size > 0
        self._can_wedge = options.protocol == "tcp"
        self._first_keys = FIRST_KEYS if options.protocol == "tcp" else options.max_slices_in_flight
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
        results = np.full(len(keys), codes.NO_SPACE, dtype=np.int64)
        rows: Rows = np.arange(len(keys))
        for attempt in range(1 + NO_SPACE_RETRIES):
            if attempt:
                time.sleep(NO_SPACE_PAUSE_S)
            self._move("put", rows, keys, buffers, results=results, transfer=partial(self._put_piece, groups))
            rows = np.flatnonzero(results == codes.NO_SPACE)
            if len(rows) == 0:
                break
        self._note("put", results[results != 0].tolist())
        return Answers([code == 0 for code in results.tolist()], codes.trouble(results.tolist()))

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Read into the buffers; True only if the object has exactly the buffers' size."""
        results = np.full(len(keys), codes.NOT_OPEN, dtype=np.int64)
        for rows in _rounds_of_distinct(keys):
            self._move("get", rows, keys, buffers, results=results, transfer=self._get_piece)
        good = results == buffers.block_bytes
        self._note("get", results[~good].tolist())
        return Answers([bool(is_good) for is_good in good], codes.trouble(results.tolist()))

    def register(self, regions: Sequence[Region]) -> None:
        """Register each region once; call before the first put or get, the Ascend transport needs it so."""
        self.client.register(regions)

    def close(self) -> None:
        """Wait for calls in flight, then close the client; this process's segment leaves the pool."""
        self.client.close()

    def _move(
        self,
        what: Literal["put", "get"],
        rows: Rows,
        keys: Sequence[str],
        buffers: Buffers,
        *,
        results: Codes,
        transfer: Transfer,
    ) -> None:
        """Move blocks in pieces that fit the gate, and note each one's code in ``results``."""
        segments = max(1, len(buffers.sizes))
        step = max(1, min(self._max_slices // segments, PIECE_BYTES // max(1, buffers.block_bytes)))
        sizes = buffers.sizes.tolist()
        first = 0
        while first < len(rows):
            part = rows[first : first + (step if first or what == "put" else min(step, self._first_keys))]
            first += len(part)
            piece = Piece(part, [keys[row] for row in part], buffers.addresses[part].tolist(), [sizes] * len(part))
            started = time.monotonic()
            answers = self._ask(len(part), partial(_through_gate, piece, len(part) * segments, transfer))
            results[part] = answers
            if self._can_wedge and (not _SUSPECT.isdisjoint(answers) or self.watch.is_suspicious):
                self._look_for_wedge(what, piece.names, answers)
            is_slow = time.monotonic() - started > SLOW_FAILURE_S
            if _HOPELESS.issuperset(answers) or (is_slow and codes.TRANSFER_FAILED in answers):
                results[rows[first:]] = codes.GIVEN_UP
                return

    def _put_piece(self, groups: Sequence[str] | None, connection: Connection, piece: Piece) -> list[int]:
        config = self._new_replicate_config()
        if groups is not None:
            config.group_ids = [groups[row] for row in piece.rows]
        if self._has_segment:
            config.preferred_segment = connection.name
        answers: list[int] = connection.store.batch_put_from_multi_buffers(
            piece.names, piece.addresses, piece.sizes, config
        )
        return answers

    def _get_piece(self, connection: Connection, piece: Piece) -> list[int]:
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
        peers = self._peers_of(names) if is_placed else [UNKNOWN_PEER] * len(names)
        worked: dict[str, bool] = {}
        for peer, code in zip(peers, answers, strict=True):
            if peer is not None and (code >= 0 or code in _SUSPECT):
                worked[peer] = worked.get(peer, False) or code >= 0
        for peer in self.watch.observe(worked):
            if peer == UNKNOWN_PEER or can_connect(peer):
                self.watch.forget()
                self.client.replace(f"every transfer to {peer or 'the pool'} fails, though it accepts connections")

    def _peers_of(self, names: list[str]) -> list[str | None]:
        """Where each object lies; None if the pool does not say."""
        try:
            found = self.client.lend(lambda connection: connection.store.batch_get_replica_desc(names)) or {}
            return [_endpoint(found.get(name, ())) for name in names]
        except Exception:  # noqa: BLE001 - a diagnosis must not fail the call it explains
            _log.warning("asking Mooncake where objects lie failed", exc_info=True)
            return [None] * len(names)


def _through_gate(piece: Piece, slices: int, transfer: Transfer, connection: Connection) -> list[int]:
    with connection.gate.passing(slices, GATE_TIMEOUT_S) as is_granted:
        return transfer(connection, piece) if is_granted else [codes.NO_TURN] * len(piece.names)


def _endpoint(replicas: Sequence[Any]) -> str | None:
    for replica in replicas:
        if replica.is_memory_replica():
            return str(replica.get_memory_descriptor().buffer_descriptor.transport_endpoint)
    return None


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
