"""Ranks arrive at the same lengths, or give pool hits up within a bound."""

import tempfile
import threading
import time

import numpy as np
import pytest

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import agreement
from mindie_kvpool_plugin.host.agreement import Agreement, Alone, Carrying
from mindie_kvpool_plugin.host.meeting_again import MeetingAgain
from tests.conftest import wait_until

JOIN_S = 300.0  # within seconds, as a rule
BUILT = []


@pytest.fixture(autouse=True)
def closed_afterwards():
    yield
    while BUILT:
        BUILT.pop().close()


def meet(size, group, timeout_s=JOIN_S):
    ranks = [None] * size

    def build(rank):
        ranks[rank] = Agreement(rank, size, "auto", group, timeout_s)
        BUILT.append(ranks[rank])

    threads = [threading.Thread(target=build, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    return ranks


def minimum(ranks, lengths):
    results = [None] * len(ranks)

    def run(index):
        results[index] = ranks[index].minimum(np.array(lengths[index], dtype=np.int64)).tolist()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_S)
    return results


def test_minimum_is_the_same_on_all_ranks():
    """Four ranks, each with a block less somewhere."""
    ranks = meet(4, "test minimum")
    assert minimum(ranks, [[5, 3], [4, 9], [5, 9], [7, 8]]) == [[4, 3]] * 4


def test_minimum_gives_up_when_a_rank_is_gone():
    """One of two ranks never comes: the other answers zero within its bound, then without waiting."""
    ranks = meet(2, "test gone", timeout_s=0.2)
    assert ranks[0].minimum(np.array([5], dtype=np.int64)).tolist() == [0]
    assert ranks[0].broken
    assert ranks[0].minimum(np.array([5], dtype=np.int64)).tolist() == [0]


def give_up_each_other(ranks):
    """Each is asked while the other is not."""
    for rank in ranks:
        assert rank.minimum(np.array([5], dtype=np.int64)).tolist() == [0]
    assert all(rank.broken for rank in ranks)


def ask_until(ranks, is_so, what):
    """Ask all of them the same until it is so; all answers, each the same on every rank."""
    heard = []

    def ask():
        first, *others = minimum(ranks, [[4 + rank] for rank in range(len(ranks))])
        assert others == [first] * len(others)
        heard.append(first)
        return is_so()

    wait_until(ask, JOIN_S, what)
    return heard


def test_ranks_of_one_server_meet_again_and_again(monkeypatch, tmp_path):
    """Through a file of its own each time, of which nothing stays; the second time after a pause."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(agreement, "PAUSE_S", 0.5)
    ranks = meet(2, "test again", timeout_s=1.0)
    for _ in range(3):
        give_up_each_other(ranks)
        *off, on = ask_until(ranks, lambda: not ranks[0].broken, "the ranks agree again")
        assert {tuple(one) for one in off} == {(0,)}
        assert on == [4]
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_count_differently_stay_apart(caplog):
    """One was not asked what the others were: nothing says which answer is about which prompt."""
    ranks = meet(2, "test counts", timeout_s=2.0)
    ranks[1]._begin()
    assert minimum(ranks, [[5], [4]]) == [[0], [0]]
    assert [rank.broken for rank in ranks] == [True, True]
    assert "they are at questions 1 to 2); pool hits are off until the service restarts" in caplog.text
    assert minimum(ranks, [[5], [4]]) == [[0], [0]]


def test_a_rank_that_did_not_hear_when_to_begin_is_given_up(monkeypatch):
    """It lost the word on the way: nobody uses a hit at that question, and they meet another time."""
    monkeypatch.setattr(agreement, "PAUSE_S", 0.1)
    ranks = meet(2, "test unheard", timeout_s=1.0)
    smallest, lost = MeetingAgain._smallest, []

    def lose(self, group, value):
        told = smallest(self, group, value)
        if self is ranks[1]._again and value == 1 and not lost:
            lost.append(value)
            raise RuntimeError("planted")
        return told

    monkeypatch.setattr(MeetingAgain, "_smallest", lose)
    give_up_each_other(ranks)
    heard = ask_until(ranks, lambda: ranks[0]._num_failures == 2, "rank 0 waits for rank 1 at its question")
    assert lost == [1]
    assert {tuple(one) for one in heard} == {(0,)}


def test_a_rank_that_ends_is_waited_for_no_longer():
    """Its thread ends when it is closed."""
    before = set(threading.enumerate())
    rank, _ = meet(2, "test closed", timeout_s=0.2)
    assert rank.minimum(np.array([5], dtype=np.int64)).tolist() == [0]
    (waiting,) = set(threading.enumerate()) - before
    rank.close()
    waiting.join(JOIN_S)
    assert not waiting.is_alive()


def test_a_rank_may_be_later_than_the_meeting_was_bounded(monkeypatch):
    """What bounds the meeting does not bound the agreements after it, whichever timeouts this torch goes by."""
    monkeypatch.setattr(agreement, "MEETING_TIMEOUT_S", 5.0)  # with room for a busy machine
    monkeypatch.setattr(agreement, "HELD_UP_TIMEOUT_S", 1.0)
    ranks = meet(2, "test later", timeout_s=JOIN_S)
    first = []
    waiting = threading.Thread(target=lambda: first.append(ranks[0].minimum(np.array([5], dtype=np.int64)).tolist()))
    waiting.start()
    time.sleep(6.0)  # how late it is, not what is waited for
    assert ranks[1].minimum(np.array([4], dtype=np.int64)).tolist() == [4]
    waiting.join(JOIN_S)
    assert first == [[4]]


def test_ranks_that_do_not_meet_end_in_one_clear_error(monkeypatch):
    """The message names the rank, the place and the setting for several nodes."""
    monkeypatch.setattr(agreement, "MEETING_TIMEOUT_S", 0.3)
    with pytest.raises(HostCompatError, match=r"rank 0 of 2 .*kv_pool\.agreement"):
        Agreement(0, 2, "auto", "test alone", 1.0)


def test_a_rebuilt_group_meets_anew():
    """An engine built twice in one process does not find its old meeting place."""
    for _ in range(2):
        assert minimum(meet(2, "test twice"), [[1], [2]]) == [[1], [1]]


def test_a_rank_that_gives_up_waits_for_nobody_and_the_others_hear_it():
    """The other comes when the first would have given it up; both go on agreeing."""
    ranks = meet(2, "test give up", timeout_s=2.0)
    began = time.monotonic()
    assert ranks[0].give_up(2).tolist() == [0, 0]
    assert time.monotonic() - began < 2.0
    time.sleep(3.0)  # how late it is, not what is waited for
    for rank in ranks:
        rank._timeout_s = JOIN_S  # from here on nobody is given up
    assert ranks[1].minimum(np.array([5, 3], dtype=np.int64)).tolist() == [0, 0]
    assert minimum(ranks, [[4], [6]]) == [[4], [4]]
    assert not any(rank.broken for rank in ranks)


def test_figures_travel_with_the_lengths():
    """Of three ranks one has nothing to tell and does not listen; the lengths are as without."""
    heard = [[], []]
    carrying = [
        Carrying(each, 2, tells, heard[rank].append) if tells else Carrying(each, 2)
        for rank, (each, tells) in enumerate(
            zip(
                meet(3, "test carrying"),
                (lambda: np.array([-5, 0]), lambda: np.array([-3, -7]), None),
                strict=True,
            )
        )
    ]
    assert minimum(carrying, [[5, 3], [4, 9], [5, 9]]) == [[4, 3]] * 3
    assert [[each.tolist() for each in one] for one in heard] == [[[-5, -7]]] * 2
    assert not any(each.broken for each in carrying)


def test_who_gives_up_says_nothing_and_hears_nothing():
    """The others hear of each other all the same, as often as the ranks agree."""
    heard = [[], []]
    one, two = (
        Carrying(each, 1, lambda: np.array([-4]), heard[rank].append)
        for rank, each in enumerate(meet(2, "test carrying and giving up"))
    )
    assert two.give_up(2).tolist() == [0, 0]
    assert one.minimum(np.array([5, 6], dtype=np.int64)).tolist() == [0, 0]
    assert [[each.tolist() for each in rank] for rank in heard] == [[[-4]], []]


def test_one_rank_hears_itself_and_ranks_that_cannot_agree_hear_nothing():
    """Zeros are no figures then."""
    heard = []
    alone = Carrying(Alone(), 1, lambda: np.array([-4]), heard.append)
    assert alone.minimum(np.array([5], dtype=np.int64)).tolist() == [5]
    ranks = meet(2, "test carrying and broken", timeout_s=0.2)
    assert Carrying(ranks[0], 1, lambda: np.array([-1]), heard.append).minimum(np.array([5])).tolist() == [0]
    assert [each.tolist() for each in heard] == [[-4]]
