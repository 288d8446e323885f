"""A reload meets one piece of a burst of spills at most, and spills go on beside reloads without end."""

import threading

import pytest

from mindie_kvpool_plugin.blocks import Region
from mindie_kvpool_plugin.core import right_of_way
from mindie_kvpool_plugin.core.right_of_way import PieceSize, RightOfWay
from mindie_kvpool_plugin.pools.base import PoolWrapper

from .parts import ArrayMemory, Rank, ScriptedPool, prompt

JOIN_S = 60.0
BURST = 4
OLD = prompt(7_000_000, 3)
OLD_BLOCKS = [0, 1, 2]
registered = []  # a transport knows a region for good, so that its memory must not be given away


class Noted(PoolWrapper):
    """Notes in which order calls begin and end; the first put of a burst lasts until a get has begun.

    The get lasts until the spill thread has let it pass, or has not and has begun another piece.
    """

    def __init__(self, inner):
        super().__init__(inner)
        self.calls = []
        self.is_burst = self.has_given_way = False
        self._changed = threading.Condition()

    def gives_way(self):
        with self._changed:
            self.has_given_way = "get" in self.calls and "got" not in self.calls
            self._changed.notify_all()

    def put(self, keys, buffers, groups=None):
        if not self.is_burst or keys[0].startswith("ns/model/"):
            return self.inner.put(keys, buffers, groups)
        self._note("put")
        with self._changed:
            assert self._changed.wait_for(lambda: "get" in self.calls, JOIN_S)
            if self.calls.count("put") > 1:  # it lasts as long as the get: a third one comes after that
                assert self._changed.wait_for(lambda: "got" in self.calls, JOIN_S)
        return self.inner.put(keys, buffers, groups)

    def get(self, keys, buffers):
        self._note("get")
        with self._changed:
            assert self._changed.wait_for(lambda: self.has_given_way or self.calls.count("put") > 1, JOIN_S)
        arrived = self.inner.get(keys, buffers)
        self._note("got")
        return arrived

    def wait_for_put(self):
        with self._changed:
            assert self._changed.wait_for(lambda: "put" in self.calls, JOIN_S)

    def _note(self, what):
        with self._changed:
            self.calls.append(what)
            self._changed.notify_all()


@pytest.fixture(params=["local_dram", "mooncake"])
def pool(request):
    if request.param == "local_dram":
        return Noted(ScriptedPool())
    pytest.importorskip("mooncake.store")
    return Noted(request.getfixturevalue("shared_mooncake"))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Of one block."""
    monkeypatch.setattr(right_of_way, "PIECE_BYTES", 96)


def reload_in_a_burst(pool, monkeypatch):
    """The calls of the pool when a prompt with hits comes while the spills of some requests are queued."""
    give = RightOfWay.give
    monkeypatch.setattr(RightOfWay, "give", lambda self: (pool.gives_way(), give(self)))
    memory = ArrayMemory()
    registered.append(memory)
    pool.register([Region(each.ctypes.data, each.nbytes) for each in memory.segments])
    rank = Rank(pool=pool, memory=memory, queue=100)
    rank.compute(1, OLD, OLD_BLOCKS)
    rank.free(1, OLD, OLD_BLOCKS)
    assert rank.spill.drain(JOIN_S)
    pool.is_burst = True
    for index in range(BURST):
        tokens, blocks = prompt(7_100_000 + 100 * index, 2), [4 + 2 * index, 5 + 2 * index]
        rank.compute(2 + index, tokens, blocks)
        rank.free(2 + index, tokens, blocks)
    pool.wait_for_put()
    rank.directory.forget()
    lengths = rank.reload.load([rank.hit(OLD, [12, 13, 14], computed=0, promised=3)])
    assert lengths.tolist() == [3]
    assert all(rank.is_right(OLD, [12, 13, 14], index) for index in range(3))
    assert rank.spill.drain(JOIN_S)
    rank.spill.close()
    assert pool.calls.count("put") == 2 * BURST
    return pool.calls


def test_a_reload_meets_the_one_piece_that_had_begun(pool, monkeypatch):
    """Eight pieces are queued and one is on its way: the other seven follow the reload."""
    monkeypatch.setattr(right_of_way, "GIVE_WAY_S", JOIN_S)
    assert reload_in_a_burst(pool, monkeypatch) == ["put", "get", "got", *["put"] * (2 * BURST - 1)]


def test_spills_go_on_beside_a_reload_that_lasts(monkeypatch):
    """They have waited long enough: the reload here does not end before another piece has begun."""
    monkeypatch.setattr(right_of_way, "GIVE_WAY_S", 0.001)
    pool = Noted(ScriptedPool())
    monkeypatch.setattr(pool, "gives_way", lambda: None)
    assert reload_in_a_burst(pool, monkeypatch)[:4] == ["put", "get", "put", "got"]


def test_a_piece_is_what_a_slow_pool_moves_in_a_moment(monkeypatch):
    """At 1 GB/s 20 MB, at a hundredth of it an eighth of the largest, at 100 GB/s the largest; the first is small."""
    monkeypatch.setattr(right_of_way, "PIECE_BYTES", 64_000_000)
    size = PieceSize()
    assert size.num_bytes == 8_000_000
    for seconds, expected in ((0.064, 20_000_000), (6.4, 8_000_000), (0.00064, 64_000_000), (0.0, 64_000_000)):
        size.learn(64_000_000, seconds, longest_s=1.0)
        assert size.num_bytes == expected


@pytest.mark.parametrize(("longest_s", "expected"), [(0.5, 500_000), (0.001, 20_000), (10.0, 8_000_000)])
def test_a_piece_of_a_very_slow_pool_takes_no_longer_than_a_step_may_wait_for_it(monkeypatch, longest_s, expected):
    """At 1 MB/s an eighth of the largest takes eight seconds; what takes 20 ms is never too much."""
    monkeypatch.setattr(right_of_way, "PIECE_BYTES", 64_000_000)
    size = PieceSize()
    size.learn(64_000_000, 64.0, longest_s)
    assert size.num_bytes == expected


def test_a_failed_reload_gives_the_way_back(monkeypatch):
    """Whatever a get raises, spills are not held up by it."""
    rank = Rank(queue=100)
    monkeypatch.setattr(rank.pool, "get", lambda keys, buffers: 1 / 0)
    monkeypatch.setattr(right_of_way, "GIVE_WAY_S", JOIN_S)
    with pytest.raises(ZeroDivisionError):
        rank.reload.load([rank.hit(OLD, OLD_BLOCKS, computed=0, promised=3)])
    rank.compute(1, OLD, OLD_BLOCKS)
    rank.free(1, OLD, OLD_BLOCKS)
    assert rank.spill.drain(JOIN_S / 2)
    rank.spill.close()
