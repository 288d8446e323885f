"""How a call is cut into pieces and moved in two lanes, with a binding that watches."""

import threading
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import codes
from mindie_kvpool_plugin.pools.mooncake.client import Connection, MooncakeClient
from mindie_kvpool_plugin.pools.mooncake.gate import SliceGate
from mindie_kvpool_plugin.pools.mooncake.link import Link
from mindie_kvpool_plugin.pools.mooncake.places import Whereabouts
from mindie_kvpool_plugin.pools.mooncake.transfer import FIRST_KEYS, Get, Put
from tests.conftest import Memory

HOME, PEER = "127.0.0.1:1", "127.0.0.1:2"
SIZE = Memory(1).buffers.block_bytes


class Store:
    """Does what it is told with each piece, and notes who was inside."""

    def __init__(self, do=None):
        self.do = do or (lambda names: [SIZE] * len(names))
        self.moved = []
        self.threads = set()

    def batch_get_into_multi_buffers(self, names, addresses, sizes, one_transfer):
        self.threads.add(threading.current_thread().name)
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
        self.stays_home = False
        self.during = lambda: None

    def find(self, names):
        self.asked.append(names)
        self.during()
        peers = [self.where(name) for name in names]
        if "no answer" in peers:
            return None
        return Whereabouts(peers, frozenset({HOME}), frozenset({"lost"}))

    def heard(self, peers):
        self.heard_of |= peers


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


def _meeting(num_threads=2):
    """Every thread meets the others at its first piece."""
    meet, met = threading.Barrier(num_threads), set()

    def do(names):
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            meet.wait(10)
        return [SIZE] * len(names)

    return do


def test_every_block_moves_once_in_two_lanes(link_to):
    """Home and away, in pieces of at most as many slices as allowed; both threads take part."""
    store = Store(_meeting())
    link = link_to(store, where=lambda name: HOME if int(name) % 3 else PEER)
    assert _get(link, 50) == dict.fromkeys(range(50), SIZE)
    assert sorted(int(name) for names in store.moved for name in names) == list(range(50))
    assert max(map(len, store.moved)) == 2, "6 slices of 3 segments"
    assert {len({int(name) % 3 == 0 for name in names}) for names in store.moved} == {1}, "a piece is home or away"
    assert len(store.threads) == 2
    assert link.places.heard_of == {PEER}


def test_questions_begin_small_and_grow(link_to):
    """A peer that just hung is met with few keys."""
    link = link_to(Store())
    _get(link, 100)
    assert [len(names) for names in link.places.asked] == [FIRST_KEYS, 16, 64, 16]


def test_a_piece_moves_while_the_next_ones_are_asked_about(link_to):
    """One lane asks, the other goes on with what is known."""
    moved = threading.Event()

    def do(names):
        if names == ["2", "3"]:
            moved.set()
        return [SIZE] * len(names)

    link = link_to(Store(do))
    link.places.during = lambda: len(link.places.asked) == 1 or moved.wait(10)
    assert _get(link, 8) == dict.fromkeys(range(8), SIZE)
    assert moved.is_set()


def test_pieces_away_never_meet(link_to):
    """Two at once to other processes are slower."""
    inside = threading.Lock()

    def do(names):
        assert inside.acquire(blocking=False), "two at once"
        threading.Event().wait(0.001)  # long enough for the other lane to come
        inside.release()
        return [SIZE] * len(names)

    store = Store(do)
    _get(link_to(store, where=lambda name: PEER), 200)
    assert len(store.threads) == 2


def test_nothing_is_begun_after_a_piece_that_ends_the_call(link_to):
    """What the other lane has in hand is finished, the rest has no code."""
    meet = threading.Barrier(2)

    def do(names):
        meet.wait(10)
        return [codes.RPC_FAILED] * len(names)

    store = Store(do)
    found = _get(link_to(store), 60)
    assert len(store.moved) == 2
    assert len(found) == 4


def test_lost_blocks_are_not_moved_and_cost_one_more_question(link_to):
    """All others are asked about at once, not a few at a time; theirs arrive."""
    store = Store()
    link = link_to(store, where=lambda name: "lost" if int(name) % 2 else HOME)
    found = _get(link, 100)
    assert found == {row: codes.SILENT_PEER if row % 2 else SIZE for row in range(100)}
    assert [len(names) for names in link.places.asked] == [FIRST_KEYS, 96]


def test_master_that_does_not_answer_is_asked_once(link_to):
    """Its blocks are answered with a code, the others with none."""
    store = Store()
    link = link_to(store, where=lambda name: "no answer")
    assert _get(link, 50) == dict.fromkeys(range(FIRST_KEYS), codes.RPC_TIMEOUT)
    assert (len(link.places.asked), store.moved) == (1, [])


def test_question_that_raises_ends_the_call_in_both_lanes(link_to):
    """Nothing hangs, and the exception is the caller's."""
    link = link_to(Store(), where=lambda name: HOME if int(name) < 20 else 1 // 0)
    with pytest.raises(ZeroDivisionError):
        _get(link, 100)


def test_put_goes_in_two_lanes_where_puts_stay_home(link_to):
    """And in one where they do not; without a question either way."""
    for stays_home, num_threads in ((True, 2), (False, 1)):
        store = Store(_meeting(num_threads))
        link = link_to(store)
        link.places.stays_home = stays_home
        put = Put(link, _names(50), Memory(50).buffers, None)
        assert put.move(list(range(50))) == dict.fromkeys(range(50), 0)
        assert (len(store.threads), link.places.asked) == (num_threads, [])
