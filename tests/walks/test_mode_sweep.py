"""A bounded slice of the mode sweep; ``make chaos`` runs 300 seeds."""

import dataclasses

import pytest

from chaos.cells import Outcome
from chaos.fault_matrix import FAULTS
from chaos.mode_sweep import (
    AMPLE_BLOCKS,
    MODES,
    POOLS,
    SLOW,
    WRITING_MODES,
    combination,
    configuration,
    is_right,
    neighbour,
    overflowed,
    run_combination,
    slow_lookups,
)
from chaos.mode_sweep import SEEDS as ALL

SEEDS = range(20, 20 + 2 * len(MODES))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: combination(seed).name.replace(" ", "-"))
def test_combination_costs_recomputing_and_nothing_else(seed):
    """Blocks come back all the same, and the host wrote blocks outside a batch where the mode says so."""
    outcome = run_combination(combination(seed))
    assert outcome.is_clean, outcome.detail
    assert outcome.events > 0 or outcome.cell.mode not in WRITING_MODES


def test_every_mode_meets_every_fault_and_every_pool_in_the_whole_sweep():
    """300 seeds leave no pair of these out, and no fault meets one kind of pool only."""
    cells = [combination(seed) for seed in range(ALL)]
    assert len({(cell.mode, cell.fault) for cell in cells}) == len(MODES) * (len(FAULTS) + 1)
    assert len({(cell.mode, cell.pool) for cell in cells}) == len(MODES) * len(POOLS)
    assert len({(cell.fault, cell.pool) for cell in cells}) == len(POOLS) * (len(FAULTS) + 1)


def test_three_times_as_many_seeds_leave_no_combination_out():
    """Every mode with every fault on every pool."""
    rows = len(POOLS) * (len(FAULTS) + 1)
    cells = [combination(seed) for seed in range(len(MODES) * rows)]
    assert len({dataclasses.astuple(cell)[1:] for cell in cells}) == len(cells)


def test_a_pool_that_others_use_has_a_neighbour():
    """Gone before the run, or beside it."""
    of_pool = {cell.pool: neighbour(cell) for cell in map(combination, range(len(MODES)))}
    assert of_pool["alone"] is None
    assert of_pool["filled"].ahead is None
    assert of_pool["shared"].ahead is not None


def test_a_sweep_whose_slow_lookups_were_all_made_is_not_right():
    """They happen, and some are left out; else nothing was tried."""
    cell = next(cell for cell in map(combination, range(ALL)) if cell.fault == SLOW and cell.mode == "servers")
    outcome = run_combination(cell)
    slow, refused = slow_lookups([outcome])
    assert slow > 0
    assert is_right([outcome]) == (refused > 0)
    none_left_out = dataclasses.replace(outcome.result, refused_keys=0)
    assert not is_right([dataclasses.replace(outcome, result=none_left_out)])


def test_pools_of_which_none_was_too_small_are_not_right():
    """Every pool would have held all that was stored."""
    small = combination(22)
    assert configuration(small).pool_blocks < AMPLE_BLOCKS
    outcome = run_combination(small)
    assert overflowed([outcome]) == [outcome]
    many = [outcome] * len(MODES)
    assert is_right(many)
    nothing_stored = dataclasses.replace(outcome, result=dataclasses.replace(outcome.result, spilled_blocks=0))
    assert not is_right([nothing_stored] * len(MODES))


def test_a_sweep_in_which_a_mode_did_nothing_is_not_right():
    """No copy, no swap, no repair: then nothing was tried."""
    outcome = run_combination(combination(0))
    assert is_right([outcome])
    assert not is_right([Outcome(combination(2), reloaded=1)])
    assert configuration(combination(2)).engine.max_preempt_count > 0
