"""Breaks a real Mooncake under simulated engines: kills, freezes and restarts its processes, and counts what that does.

``python -m chaos.scenarios`` runs every scenario, ``--only NAME`` some.  A scenario is a function that has a
real ``mooncake_master`` and starts engines (``chaos.stage``).  It must show that its fault happened
(``Report.proof``); what must hold is the same for all: no corruption, no wrong answer, no leaked block, no
exception.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from chaos.processes import frozen
from chaos.stage import ANSWER_TIMEOUT_S, JUDGED, START_TIMEOUT_S, EngineProcess, Report, Stage
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from mindie_kvpool_plugin.simulator.ports import named_port

PHASE_S = 4.0
"""How long throughput is measured before a fault and after it."""
RECOVERY_S = 5.0
RECOVERED_SHARE = 0.95
HITS_RETURN_S = 10.0
FLAGS = ("--default_kv_lease_ttl=500ms", "--client_ttl=5")
WIDTH = 140  # of the table in a file


def peer_killed(stage: Stage) -> None:
    """SIGKILL an instance that owns segments while it serves; at once a second one with the same prompts."""
    asker, owner = stage.ready(seed=1), stage.ready(seed=1)
    owner.ask(60)
    owner.tell("serve", seconds=20)
    owner.wait_until(lambda facts: facts.get("requests", 0) > 80, "80 requests", ANSWER_TIMEOUT_S)
    owner.kill()
    killed = time.monotonic()
    failed = asker.ask(40)["failed_get_blocks"]
    if failed:
        stage.report.proof = f"pid {owner.pid} killed, {failed:,} of the next gets failed after a hit"
    asker.tell("serve")
    # the dead instance's keys stand in the way until the master forgets it: a put of them changes nothing
    back = _wait_for_hits(asker, asker.last["reloaded_blocks"])
    facts = asker.stop_serving()
    stage.report.notes.append(
        f"reloads again {back - killed:.1f} s after the kill; slowest step {facts['slowest_step_s']} s"
    )
    stage.report.add(facts)
    asker.close()


def peer_frozen(stage: Stage) -> None:
    """SIGSTOP an instance that owns segments; another asks for its blocks; SIGCONT."""
    asker, owner = stage.ready(seed=2), stage.ready(seed=2)
    owner.ask(60)
    # they have met: what hangs are transfers
    asker.ask(10)
    with frozen(owner.pid):
        facts = asker.ask(40)
    if facts["failed_get_blocks"]:
        stage.report.proof = (
            f"pid {owner.pid} frozen, {facts['failed_get_blocks']:,} gets failed, "
            f"slowest step {facts['slowest_step_s']} s"
        )
    stage.report.add(owner.ask(60))
    stage.report.add(asker.ask(60))
    asker.close()
    owner.close()


def master_frozen(stage: Stage) -> None:
    """SIGSTOP the master for a while under an engine that serves; SIGCONT."""
    engine = stage.ready(seed=3)
    engine.tell("serve")
    engine.wait_until(lambda facts: facts.get("reloaded_blocks", 0) > 500, "500 reloads", ANSWER_TIMEOUT_S)
    with frozen(stage.master.pid):
        _let_pass(PHASE_S)
    at, before = time.monotonic(), engine.last["reloaded_blocks"]
    back = _wait_for_hits(engine, before)
    _let_pass(PHASE_S / 2)
    facts = engine.stop_serving()
    if facts["slowest_step_s"] > 1:
        stage.report.proof = f"pid {stage.master.pid} frozen {PHASE_S:.0f} s, slowest step {facts['slowest_step_s']} s"
    stage.report.notes.append(f"hits again {back - at:.1f} s after SIGCONT")
    stage.report.add(facts)
    engine.close()


def master_killed(stage: Stage) -> None:
    """SIGKILL the master in mid-run, start it again on the same port; throughput all along."""
    report, master = stage.report, stage.master
    plain = stage.ready(seed=4, with_pool=False)
    plain.tell("serve", seconds=PHASE_S)
    plain.wait_for("done")
    baseline = _throughput(plain, plain.facts[1]["at_s"], plain.last["at_s"])
    plain.end()
    engine = stage.ready(seed=4)
    engine.tell("serve")
    engine.wait_until(lambda facts: facts.get("reloaded_blocks", 0) > 2000, "2,000 reloads", ANSWER_TIMEOUT_S)
    began = time.monotonic()
    _let_pass(PHASE_S)
    first_pid = master.pid
    killed = time.monotonic()
    master.kill()
    _let_pass(RECOVERY_S + PHASE_S)
    before = engine.last
    restarted = time.monotonic()
    master.start()
    back = _wait_for_hits(engine, before["reloaded_blocks"])
    _let_pass(PHASE_S)
    ended = time.monotonic()
    facts = engine.stop_serving()
    if master.pid != first_pid:
        report.proof = f"master pid {first_pid} -> {master.pid}, {facts['failed_put_blocks']:,} puts failed"
    healthy, without_master, after = (
        _throughput(engine, *span)
        for span in ((began, killed), (killed + RECOVERY_S, restarted), (max(back, ended - PHASE_S), ended))
    )
    report.notes += [
        f"requests/s: {baseline:.0f} without a pool, {healthy:.0f} with it; master gone: "
        f"{_throughput(engine, killed, killed + RECOVERY_S):.0f} in the first {RECOVERY_S:.0f} s, "
        f"{without_master:.0f} ({without_master / baseline:.0%}) then; master back: {after:.0f}",
        f"slowest step {facts['slowest_step_s']} s; hits again {back - restarted:.1f} s after the restart",
    ]
    if without_master < RECOVERED_SHARE * baseline:
        report.misses.append(
            f"{RECOVERY_S:.0f} s after the kill {without_master / baseline:.0%} of the throughput without a pool, "
            f"wanted {RECOVERED_SHARE:.0%}"
        )
    if back - restarted > HITS_RETURN_S:
        report.misses.append(f"pool hits again after {back - restarted:.1f} s, wanted {HITS_RETURN_S:.0f} s")
    report.add(facts)
    engine.close()


def master_restarted_empty(stage: Stage) -> None:
    """The master is killed and restarted between two rounds: it forgot all keys, and the engine must notice."""
    engine = stage.ready(seed=5)
    first = engine.ask(100)
    pid = stage.master.pid
    stage.master.kill()
    stage.master.start()
    keys = stage.master.metric("master_key_count")
    second = engine.ask(50)
    third = engine.ask(150)
    if stage.master.pid != pid and keys == 0 and first["reloaded_blocks"]:
        stage.report.proof = (
            f"master pid {pid} -> {stage.master.pid} with 0 keys; reloads {first['reloaded_blocks']:,} before, "
            f"{second['reloaded_blocks'] - first['reloaded_blocks']:,} in the next 50 requests, "
            f"{third['reloaded_blocks'] - second['reloaded_blocks']:,} in 150 more"
        )
    if third["reloaded_blocks"] == second["reloaded_blocks"]:
        stage.report.misses.append("no reloads any more after the restart")
    stage.report.add(third)
    engine.close()


def eviction_pressure(stage: Stage) -> None:
    """Far more blocks than the pool holds: the master evicts all the time."""
    engine = stage.ready(seed=6, head_size=128, prefixes=120, step_ms=0.0, token_us=0.0)
    facts = engine.ask(400)
    evicted = stage.master.metric("master_evicted_key_count")
    if evicted:
        stage.report.proof = f"{evicted:,.0f} keys evicted, {facts['failed_get_blocks']:,} gets failed"
    stage.report.add(facts)
    engine.close()


def wrong_port(stage: Stage) -> None:
    """No master at the port, or something else: refused at start with one message that says so."""
    with contextlib.ExitStack() as stack:
        texts = []
        for address in (f"127.0.0.1:{named_port()}", f"127.0.0.1:{stage.master.metrics_port}"):
            engine = stage.engine(address=address)
            stack.callback(engine.end)
            refused = engine.wait_for("refused", START_TIMEOUT_S)
            if "master_server_address" in refused["text"] and address in refused["text"]:
                texts.append(refused["text"])
    if len(texts) == 2:
        stage.report.proof = "refused: " + "; ".join(text.split(": ", 1)[-1][:60] + "..." for text in texts)


SCENARIOS: dict[str, Callable[[Stage], None]] = {
    scenario.__name__.replace("_", "-"): scenario
    for scenario in (
        peer_killed,
        peer_frozen,
        master_frozen,
        master_killed,
        master_restarted_empty,
        eviction_pressure,
        wrong_port,
    )
}


def run_scenario(name: str) -> Report:
    """Set the stage, break it, tear it down."""
    report, began = Report(name), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mindie-kvpool-chaos-") as folder:
        try:
            with MooncakeMaster(*FLAGS) as master:
                stage = Stage(master, report, Path(folder))
                try:
                    SCENARIOS[name](stage)
                finally:
                    stage.end()
        except Exception as error:  # noqa: BLE001 - one scenario must not end the others
            report.exception = f"{type(error).__name__}: {error}"
    report.seconds = time.monotonic() - began
    return report


def _let_pass(seconds: float) -> None:
    """The length of a measurement, not a way to wait for something."""
    time.sleep(seconds)


def _wait_for_hits(engine: EngineProcess, reloaded: int) -> float:
    """When it had reloaded more than ``reloaded`` blocks."""
    facts = engine.wait_until(lambda facts: facts.get("reloaded_blocks", 0) > reloaded, "hits again", ANSWER_TIMEOUT_S)
    at: float = facts["at_s"]
    return at


def _throughput(engine: EngineProcess, begin_s: float, end_s: float) -> float:
    """Requests per second between two moments, from the counts it gave."""
    return (_requests_at(engine, end_s) - _requests_at(engine, begin_s)) / max(end_s - begin_s, 1e-9)


def _requests_at(engine: EngineProcess, at_s: float) -> float:
    known = [facts for facts in engine.facts if "requests" in facts]
    before = [facts for facts in known if facts["at_s"] <= at_s]
    after = [facts for facts in known if facts["at_s"] > at_s]
    if not before or not after:
        return float((before or known)[-1 if before else 0]["requests"])
    first, second = before[-1], after[0]
    share = (at_s - first["at_s"]) / (second["at_s"] - first["at_s"])
    return float(first["requests"] + share * (second["requests"] - first["requests"]))


def _show(reports: list[Report], console: Console) -> None:
    table = Table(title="A real mooncake_master and its clients, broken on purpose", title_justify="left")
    table.add_column("scenario")
    for heading in ("requests", "reloaded", "recomputed", "failed gets", "failed puts", "corrupt", "wrong", "leaked"):
        table.add_column(heading, justify="right")
    table.add_column("s", justify="right")
    names = ("requests", "reloaded_blocks", "recomputed_blocks", "failed_get_blocks", "failed_put_blocks", *JUDGED[:3])
    for report in reports:
        table.add_row(report.name, *(f"{report.totals.get(name, 0):,}" for name in names), f"{report.seconds:.0f}")
    console.print(table)


def _tell(report: Report, console: Console) -> None:
    verdict = "right" if report.is_right else "NOT RIGHT"
    lines = [report.proof or "the fault did not happen", *report.notes, *(f"MISSED: {m}" for m in report.misses)]
    if report.exception:
        lines.append(f"EXCEPTION: {report.exception}")
    head = f"{report.name}: {verdict}, {report.seconds:.0f} s"
    console.print(head, *lines, sep="\n  ", soft_wrap=True, highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; answers its exit status."""
    parser = argparse.ArgumentParser(description="Break a real Mooncake under simulated engines.")
    parser.add_argument("--only", nargs="+", choices=sorted(SCENARIOS), help="these scenarios")
    parser.add_argument("--strict", action="store_true", help="fail also when throughput or hits come back too late")
    options = parser.parse_args(arguments)
    console, reports = Console(), []
    if not console.is_terminal:
        console = Console(width=WIDTH)
    for name in options.only or SCENARIOS:
        reports.append(run_scenario(name))
        _tell(reports[-1], console)
    _show(reports, console)
    is_good = all(report.is_right and not (options.strict and report.misses) for report in reports)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
