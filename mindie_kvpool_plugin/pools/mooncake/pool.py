"""The Mooncake Store behind the pool contract.

Each call becomes a transfer in pieces that Mooncake's transport survives (``transfer``), and the binding's
many ways to say "no" become one ``bool`` per key: negative codes, which Python takes for true; sizes;
result lists that are empty; keys of which only the last destination would have been filled.

A put that succeeded is no lease: the master may evict the key at once, and a master that was restarted
has forgotten everything.  So "the pool holds it" is believed for ``put_proof_s`` only, and a get that
misses must undo the belief.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.observability.log import RateLimited
from mindie_kvpool_plugin.options.pool_file import PoolFile
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.base import NOTHING, Answers, Elsewhere, PoolBackend, Role
from mindie_kvpool_plugin.pools.mooncake import codes, leftovers, start
from mindie_kvpool_plugin.pools.mooncake.client import MooncakeClient
from mindie_kvpool_plugin.pools.mooncake.link import Link
from mindie_kvpool_plugin.pools.mooncake.transfer import CodeByRow, Get, Put

NO_SPACE_RETRIES = 3  # eviction runs every 10 ms: after a retry or two there is space, or all is leased
NO_SPACE_PAUSE_S = 0.0075  # measured: 6 ms in the median until a full pool took the next block

_log = RateLimited()


def open_pool(options: MooncakeOptions, pool_file: PoolFile, role: Role) -> MooncakePool:
    """Connect to the configured Mooncake Store.

    Raises:
        ConfigError: an option cannot work.
        PoolError: the library is missing, the master cannot be reached, or the client cannot be set up.
    """
    place = str(pool_file.path)
    start.check_options(options, place, role)
    start.set_environment(options)  # before the import, which reads the log level
    library = start.load_library()
    client = MooncakeClient(
        lambda is_replacement: start.connect(library, options, role, place, is_replacement=is_replacement)
    )
    if role == "scheduler":
        leftovers.watch(options)  # an engine has one, and many workers
    return MooncakePool(client, options, library.ReplicateConfig)


class MooncakePool(PoolBackend):
    """One process's access to the store.

    Attributes:
        link: the client and what is known about its peers.
    """

    # no lease comes with a put; this long, offering the block again costs more than the rare loss
    put_proof_s = 10.0
    # a waiting request is looked up at every step; the lease that came with the first answer lasts 5 s by default
    answer_proof_s = 1.0

    def __init__(self, client: MooncakeClient, options: MooncakeOptions, new_config: Callable[[], Any]) -> None:
        self.link = Link(client, options, new_config)

    @property
    def has_own_part(self) -> bool:
        """Whether it has a segment; told over tcp only, where a get asks where its blocks lie."""
        return self.link.is_tcp and self.link.has_segment and self.link.places.has_home()

    def lie_elsewhere(self, keys: Sequence[str]) -> list[bool]:
        """Ask the master in one call, about 80 us and 2 us per key."""
        are_away = self.link.places.are_away(list(keys))
        return Answers([], trouble=codes.meaning(codes.RPC_TIMEOUT)) if are_away is None else Answers(are_away)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Ask the master in one call; takes a lease on the keys that exist."""
        if not keys:
            return []
        names = list(keys)
        with self.link.client.lent() as connection:
            found = [codes.NOT_OPEN] * len(names) if connection is None else connection.store.batch_is_exist(names)
        answers = codes.one_per_key(found, len(names))
        if answers.count(1) == len(answers):
            return Answers([True] * len(answers))
        if min(answers) < 0:
            _note("exists", [code for code in answers if code < 0])
        failed = [codes.label(code) for code in answers if code < 0]
        return Answers([code == 1 for code in answers], codes.trouble(answers), failed)

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """Write to this process's segment if it has one and there is space, else where the master says."""
        if self.link.is_tcp and not self.link.places.are_safe_for_puts():
            return Answers([False] * len(keys), codes=[codes.label(codes.SILENT_PEER)] * len(keys))
        code_by_row: CodeByRow = {}
        rows = list(range(len(keys)))
        for attempt in range(1 + NO_SPACE_RETRIES):
            if attempt:
                time.sleep(NO_SPACE_PAUSE_S)
            transfer = Put(self.link, keys, buffers, groups)
            found = transfer.move(rows)
            code_by_row |= found
            rows = [row for row, code in found.items() if code == codes.NO_SPACE]
            if not rows or transfer.is_given_up:
                break
        answers = _in_order(code_by_row, len(keys))
        if self.link.is_tcp:
            self.link.places.note_puts([key for key, code in zip(keys, answers, strict=True) if code == 0])
        return _answers("put", answers, 0)

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Read into the buffers; True only if the object has exactly the buffers' size."""
        code_by_row: CodeByRow = {}
        elsewhere = NOTHING
        for rows in _rounds_of_distinct(keys):
            transfer = Get(self.link, keys, buffers)
            code_by_row |= transfer.move(rows)
            elsewhere = elsewhere.plus(transfer.elsewhere)
        answers = _in_order(code_by_row, len(keys))
        return _answers("get", answers, buffers.block_bytes, elsewhere if self.has_own_part else NOTHING)

    def register(self, regions: Sequence[Region]) -> None:
        """Register each region once; call before the first put or get, the Ascend transport needs it so."""
        self.link.client.register(regions)

    def leave(self) -> None:
        """Take this process's segment out of the pool with one question to the master."""
        self.link.client.leave()

    def close(self) -> None:
        """Wait for calls in flight, then close the client; this process's segment leaves the pool."""
        self.link.close()


def _in_order(code_by_row: CodeByRow, count: int) -> list[int]:
    return [code_by_row.get(row, codes.GIVEN_UP) for row in range(count)]


def _answers(what: str, answers: list[int], good: int, elsewhere: Elsewhere = NOTHING) -> Answers:
    """One bool per code; the others are told."""
    if answers.count(good) == len(answers):
        return Answers([True] * len(answers), elsewhere=elsewhere)
    failed = [code for code in answers if code != good]
    _note(what, failed)
    told = [codes.label(code) for code in failed]
    return Answers([code == good for code in answers], codes.trouble(answers), told, elsewhere)


def _note(what: str, failures: list[int]) -> None:
    unusual = [code for code in failures if code not in codes.EVERYDAY]
    if unusual:
        kinds = ", ".join(codes.meaning(code) for code in sorted(set(unusual), reverse=True))
        _log.warning(f"pool {what}: %d keys failed: %s", len(unusual), kinds)


def _rounds_of_distinct(keys: Sequence[str]) -> list[list[int]]:
    """Rows in rounds without a repeated key: of equal keys in one get, Mooncake fills only the last destination."""
    if len(set(keys)) == len(keys):
        return [list(range(len(keys)))]
    rounds: list[list[int]] = []
    times_seen: dict[str, int] = {}
    for row, key in enumerate(keys):
        seen = times_seen.get(key, 0)
        times_seen[key] = seen + 1
        if seen == len(rounds):
            rounds.append([])
        rounds[seen].append(row)
    return rounds
