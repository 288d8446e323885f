"""The scheduler gets one plain bool per key, and never an exception."""

import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mindie_kvpool_plugin.host import scheduler_lookup
from mindie_kvpool_plugin.host.recent_answers import RecentAnswers
from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup, block_names_twin
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool
from mindie_kvpool_plugin.pools.local_dram import LocalDram


class AskedPool:
    """Holds some aliases and remembers how it was asked."""

    answer_proof_s = 0.0

    def __init__(self, present):
        self.present = set(present)
        self.calls = []

    def exists(self, keys):
        self.calls.append(list(keys))
        return [key in self.present for key in keys]


def host_keys(hashes, ranks=2, model="my_model"):
    return [f"{value}_{rank}_{ranks}_{model}" for value in hashes for rank in range(ranks)]


def lookup(present, first_blocks=2):
    pool = AskedPool([f"ns/my_model/{value}" for value in present])
    return pool, SchedulerLookup(pool, "ns", first_blocks)


def test_batch_exist_asks_one_alias_per_block_and_answers_per_key():
    """Two blocks on two ranks: two aliases, four answers."""
    pool, scheduler = lookup([11, 12])
    answers = scheduler.batch_exist(host_keys([11, 12]))
    assert answers == [True] * 4
    assert all(type(answer) is bool for answer in answers)
    assert pool.calls == [["ns/my_model/11", "ns/my_model/12"]]


def test_batch_exist_stops_at_the_first_miss():
    """Block 13 is missing, so 14 counts as missing too, and the rest is not asked."""
    pool, scheduler = lookup([11, 14])
    assert scheduler.batch_exist(host_keys([11, 13, 14, 15, 16], ranks=1)) == [True, False, False, False, False]
    assert len(pool.calls) == 1


def test_batch_exist_asks_the_rest_in_one_call():
    """After a full first part the remaining blocks follow together."""
    pool, scheduler = lookup(range(11, 20))
    assert all(scheduler.batch_exist(host_keys(range(11, 20), ranks=1)))
    assert [len(keys) for keys in pool.calls] == [2, 7]


def test_the_first_call_grows_while_it_hits_and_shrinks_at_a_miss():
    """Phases of hits cost one call, phases of misses small ones."""
    pool, scheduler = lookup(range(11, 20))
    question = host_keys(range(11, 20), ranks=1)
    for _ in range(4):
        assert all(scheduler.batch_exist(question))
    assert [len(keys) for keys in pool.calls] == [2, 7, 4, 5, 8, 1, 9]
    pool.calls.clear()
    scheduler.batch_exist(host_keys(range(50, 59), ranks=1))
    scheduler.batch_exist(host_keys(range(50, 59), ranks=1))
    assert [len(keys) for keys in pool.calls] == [9, 2]


def test_keys_in_another_order_are_answered_one_by_one():
    """Ranks outside, blocks inside: not how the host asks, and still right."""
    _, scheduler = lookup([11, 12])
    keys = [f"{value}_{rank}_2_my_model" for rank in range(2) for value in (11, 12, 13)]
    assert scheduler.batch_exist(keys) == [True, True, False, False, False, False]


def test_a_block_without_hash_is_not_in_the_pool():
    """The host asks for hash 0 when the last block is not full."""
    pool, scheduler = lookup([11, 0])
    assert scheduler.batch_exist(host_keys([11, 0], ranks=1)) == [True, False]
    assert pool.calls == [["ns/my_model/11"]]


@pytest.mark.parametrize("keys", [[], ["nonsense"], ["1_2_3"], ["__"], ["a_b_c_d"]])
def test_keys_of_any_shape_are_answered(keys):
    """What the host might send one day is not a reason to raise."""
    _, scheduler = lookup([])
    assert scheduler.batch_exist(keys) == [False] * len(keys)


def test_a_pool_that_raises_is_answered_with_no():
    """An exception would leave the C++ caller with the GIL held."""

    class Broken:
        answer_proof_s = 0.0

        def exists(self, keys):
            raise RuntimeError("planted")

    scheduler = SchedulerLookup(Broken(), "ns", 2)
    assert scheduler.batch_exist(host_keys([11])) == [False, False]
    assert scheduler.exists("11_0_1_m") is False


def test_exists_answers_one_key():
    """The host's other way of asking."""
    _, scheduler = lookup([11])
    assert scheduler.exists("11_0_1_my_model") is True


class RememberedPool(AskedPool):
    answer_proof_s = 1.0


@pytest.fixture
def remembering():
    pool = RememberedPool([f"ns/my_model/{value}" for value in range(11, 17)])
    now = [100.0]
    return pool, SchedulerLookup(pool, "ns", 2, clock=lambda: now[0]), now


def test_a_waiting_request_is_asked_for_once(remembering):
    """The same question within the age costs no call, hit or miss."""
    pool, scheduler, now = remembering
    question = host_keys([11, 12, 13, 14, 99, 15])
    first = scheduler.batch_exist(question)
    assert first == [True] * 8 + [False] * 4
    calls = len(pool.calls)
    now[0] += 0.04
    assert scheduler.batch_exist(question) == first
    assert len(pool.calls) == calls


