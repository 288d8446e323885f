"""The scheduler gets one plain bool per key, and never an exception."""

import pytest

from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup


class AskedPool:
    """Holds some aliases and remembers how it was asked."""

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
        def exists(self, keys):
            raise RuntimeError("planted")

    scheduler = SchedulerLookup(Broken(), "ns", 2)
    assert scheduler.batch_exist(host_keys([11])) == [False, False]
    assert scheduler.exists("11_0_1_m") is False


def test_exists_answers_one_key():
    """The host's other way of asking."""
    _, scheduler = lookup([11])
    assert scheduler.exists("11_0_1_my_model") is True
