"""How a call is cut into pieces and moved one after the other, with a binding that watches."""

from types import SimpleNamespace

import numpy as np
import pytest

from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import codes
from mindie_kvpool_plugin.pools.mooncake.client import Connection, MooncakeClient
from mindie_kvpool_plugin.pools.mooncake.gate import SliceGate
from mindie_kvpool_plugin.pools.mooncake.link import Link
from mindie_kvpool_plugin.pools.mooncake.places import Whereabouts
from mindie_kvpool_plugin.pools.mooncake.transfer import (
    ASKED_KEYS,
    FIRST_KEYS,
    HOME_GET_BYTES,
    HOME_PUT_BYTES,
    HOME_PUT_KEYS,
    PIECE_BYTES,
    Get,
    Put,
)
from tests.conftest import Memory

SLICES = 128
HOME, PEER = "127.0.0.1:1", "127.0.0.1:2"
SIZE = Memory(1).buffers.block_bytes


class Store:
    """Does what it is told with each piece, and notes it."""

    def __init__(self, do=None):
        self.do = do or (lambda names: [SIZE] * len(names))
        self.moved = []

    def batch_get_into_multi_buffers(self, names, addresses, sizes, one_transfer):
        answers = self.do(names)
        self.moved.append(names)
        return answers

    def batch_put_from_multi_buffers(self, names, addresses, sizes, config):
        return [code and 0 for code in self.batch_get_into_multi_buffers(names, addresses, sizes, config)]

    def close(self):
        return 0


class Questions:
    """Answers where objects lie: what the test says of each name."""

    def __init__(self, where):
        self.where = where
        self.asked = []
        self.heard_of = set()
        self.forgotten = []
        self.stays_home = False

    def find(self, names):
        self.asked.append(names)
        peers = [self.where(name) for name in names]
        if "no answer" in peers:
            return None
        return Whereabouts(peers, frozenset({HOME}), frozenset({"lost"}))

    def heard(self, peers):
        self.heard_of |= peers

    def forget(self, names, peers):
        assert set(peers) == {"lost"}
        self.forgotten += names


@pytest.fixture
def link_to():
    links = []

    def make(store, where=lambda name: HOME, slices=6, **options):
        client = MooncakeClient(lambda _: Connection(store, "host:1", SliceGate(slices)))
        link = Link(client, MooncakeOptions("h", "m:1", protocol="tcp", max_slices_in_flight=slices), SimpleNamespace)
        link.places = Questions(where)
        links.append(link)
        return link

    yield make
    for link in links:
        link.close()


def _names(count):
    return [str(number) for number in range(count)]


def _get(link, count):
    return Get(link, _names(count), Memory(count).buffers).move(list(range(count)))


def _large(block_bytes):
    """Memory nobody touches, for blocks of any size."""
    return Buffers(np.zeros((512, 1), dtype=np.int64), np.array([block_bytes]))


def test_every_block_moves_once_at_home_and_away(link_to):
    """In pieces of at most as many slices as allowed, none of which is both."""
    store = Store()
    link = link_to(store, where=lambda name: HOME if int(name) % 3 else PEER)
    assert _get(link, 50) == dict.fromkeys(range(50), SIZE)
    assert sorted(int(name) for names in store.moved for name in names) == list(range(50))
    assert max(map(len, store.moved)) == 2, "6 slices of 3 segments"
    assert {len({int(name) % 3 == 0 for name in names}) for names in store.moved} == {1}, "a piece is home or away"
    assert link.places.heard_of == {PEER}


def test_a_question_is_about_many_blocks_and_not_about_all_of_them(link_to):
    """One question costs as much as the next; but its answer is not to be older than a transfer takes."""
    link = link_to(Store())
    _get(link, ASKED_KEYS + 10)
    assert [len(names) for names in link.places.asked] == [ASKED_KEYS, 10]


def test_a_peer_is_met_with_few_blocks_first(link_to):
    """If it hung after it was heard, each of them costs a second or two and the rest is given up."""
    store = Store()
    _get(link_to(store, where=lambda name: HOME if int(name) < 20 else PEER, slices=1536), 200)
    assert list(map(len, store.moved)) == [20, FIRST_KEYS, 180 - FIRST_KEYS]


@pytest.mark.parametrize("block_bytes", [1 << 16, 1 << 20, 9 << 20, 200 << 20])
def test_pieces_are_larger_where_nobody_else_can_be_met(link_to, block_bytes):
    """A get that knows where its blocks lie takes most at a time, then a put that believes to stay at home."""
    buffers = _large(block_bytes)

    def longest(transfer, place, *groups, stays_home=False):
        store = Store(lambda names: [block_bytes] * len(names))
        link = link_to(store, where=lambda name: place, slices=SLICES)
        link.places.stays_home = stays_home
        transfer(link, _names(512), buffers, *groups).move(list(range(512)))
        return max(map(len, store.moved))

    away = min(SLICES, max(1, PIECE_BYTES // block_bytes))
    assert longest(Get, PEER) == longest(Put, PEER, None) == away
    assert longest(Get, HOME) == min(SLICES, max(1, HOME_GET_BYTES // block_bytes))
    at_home = longest(Put, HOME, None, stays_home=True)
    assert at_home == max(away, min(HOME_PUT_KEYS, HOME_PUT_BYTES // block_bytes))


def test_nothing_is_begun_after_a_piece_that_ends_the_call(link_to):
    """The rest has no code."""
    store = Store(lambda names: [codes.RPC_FAILED] * len(names))
    assert _get(link_to(store), 60) == dict.fromkeys(range(2), codes.RPC_FAILED)
    assert len(store.moved) == 1


@pytest.mark.parametrize("answers", [[], [SIZE], [SIZE] * 3])
def test_an_answer_that_is_not_one_per_key_ends_the_call(link_to, answers):
    """Nobody knows which block it is about."""
    assert _get(link_to(Store(lambda names: answers)), 60) == dict.fromkeys(range(2), codes.WRONG_LENGTH)


def test_nothing_is_begun_with_a_client_that_is_being_replaced(link_to):
    """Its pieces would only keep it from being closed."""

    def do(names):
        link.client.replace("the test says so")
        return [SIZE] * len(names)

    link = link_to(Store(do))
    assert _get(link, 60) == dict.fromkeys(range(2), SIZE)


def test_lost_blocks_are_not_moved_and_cost_one_more_question(link_to):
    """All others are asked about at once, not a few at a time; theirs arrive, and the lost may be forgotten."""
    store, count = Store(), 3 * ASKED_KEYS
    link = link_to(store, where=lambda name: "lost" if int(name) % 2 else HOME)
    assert _get(link, count) == {row: codes.SILENT_PEER if row % 2 else SIZE for row in range(count)}
    assert [len(names) for names in link.places.asked] == [ASKED_KEYS, 2 * ASKED_KEYS]
    assert link.places.forgotten == [str(row) for row in range(1, count, 2)]


def test_master_that_does_not_answer_is_asked_once(link_to):
    """Its blocks are answered with a code, the others with none."""
    store = Store()
    link = link_to(store, where=lambda name: "no answer")
    assert _get(link, 2 * ASKED_KEYS) == dict.fromkeys(range(ASKED_KEYS), codes.RPC_TIMEOUT)
    assert (len(link.places.asked), store.moved) == (1, [])


def test_put_asks_nothing(link_to):
    """Wherever puts go."""
    for stays_home in (True, False):
        store = Store()
        link = link_to(store)
        link.places.stays_home = stays_home
        assert Put(link, _names(50), Memory(50).buffers, None).move(list(range(50))) == dict.fromkeys(range(50), 0)
        assert link.places.asked == []
