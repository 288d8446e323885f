"""What all transfers of one pool share: the client, and what is known about its peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import codes
from mindie_kvpool_plugin.pools.mooncake.client import MooncakeClient
from mindie_kvpool_plugin.pools.mooncake.contacts import FirstContacts
from mindie_kvpool_plugin.pools.mooncake.limits import P2P_HANDSHAKE
from mindie_kvpool_plugin.pools.mooncake.peers import Peers
from mindie_kvpool_plugin.pools.mooncake.places import Places
from mindie_kvpool_plugin.pools.mooncake.wedge import UNKNOWN_PEER, WedgeWatch

_SUSPECT = frozenset({codes.TRANSFER_FAILED, codes.NO_TURN})  # what a lost peer looks like


class Link:
    """One client and what its transfers need to know.

    Attributes:
        client: the life of the connection.
        places: where its objects lie.
        contacts: what calls of the binding are bounded by while they meet a peer for the first time.
        watch: which peers it may have lost.
        max_slices: in one piece.
        is_tcp: the transport with queues, whose peers may hang or be lost.
        has_segment: this process owns a part of the pool.
        new_config: makes the binding's configuration of a put.
        one_transfer_per_peer: move all slices of one peer as one transfer: fewer round trips, which Ascend needs.
            The price: one bad slice fails every key of that peer, memcpy is not used for the own segment, and the
            lease is not checked again afterwards: a call that took longer than leases last by default brought nothing
            (``transfer``), and a shorter default_kv_lease_ttl must exceed the slowest get.
    """

    def __init__(self, client: MooncakeClient, options: MooncakeOptions, new_config: Callable[[], Any]) -> None:
        self.client = client
        self.is_tcp = options.protocol == "tcp"
        peers = Peers() if options.metadata_server == P2P_HANDSHAKE else None
        self.places = Places(client, peers)
        self.contacts = FirstContacts(peers if self.is_tcp else None)
        self.watch = WedgeWatch()
        self.max_slices = options.max_slices_in_flight
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
        self.client.close()
        self.contacts.close()
