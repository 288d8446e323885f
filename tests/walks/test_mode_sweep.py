"""A bounded slice of the mode sweep; ``make chaos`` runs 300 seeds."""

import pytest

from chaos.mode_sweep import MODES, WRITING_MODES, combination, configuration, is_right, run_combination

SEEDS = range(20, 20 + 2 * len(MODES))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: combination(seed).name.replace(" ", "-"))
def test_combination_costs_recomputing_and_nothing_else(seed):
    """Blocks come back all the same, and the host wrote blocks outside a batch where the mode says so."""
    outcome = run_combination(combination(seed))
    assert outcome.is_clean, outcome.detail
    assert outcome.events > 0 or outcome.cell.mode not in WRITING_MODES


def test_every_mode_meets_every_fault_in_the_whole_sweep():
    """300 seeds leave no pair of the two out."""
    from chaos.fault_matrix import FAULTS
    from chaos.mode_sweep import SEEDS as ALL

    pairs = {(combination(seed).mode, combination(seed).fault) for seed in range(ALL)}
    assert len(pairs) == len(MODES) * (len(FAULTS) + 1)


def test_a_sweep_in_which_a_mode_did_nothing_is_not_right():
    """No copy, no swap, no repair: then nothing was tried."""
    outcome = run_combination(combination(0))
    assert is_right([outcome])
    assert not is_right([type(outcome)(combination(2), reloaded=1)])
    assert configuration(combination(2)).engine.max_preempt_count > 0
