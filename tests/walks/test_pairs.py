"""A slice of the modes two by two; ``make chaos`` runs all of them."""

import dataclasses

import pytest

from chaos.pairs import (
    ON_THE_HOST,
    PARTS,
    Run,
    complaint,
    is_played,
    name_of,
    run_pair,
    working_pairs,
)
from mindie_kvpool_plugin import support


def each_mode_once():
    """Few pairs, with all modes the simulated host plays."""
    left, chosen = set(PARTS), []
    while left:
        pair = max(filter(is_played, working_pairs()), key=lambda keys: (len(keys & left), name_of(keys)))
        chosen.append(pair)
        left -= pair
    return chosen


@pytest.mark.parametrize("keys", each_mode_once(), ids=name_of)
def test_two_modes_together_cost_recomputing_and_nothing_else(keys):
    """Gets fail on one rank, blocks come back all the same, and both modes did what they are named after."""
    assert complaint(run_pair(Run(keys, is_faulty=True))) == ""


def test_only_modes_that_work_are_put_together():
    """A mode or a pair that is refused or cannot be is nothing to run."""
    working = {mode.key for mode in support.MODES if mode.status == "works"}
    pairs = working_pairs()
    assert len(pairs) == len(set(pairs))
    assert set().union(*pairs) == working
    assert PARTS.keys() <= working
    for row in support.PAIRS:
        assert (row.status == "works") == set(row.together).issubset(pairs)


def test_a_pair_in_which_nothing_happened_is_not_right():
    """No hit, no fault, no swap: then nothing was tried."""
    run = Run(frozenset({"swap", "tp"}), is_faulty=True)
    outcome = run_pair(run)
    assert complaint(outcome) == ""
    idle = dataclasses.replace(outcome.result, swapped_blocks=0)
    told = complaint(dataclasses.replace(outcome, reloaded=0, faults=0, result=idle))
    assert told == "it never hit the pool; no get failed; swap never happened"


def test_every_two_modes_that_work_were_run_together():
    """Here or on the host's own code; the table says of which pairs that is not so."""
    unseen = [keys for keys in working_pairs() if keys not in ON_THE_HOST and not is_played(keys)]
    assert [name_of(keys) for keys in unseen] == []
    never = [keys for pair in support.PAIRS if pair.status == "unproven" for keys in pair.together]
    assert [name_of(keys) for keys in never if is_played(keys) or keys in ON_THE_HOST] == []
