"""A half of the package that is not there is told, by real processes and their sockets; and nothing else is."""

import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.core.block_keys import BlockKeys
from mindie_kvpool_plugin.core.spill import Replica
from mindie_kvpool_plugin.host import partners, worker
from mindie_kvpool_plugin.host.model_facts import Shard
from mindie_kvpool_plugin.host.scheduler_lookup import build_lookup
from mindie_kvpool_plugin.observability import observer, telling
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.observability.observer import observe
from mindie_kvpool_plugin.options.pool_file import read_pool_file
from mindie_kvpool_plugin.options.records import KvPoolOptions
from tests.conftest import wait_until

OTHER = """
import os, sys, time
from mindie_kvpool_plugin.host import partners
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity
from mindie_kvpool_plugin.observability.observer import observe
from mindie_kvpool_plugin.observability import run_directory
part = observe(Identity(sys.argv[1]), Counters())
own = run_directory.own_path()
while not list(own.glob(f"{os.getpid()}*.sock")):
    time.sleep(0.01)
print("ready", partners.scheduler_is_there(), flush=True)
sys.stdin.read()
part.forget()
"""


@pytest.fixture(autouse=True)
def run_folder(tmp_path, monkeypatch):
    """A run directory of the test's own."""
    folder = tmp_path / "run"
    monkeypatch.setenv("MINDIE_KVPOOL_RUN_DIR", str(folder))
    return folder


@pytest.fixture
def me(run_folder):
    """This process with a role; its socket is there."""
    parts = []

    def show(role):
        parts.append(observe(Identity(role), Counters()))
        wait_until(lambda: list(run_folder.glob(f"{os.getpid()}*.sock")), 60, "our socket")

    yield show
    for part in parts:
        part.forget()


class Other:
    """A process of the package below this one, behind as many shells as a launcher puts there."""

    def __init__(self, role, shells=0):
        command = [sys.executable, "-c", OTHER, role]
        for _ in range(shells):
            command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said = self.process.stdout.readline().split()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.process.communicate(timeout=60)


@pytest.mark.parametrize("shells", [0, 2])
def test_a_worker_below_this_process_is_seen(me, shells):
    """A launcher between them changes nothing."""
    me("scheduler")
    assert partners.worker_is_there() is False
    with Other("worker", shells) as other:
        assert other.said == ["ready", "True"]
        assert partners.worker_is_there() is True
    assert partners.worker_is_there() is False


def test_a_worker_that_was_killed_is_not_there(me):
    """Its socket still lies in the folder."""
    me("scheduler")
    with Other("worker") as other:
        other.process.kill()
        other.process.wait()
        assert partners.worker_is_there() is False


def test_a_worker_of_another_daemon_is_not_ours(me):
    """It has the same user and the same folder, and another parent."""
    with Other("scheduler"):
        me("worker")
        assert partners.scheduler_is_there() is False


def test_both_in_one_process_see_each_other(me):
    """As in the simulator."""
    me("scheduler")
    me("worker")
    assert partners.worker_is_there() is True
    assert partners.scheduler_is_there() is True


