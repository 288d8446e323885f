"""A real mooncake_master broken under engines in processes of their own; ``make chaos`` runs every scenario."""

import os
from pathlib import Path

import pytest

from chaos import scenarios
from chaos.engine import ChaosConfig
from chaos.scenarios import main, run_scenario
from chaos.stage import ChaosError, EngineProcess, Report


@pytest.mark.parametrize("name", ["peer-killed", "master-restarted-empty", "wrong-port"])
def test_nothing_is_wrong_after(name):
    """The fault happened; no corruption, no wrong answer, no leaked block, no exception."""
    report = run_scenario(name)
    assert report.exception == ""
    assert report.proof
    assert report.is_right
    assert not report.misses


def test_scenario_whose_fault_did_not_happen_is_not_right(monkeypatch):
    """A check that cannot fail checks nothing."""
    monkeypatch.setitem(scenarios.SCENARIOS, "nothing", lambda stage: None)
    monkeypatch.setattr(scenarios, "MooncakeMaster", _NoMaster)
    report = run_scenario("nothing")
    assert report.exception == ""
    assert not report.is_right


def test_engine_that_dies_fails_its_scenario_and_leaves_no_process(monkeypatch, capsys):
    """Said in the summary, exit status 1."""
    engines = []

    def dies(stage):
        engines.append(stage.ready(with_pool=False))
        os.kill(engines[0].pid, 9)
        engines[0].wait_for("done", 10)

    monkeypatch.setitem(scenarios.SCENARIOS, "wrong-port", dies)
    monkeypatch.setattr(scenarios, "MooncakeMaster", _NoMaster)
    assert main(["--only", "wrong-port"]) == 1
    output = capsys.readouterr().out
    assert "NOT RIGHT" in output
    assert f"engine {engines[0].pid} ended" in output
    with pytest.raises(ProcessLookupError):
        os.kill(engines[0].pid, 0)


def test_engine_without_a_pool_is_right_and_told_apart():
    """The baseline runs too, and its throughput can be read off."""
    engine = EngineProcess(ChaosConfig(), Path(os.devnull))
    try:
        engine.wait_for("ready", 60)
        facts = engine.ask(20)
        assert (facts["requests"], facts["reloaded_blocks"]) == (20, 0)
        report = Report("baseline", proof="none needed")
        report.add(facts)
        assert report.is_right
        engine.close()
        with pytest.raises(ChaosError):
            engine.wait_for("never", 1, after=len(engine.facts))
    finally:
        engine.end()


class _NoMaster:
    def __init__(self, *flags):
        self.address, self.metrics_port, self.pid = "127.0.0.1:1", 1, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass
