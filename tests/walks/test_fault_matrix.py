"""A bounded slice of the fault matrix; ``make chaos`` runs all of it."""

import pytest

from chaos.fault_matrix import FAULTS, Cell, all_cells, main, run_cell, slice_of_cells
from mindie_kvpool_plugin.host.recent_answers import RecentAnswers
from mindie_kvpool_plugin.pools.mooncake.pool import MooncakePool
from mindie_kvpool_plugin.simulator.faults import KINDS, parse_spec

REQUESTS = 60


@pytest.mark.parametrize(
    "cell", slice_of_cells(REQUESTS), ids=lambda cell: cell.name.replace(" ", "-").replace(",", "")
)
def test_fault_costs_recomputing_and_nothing_else(cell):
    """The fault happened, blocks were reloaded all the same, nothing was wrong, the engine lived."""
    outcome = run_cell(cell)
    assert outcome.exception == ""
    assert outcome.wrong == (0, 0, 0, 0)
    assert outcome.faults > 0
    assert outcome.reloaded > 0


def test_matrix_has_every_kind_in_every_mode():
    """All kinds but the one that cannot be survived, in all modes, on both pools."""
    kinds = {kind for spec in FAULTS.values() for kind in parse_spec(spec).rates}
    assert kinds == set(KINDS) - {"undetected_flip"}
    cells = all_cells(1, 1)
    assert len(cells) == len(set(cells)) == 2 * (len(FAULTS) * 8 - 4)


def test_lookups_of_a_broken_mooncake_remember_as_those_of_a_sound_one(monkeypatch):
    """What the scheduler believes without asking again is part of every Mooncake cell."""
    believed = []
    leading = RecentAnswers.leading

    def noted(recent, keys):
        found = leading(recent, keys)
        believed.append(found[0])
        return found

    monkeypatch.setattr(RecentAnswers, "leading", noted)
    monkeypatch.setattr(MooncakePool, "answer_proof_s", 60.0)  # its own second may pass between two steps
    assert run_cell(Cell("lie", False, False, 1, "mooncake", REQUESTS)).is_right
    assert max(believed) > 0


def test_matrix_reports_an_engine_that_stops(monkeypatch):
    """An exception is an outcome that is not right."""
    monkeypatch.setattr("chaos.fault_matrix.HBM_BLOCKS", 2)
    outcome = run_cell(slice_of_cells(3)[0])
    assert "OutOfBlocksError" in outcome.exception
    assert not outcome.is_right


def test_matrix_prints_its_table(capfd):
    """The command, in processes of its own."""
    assert main(["--slice", "--requests", "20", "--jobs", "1"]) in (0, 1)  # 20 requests may miss the rarest fault
    assert "all at once" in capfd.readouterr().out