def test_nothing_is_said_where_nothing_can_be_seen(run_folder):
    """No socket of our own: the folder could not be made, or somebody else's."""
    run_folder.parent.chmod(0o755)
    run_folder.touch()
    assert partners.worker_is_there() is None


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def said():
    """The log's lines."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def test_a_scheduler_without_workers_says_so_once(me, said):
    """Lookups go on, nothing is found, and nobody below stores anything."""
    me("scheduler")
    counters, clock = Counters(), Clock()
    watch = partners.scheduler_watch(counters, clock)
    counters.answered_none = partners.LEAST_QUESTIONS - 1
    clock.now_s = partners.PATIENCE_S
    assert watch.look() is False
    assert said == []
    counters.answered_none += 1
    assert watch.look() is True
    (line,) = said
    assert f"{partners.LEAST_QUESTIONS} lookups found no block" in line
    assert "mindie-kvpool check" in line
    assert "mindie-kvpool status" in line


def test_a_scheduler_waits_before_it_judges(me, said):
    """Its workers may be seconds behind."""
    me("scheduler")
    counters, clock = Counters(answered_none=1000), Clock()
    watch = partners.scheduler_watch(counters, clock)
    clock.now_s = partners.PATIENCE_S - 1
    assert watch.look() is False
    assert said == []


def test_a_scheduler_with_workers_says_nothing_however_little_repeats(me, said):
    """Traffic alone is no sign."""
    me("scheduler")
    counters, clock = Counters(answered_none=1000), Clock()
    watch = partners.scheduler_watch(counters, clock)
    clock.now_s = partners.PATIENCE_S
    with Other("worker"):
        assert watch.look() is True
    assert said == []


def test_a_scheduler_that_found_a_block_looks_no_further(me, said):
    """Workers of other machines may have stored it."""
    me("scheduler")
    counters, clock = Counters(answered_none=1000, found_keys=1), Clock()
    watch = partners.scheduler_watch(counters, clock)
    clock.now_s = partners.PATIENCE_S
    assert watch.look() is True
    assert said == []


def test_a_worker_without_a_scheduler_says_so_once(me, said):
    """Prompts come, blocks are stored, nobody promises one."""
    me("worker")
    counters, clock = Counters(prompts=partners.LEAST_PROMPTS), Clock()
    watch = partners.worker_watch(counters, clock)
    clock.now_s = partners.PATIENCE_S
    assert watch.look() is False
    assert said == []
    counters.spilled_blocks = 7
    assert watch.look() is True
    (line,) = said
    assert f"{partners.LEAST_PROMPTS} prompts, 7 blocks stored and none ever promised" in line
    assert f"process {os.getppid()}" in line


def test_a_worker_that_was_promised_a_block_says_nothing(me, said):
    """The scheduler may be elsewhere."""
    me("worker")
    counters, clock = Counters(prompts=1000, spilled_blocks=7, promised_blocks=1), Clock()
    watch = partners.worker_watch(counters, clock)
    clock.now_s = partners.PATIENCE_S
    assert watch.look() is True
    assert said == []


@pytest.fixture
def impatient(monkeypatch):
    """A minute in no time."""
    monkeypatch.setattr(partners, "PATIENCE_S", 0.0)
    monkeypatch.setattr(telling, "WATCH_S", 0.02)


def test_lookups_of_a_daemon_alone_end_in_one_line_of_the_log(impatient, said, tmp_path):
    """From the host's own call to the line, through the observer's thread; then nobody looks any more."""
    pool_file = tmp_path / "pool.json"
    pool_file.write_text(json.dumps({"capacity": "1MB", "kv_pool": {"lookup_budget_s": 60}}))
    lookup = build_lookup("local_dram", read_pool_file(str(pool_file)))
    (part,) = observer.observed()
    for number in range(partners.LEAST_QUESTIONS - 1):
        lookup.batch_exist([f"{number + 1}_0_1_model"])
    assert part.watch is not None
    lookup.batch_exist(["1000_0_1_model"])
    wait_until(lambda: part.watch is None, 60, "the end of the watch")
    lookup.close()
    assert [line for line in said if "lookups found no block" in line] != []
    assert len([line for line in said if "lookups found no block" in line]) == 1


@pytest.mark.parametrize(("rank", "watches"), [(0, True), (1, False)])
def test_rank_0_alone_looks_for_a_scheduler(rank, watches):
    """On other nodes it may be another machine's."""
    deployment = SimpleNamespace(
        rank=rank,
        identity=lambda: Identity("worker", rank=rank),
        options=KvPoolOptions(),
        layout=SimpleNamespace(num_blocks=2),
        shard=Shard(0, 1, Replica()),
    )
    part = worker._observed(deployment, Counters(), BlockKeys("default", "model", "f" * 32, "0of1", 128), None)
    assert (part.watch is not None) == watches
    part.forget()