def test_a_question_that_ends_like_another_is_another(remembering):
    """The host asks for what is not on the device, which changes while a request waits."""
    pool, scheduler, _ = remembering
    pool.present.discard("ns/my_model/12")
    assert scheduler.batch_exist(host_keys([13, 14], ranks=1)) == [True, True]
    assert scheduler.batch_exist(host_keys([12, 13, 14], ranks=1)) == [False, False, False]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_questions_with_one_last_block_and_one_length_are_two(remembering, order):
    """One begins a block earlier, the other has a block that is not full behind it."""
    pool, scheduler, _ = remembering
    pool.present = {"ns/my_model/13"}
    questions = [(host_keys([12, 13], ranks=1), [False, False]), (host_keys([13, 0], ranks=1), [True, False])]
    for index in order:
        question, answer = questions[index]
        assert scheduler.batch_exist(question) == answer


def test_after_a_miss_only_what_follows_the_hits_is_asked_again(remembering):
    """A waiting request renews no lease of blocks that were found a moment ago."""
    pool, scheduler, now = remembering
    scheduler._first_part = 8
    question = host_keys([11, 12, 98, 99], ranks=1)
    assert scheduler.batch_exist(question) == [True, True, False, False]
    now[0] += 0.06
    pool.present.add("ns/my_model/98")
    assert scheduler.batch_exist(question) == [True, True, True, False]
    assert pool.calls[1:] == [["ns/my_model/98", "ns/my_model/99"]]


def test_an_answer_is_forgotten_when_it_is_too_old(remembering):
    """What left the pool is a miss again after the age, however often it was asked for meanwhile."""
    pool, scheduler, now = remembering
    assert scheduler.exists("11_0_1_my_model")
    pool.present.clear()
    answers = []
    for _ in range(11):
        now[0] += 0.1
        answers.append(scheduler.exists("11_0_1_my_model"))
    assert answers[0] is True
    assert answers[-1] is False
    assert answers == sorted(answers, reverse=True)


def test_an_answer_is_forgotten_after_a_pause(remembering):
    """Nobody asked for a while: nothing old is believed."""
    pool, scheduler, now = remembering
    assert scheduler.exists("11_0_1_my_model")
    pool.present.clear()
    now[0] += 1.01
    assert scheduler.exists("11_0_1_my_model") is False


def test_a_miss_is_believed_for_a_shorter_time_than_a_hit(remembering):
    """A block that arrives is found soon."""
    pool, scheduler, now = remembering
    assert scheduler.exists("99_0_1_my_model") is False
    pool.present.add("ns/my_model/99")
    assert scheduler.exists("99_0_1_my_model") is False
    now[0] += 0.06
    assert scheduler.exists("99_0_1_my_model") is True


def test_recent_answers_are_bounded_in_size():
    """However much is asked within the age."""
    recent = RecentAnswers(1.0, "0_", lambda: 5.0, capacity=10)
    questions = [host_keys([turn + 1, turn + 1000]) for turn in range(50)]
    for question in questions:
        recent.note(question, 0, 4)
        assert len(recent) <= 10
        assert recent.leading(question) == (4, True)
    assert recent.leading(questions[39]) == (0, False)


def test_a_question_is_known_by_its_last_full_block(remembering):
    """The host asks with hash 0 for the block that is not full; two prompts must not be taken for one."""
    pool, scheduler, _ = remembering
    assert scheduler.batch_exist(host_keys([11, 0])) == [True, True, False, False]
    assert scheduler.batch_exist(host_keys([99, 0])) == [False] * 4
    calls = len(pool.calls)
    assert scheduler.batch_exist(host_keys([11, 0])) == [True, True, False, False]
    assert scheduler.batch_exist(host_keys([0, 0])) == [False] * 4
    assert len(pool.calls) == calls


@pytest.mark.skipif(scheduler_lookup.native is None, reason="built without a compiler")
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    keys=st.lists(
        st.one_of(
            st.sampled_from([f"{block}_{rank}_2_m_x" for block in (0, 7, 8, 77) for rank in range(2)]),
            st.text("0_2mx7é", max_size=12),
        ),
        max_size=12,
    ),
    first=st.integers(0, 3),
    limit=st.integers(0, 5),
    width=st.integers(0, 3),
)
def test_block_names_equal_their_twin(keys, first, limit, width):
    """The C extension and Python read the same blocks from any keys."""
    expected = block_names_twin(keys, first, limit, width, "ns/é/", "_2_m_x")
    assert scheduler_lookup.native.block_names(keys, first, limit, width, "ns/é/", "_2_m_x") == expected


def test_hostile_keys_from_several_threads_get_one_bool_each():
    """A hundred thousand keys, bytes that are no text, numbers, nothing: the right length, no exception."""
    pool = GuardedPool(LocalDram(1 << 20), "embedded", BreakerPolicy(lookup_budget_s=30.0), Counters())
    scheduler = SchedulerLookup(pool, "ns", 2)
    questions = [
        [],
        [f"{number}_0_1_m" for number in range(100_000)],
        ["\udcff\udcfe_0_1_m"] * 3,
        [b"\xff\xfe_0_1_m"] * 3,
        [None, 7, ("a",)],
        ["1_0_1_" + "m" * 100_000],
    ]
    wrong = []

    def ask():
        for keys in questions:
            answers = scheduler.batch_exist(keys)
            if answers != [False] * len(keys) or not all(type(answer) is bool for answer in answers):
                wrong.append(keys[:1])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    scheduler.close()
    assert wrong == []
