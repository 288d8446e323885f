"""Where objects lie, asked before they are moved: at home, with a peer that answers, or with one that does not.

Home is this process's own segment: Mooncake copies memory there, which cannot hang and fills no queue.
The question is one more call to the master, about 80 us and 2 us per key; ``transfer`` asks it before it
moves anything.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from mindie_kvpool_plugin.pools.mooncake.client import MooncakeClient
from mindie_kvpool_plugin.pools.mooncake.limits import SLOW_S
from mindie_kvpool_plugin.pools.mooncake.peers import Peers

LOOK_S = 1.0  # how often puts look where they went
LOOK_AT = 16  # of a put's blocks
LATELY_S = 0.1  # as long as some transfers of blocks that were asked about together
FRESH_S, TRIES = 0.02, 3


class Whereabouts(NamedTuple):
    """Where objects lie.

    Attributes:
        peers: ``host:port`` of each object's memory, None where the pool does not say.
        home: those of them that are this process's own segment.
        lost: those where nobody answers.
    """

    peers: list[str | None]
    home: frozenset[str]
    lost: frozenset[str]


class Places:
    """The places of one client's objects.

    Args:
        client: lends the connection.
        peers: who answers; None where nobody listens at the places (with a metadata service): all are tried then.

    Attributes:
        stays_home: whether puts were last seen to go to the own segment.
    """

    def __init__(self, client: MooncakeClient, peers: Peers | None) -> None:
        self.stays_home = False
        self._client = client
        self._peers = peers
        self._looked_s = 0.0
        self._asked: tuple[float, dict[str, str | None]] = 0.0, {}

    def find(self, names: list[str]) -> Whereabouts | None:
        """Where each object lies and whether it can be read there; None if the master does not answer."""
        began = time.monotonic()
        places, home = self._asked_lately(names) or self.of(names), self._home()
        if time.monotonic() - began > SLOW_S:
            return None
        away = {place for place in places if place is not None} - home
        lost = self._peers.not_answering(away) if away and self._peers is not None else ()
        return Whereabouts(places, home, frozenset(lost))

    def has_home(self) -> bool:
        """Whether objects may lie at home."""
        return bool(self._home())

    def are_away(self, names: list[str]) -> list[bool] | None:
        """Whether each object does not lie at home; None if the master does not answer.

        What it answers is kept for the get that follows.
        """
        began = time.monotonic()
        places, home = self.of(names), self._home()
        now = time.monotonic()
        self._asked = now, dict(zip(names, places, strict=True))
        return None if now - began > SLOW_S else [place not in home for place in places]

    def _asked_lately(self, names: list[str]) -> list[str | None]:
        """Where they lay just now; none at all if one of them was not asked about."""
        asked_s, known = self._asked
        is_known = time.monotonic() - asked_s < LATELY_S and all(map(known.__contains__, names))
        return [known[name] for name in names] if is_known else []

    def heard(self, peers: Iterable[str | None]) -> None:
        """Transfers with these worked."""
        if self._peers is not None:
            self._peers.heard({peer for peer in peers if peer is not None} - self._home())

    def are_safe_for_puts(self) -> bool:
        """Whether no peer is known with which the master may place a block and on which the put would hang."""
        return self._peers is None or not self._peers.any_is_silent()

    def note_puts(self, names: list[str]) -> None:
        """Now and then, look where some of these went.

        What existed counts as stored and may lie with a peer that nothing was sent to: who holds it was not heard.
        """
        now = time.monotonic()
        if not names or now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        places = set(self.of(names[:: 1 + len(names) // LOOK_AT]))
        home = self._home()
        if self._peers is not None:
            self._peers.met({place for place in places if place is not None} - home)
        self.stays_home = places <= home

    def answers(self, peer: str) -> bool:
        """Whether somebody alive is known to be at a place."""
        return self._peers is not None and not self._peers.not_answering([peer])

    def of(self, names: list[str]) -> list[str | None]:
        """``host:port`` of each object's memory; None if the pool does not say."""
        with self._client.lent() as connection:
            found = {} if connection is None else connection.store.batch_get_replica_desc(names)
            return [endpoint(found.get(name, ())) for name in names]

    def forget(self, names: list[str], peers: Iterable[str]) -> None:
        """Take objects out of the pool whose memory was that of a process of this machine, and is gone.

        Until the master misses that process they exist, so that nobody can store them anew: each of them would be
        promised and recomputed again and again.  What has another copy stays.

        A removal that breaks leases frees memory that somebody may be reading, if the object was stored anew meanwhile.
        So that nobody listens there, and that it still lies there, is asked right before, and an answer that is older
        than ``FRESH_S`` is not acted on: storing takes its writer as long, and the master first has to forget the old.

        Args:
            names: of objects that were found there.
            peers: ``host:port`` of those places, known not to answer.
        """
        with self._client.lent() as connection:
            if connection is None or self._peers is None:
                return
            for _ in range(TRIES):
                asked_s = time.monotonic()
                gone = self._peers.dead(peers)
                dead = _only_at(gone, connection.store.batch_get_replica_desc(names)) if gone else []
                if not dead:
                    return
                if time.monotonic() - asked_s < FRESH_S:
                    connection.store.batch_remove(dead, True)  # also those on which a lookup took a lease
                    return

    def _home(self) -> frozenset[str]:
        with self._client.lent() as connection:
            return frozenset() if connection is None else connection.endpoints


def endpoint(replicas: Sequence[Any]) -> str | None:
    """``host:port`` where an object's memory is, of its replica descriptors; None if none is in memory."""
    for replica in replicas:
        if replica.is_memory_replica():
            return str(replica.get_memory_descriptor().buffer_descriptor.transport_endpoint)
    return None


def _only_at(places: set[str], replicas: Mapping[str, Sequence[Any]]) -> list[str]:
    """Names of objects with one copy, which is in memory at one of these places."""
    return [name for name, each in replicas.items() if len(each) == 1 and endpoint(each) in places]
