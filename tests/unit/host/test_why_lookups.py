"""What the scheduler was answered is found by the last full block of the question."""

import time

import pytest

from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup
from mindie_kvpool_plugin.host.why_lookups import Lookups
from tests.unit.core.parts import ScriptedPool


class Pool(ScriptedPool):
    is_available = True
    takes_s = 0.0

    def exists(self, keys):
        if self.takes_s:
            time.sleep(self.takes_s)
        return [key.rpartition("/")[2] in {"11", "12"} for key in keys]


def lookup(capacity=8, budget_s=10.0):
    return SchedulerLookup(Pool(), "ns", 32, why=Lookups(capacity, budget_s, "0_"))


def told(lookup):
    return lookup._why.told({})["lookups"]


def test_a_lookup_is_noted_under_its_last_full_block():
    """Two ranks, three full blocks, and one that is not full; two of them are hits."""
    it = lookup()
    keys = [f"{block}_{rank}_2_model" for block in (11, 12, 13, 0) for rank in (0, 1)]
    assert it.batch_exist(keys) == [True] * 4 + [False] * 4
    assert list(told(it)) == ["13"]
    entry = told(it)["13"]
    assert (entry["asked"], entry["found"], entry["outcome"], entry["times"]) == (3, 2, "answered", 1)
    it.batch_exist(keys)
    assert told(it)["13"]["times"] == 2


def test_only_the_latest_lookups_are_kept():
    """And nothing of questions that name no full block, or of other forms."""
    it = lookup(capacity=3)
    for block in range(20, 30):
        it.batch_exist([f"{block}_0_1_model"])
    it.batch_exist(["0_0_1_model"])
    it.batch_exist([])
    assert list(told(it)) == ["27", "28", "29"]
    it.batch_exist(["nonsense"])
    assert told(it)["nonsense"]["found"] == 0


@pytest.mark.parametrize(("trouble", "outcome"), [("slow", "late"), ("left alone", "left_alone"), ("raises", "failed")])
def test_why_an_answer_was_no_is_noted(trouble, outcome):
    """The caller hears no, whatever it was."""
    it = lookup(budget_s=0.02)
    if trouble == "slow":
        it._pool.takes_s = 0.02
    elif trouble == "left alone":
        it._pool.is_available = False
    else:
        it._pool.exists = None
    it.batch_exist(["21_0_1_model"])
    assert told(it)["21"]["outcome"] == outcome


@pytest.mark.parametrize("keys", [[None], [b"11_0_1_model"]])
def test_keys_that_nobody_can_note_are_answered_all_the_same(keys):
    """An exception would leave the scheduler's C++ thread with the interpreter's lock held."""
    assert lookup().batch_exist(keys) == [False]
