"""The walks told in ARCHITECTURE.md are the calls made, in that order: traced on the simulated host.

What a walk names in backticks is looked up in the package: ``module.function``, a module, a folder or a class.  Each
must be called while the event is handled, and for the first time after the one named before it.
"""

import ast
import gc
import importlib
import json
import re
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE
from tests.check_examples import changed
from tests.unit.planning.test_sizes import R1
from tests.walks.conftest import chat

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mindie_kvpool_plugin"
HOST = "simulator/host_tree/"
PROMPT = list(range(10, 90))
JOIN_S = 30.0
MOST_FILES_OF_A_PREFILL = 25

ELSEWHERE = {
    "Load or recompute": "tests/unit/core/test_load_gate.py",
    "Start-up": "tests/host/test_activation.py",
    "A worker ends": "tests/unit/pools/mooncake/test_leaving.py",
    "Before a step overwrites": "tests/walks/test_races.py",
    "Why a prompt missed": "tests/walks/test_why.py",
    "Observing": "tests/unit/observability/test_observer.py",
    "The guards": "tests/unit/pools/guards/test_stack.py",
    "An acceptance": "tests/unit/cli/test_acceptance.py",
    "Status": "tests/unit/cli/test_status.py",
    "A master": "tests/unit/cli/test_master.py",
    "A store": "tests/unit/cli/test_store.py",
    "An examination": "tests/unit/doctor/test_examine.py",
    "Fixing a file": "tests/unit/check/test_repair.py",
    "Inside Mooncake's `get` and `put`": "tests/unit/pools/mooncake/test_transfer.py",
}
"""Walks that are held to what they tell by other tests."""


# -- what is told ------------------------------------------------------------------------------------------


def told_walks():
    """Title -> the text of each walk: a paragraph that begins with its title in bold, and the list that follows."""
    section = re.search(r"^## The walks\n(.*?)^## ", (ROOT / "ARCHITECTURE.md").read_text("utf-8"), re.M | re.S)[1]
    walks = re.findall(r"^\*\*(.+?)\.?\*\*(.*?)(?=\n\n|\Z)", section, re.M | re.S)
    assert len(dict(walks)) == len(walks), "two walks have one title"
    return dict(walks)


@cache
def functions():
    """(file, first line) -> dotted name of every function of the package, by its place in its file."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()

        def walk(node, names, file=file):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    inner = (*names, child.name)
                    first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                    if not isinstance(child, ast.ClassDef):
                        found[file, first] = inner
                    walk(child, inner, file)
                else:
                    walk(child, names, file)

        walk(ast.parse(path.read_text("utf-8")), ())
    return found


def places(span):
    """The (file, names) of all functions that a span may stand for; none if it names nothing of the package."""
    owner, _, name = span.rpartition(".")
    if span.endswith("/"):

        def is_meant(file, names):
            return f"/{span}" in f"/{file}"
    elif re.fullmatch(r"[\w/]+\.py|[a-z]\w*(/\w+)*", span):

        def is_meant(file, names):
            return f"/{file}".endswith(f"/{span.removesuffix('.py')}.py")
    elif re.fullmatch(r"[A-Z]\w+", span):

        def is_meant(file, names):
            return span in names and HOST not in file
    elif re.fullmatch(r"\w+", owner):

        def is_meant(file, names):
            return name in names and (owner in names or is_of(owner, file))
    else:
        return set()
    return {(file, names) for (file, _), names in functions().items() if is_meant(file, names)}


def is_of(owner, file):
    """Whether a walk may call this file by that name: ``directory`` is ``core/block_directory.py``."""
    return re.search(rf"(^|[/_]){owner}\.py$", file) is not None


def told(text):
    """What a walk names of the package, in order."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return [span for span in dict.fromkeys(spans) if places(span)]


# -- what is called ----------------------------------------------------------------------------------------


class Trace:
    """The package's functions called on a thread, in order.

    Attributes:
        calls: (file, names) of each call.
    """

    def __init__(self, within=None):
        self.calls = []
        self._within = within
        self._outermost = None

    def __call__(self, frame, event, argument):
        file = self._file(frame)
        if event == "return" and frame is self._outermost:
            self._outermost = None
        if event != "call" or file is None:
            return
        names = functions().get((file, frame.f_code.co_firstlineno), ())
        if self._within is not None and self._outermost is None:
            if names[-1:] != (self._within,) or HOST in file:
                return
            self._outermost = frame
        self.calls.append((file, names))

    @contextmanager
    def here(self):
        """Trace this thread."""
        sys.setprofile(self)
        try:
            yield self
        finally:
            sys.setprofile(None)

    def on(self, worker, call):
        """What ``call`` returns, done while the worker's thread is traced."""
        worker.call(lambda: sys.setprofile(self)).result(JOIN_S)
        try:
            return call()
        finally:
            worker.call(lambda: sys.setprofile(None)).result(JOIN_S)

    @staticmethod
    def _file(frame):
        path = Path(frame.f_code.co_filename)
        return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None


def out_of_order(spans, calls):
    """The spans that were not called, or for the first time before the one told before them; and why."""
    wrong, last = [], -1
    for span in spans:
        meant = places(span)
        at = next((index for index, call in enumerate(calls) if call in meant), None)
        if at is None:
            wrong.append(f"{span} is not called")
        elif at < last:
            wrong.append(f"{span} is called before what is told before it")
        else:
            last = at
    return wrong


# -- the events --------------------------------------------------------------------------------------------


@pytest.fixture
def engine():
    """A host with the pool, which holds what PROMPT's first request left there."""
    config = RunConfig(EngineConfig(hbm_blocks=16), chat(), section={"load": "auto"})
    with opened_pool(config) as pooled, Engine(pooled) as running:
        running.submit(PROMPT, 3, adapter="poet")
        running.run()
        yield running


def prefill(engine):
    """A prompt whose blocks are in the pool and not on the device."""
    engine.drop_hbm()
    engine.submit([9] * 230, 2)
    engine.run()
    engine.drop_hbm()
    again = engine.submit(PROMPT, 3, adapter="poet")
    trace = Trace(within="model_inputs_update")
    trace.on(engine.workers[0], engine.step)
    engine.run()
    assert again.pool_blocks > 0
    return trace.calls


def told_of_others(engine):
    """A prompt on a prefill node whose groups have a server each; the pool holds what the other group left there."""
    config = RunConfig(EngineConfig(dp=2, servers=True, role="prefill"), chat())
    with opened_pool(config) as pooled, Engine(pooled) as servers:
        servers.submit(PROMPT, 1)
        servers.run()
        servers.submit(PROMPT, 1)
        trace = Trace(within="model_inputs_update")
        trace.on(servers.workers[1], servers.step)
        servers.run()
        assert servers.done[1].pool_blocks > 0
    return trace.calls


def decode(engine):
    """A step in which a sequence begins a block."""
    engine.submit([7] * 16, 4)
    engine.step()
    trace = Trace(within="model_inputs_update")
    trace.on(engine.workers[0], engine.step)
    engine.run()
    return trace.calls


def free(engine):
    """A request that ends, whose tokens another one left before."""
    del engine
    config = RunConfig(EngineConfig(hbm_blocks=16), chat(), section={"admission": "second_use"})
    with opened_pool(config) as pooled, Engine(pooled) as other:
        other.submit([8] * 40, 2)
        other.run()
        other.submit([8] * 40, 2)
        trace = Trace(within="sequences_finished")
        trace.on(other.workers[0], other.run)
    return trace.calls


def lookup(engine):
    """The scheduler is built, and asks for a block."""
    mempool = importlib.import_module("mindie_llm.text_generator.mempool")
    with Trace().here() as trace:
        client = mempool.MemPool.create_pool(engine.config.backend, engine.config.pool_file)
        client.batch_exist(["123_0_1_simulated"])
    client.close()
    return trace.calls


def check(engine):
    """The command reads a configuration that names a pool file."""
    path = Path(engine.config.pool_file).with_name("config.json")
    path.write_text(json.dumps(changed({"K.backend": "mooncake", "K.configPath": engine.config.pool_file})))
    with Trace().here() as trace, pytest.raises(SystemExit):
        main(["check", "--no-env", str(path)])
    gc.enable()  # a process of its own does without
    return trace.calls


def plan(engine):
    """The command reads an example, a model's config.json beside it, and the bundled trace."""
    folder = Path(engine.config.pool_file).parent
    (folder / "weights.json").write_text(json.dumps(R1), encoding="utf-8")
    example = ROOT / "conf_examples" / "deepseek_r1_8_cards" / "config.json"
    options = ["--model-config", str(folder / "weights.json"), "--hbm-blocks", "200", "--requests", "20"]
    with Trace().here() as trace, pytest.raises(SystemExit):
        main(["plan", str(example), *options, "--trace", str(BUNDLED_TRACE)])
    gc.enable()
    return trace.calls


def told_to(engine, trace, command, *arguments):
    """Let the host's worker do something beside its batches."""
    worker = engine.workers[0]
    trace.on(worker, lambda: worker.call(lambda: getattr(worker.generator, command)(*arguments)).result(JOIN_S))


def copy(engine):
    """A block is copied for a child of a sequence group."""
    told_to(engine, trace := Trace(), "copy_blocks", np.array([[9, 1]]))
    return trace.calls


def swap(engine):
    """A preempted sequence comes back."""
    told_to(engine, Trace(), "swap", [[[1, 9, 2]]])
    told_to(engine, trace := Trace(), "swap", [[[0, 2, 2]]])
    return trace.calls


def pull(engine):
    """Another node's block arrives, on a thread of its own."""
    generator, trace = engine.workers[0].generator, Trace()
    arrived = importlib.import_module("mindie_llm.utils.status").MindieLlmStatusCode.SUCCESS
    generator.separate_deployment_worker = SimpleNamespace(pull_blocks=lambda **_: arrived)
    ours = SimpleNamespace(all_sequence_ids=np.array([1 << 40]), batch_dp_rank_ids=None, adapter_ids=None)
    ours.batch_block_tables = np.array([[3]], dtype=np.int32)

    def run():
        with trace.here():
            generator.pull_kv(ours, [(1, [0], [3])])

    puller = threading.Thread(target=run)
    puller.start()
    puller.join(JOIN_S)
    return trace.calls


def repair(engine):
    """The device is paused, built anew and started."""
    trace = Trace()
    for command in ("CMD_PAUSE_ENGINE", "CMD_REINIT_NPU", "CMD_START_ENGINE"):
        told_to(engine, trace, "execute_recover_command", command)
    return trace.calls


WRITES = "Writes outside a batch"
WRITERS = {
    copy: ["plugin.blocks_overwritten", "Generator.copy_blocks"],
    swap: ["plugin.blocks_overwritten", "Generator.swap"],
    pull: ["plugin.blocks_pulled", "PDInterface.pull_kv", "plugin.blocks_arrived", "block_share.places"],
}
"""An event of the walk that is told for all three -> what only it passes."""

EVENTS = {
    "Prefill": prefill,
    "Ranks that are told of each other": told_of_others,
    "Going on": decode,
    "Repair": repair,
    "Block free": free,
    "Scheduler lookup": lookup,
    "Check": check,
    "Plan": plan,
}


@pytest.fixture(scope="module", autouse=True)
def imported():
    """What is imported when first needed: registering is no step of a walk."""
    importlib.import_module("mindie_kvpool_plugin.check.rules")
    importlib.import_module("mindie_kvpool_plugin.cli.check")


@pytest.mark.parametrize("title", EVENTS)
def test_a_walk_is_told_as_it_is_gone(engine, title):
    """Every function, file and folder the walk names, in the order told."""
    spans = told(told_walks()[title])
    assert len(spans) > 2
    assert out_of_order(spans, EVENTS[title](engine)) == []


def test_a_worker_is_built_as_it_is_told():
    """The end of the start-up, on the thread that the host's worker has for it; what comes before is the hooks'."""
    spans = told(told_walks()["Start-up"])
    spans = spans[spans.index("worker.build_worker") :]
    assert len(spans) > 5
    trace = Trace(within="build_worker")
    with opened_pool(RunConfig(EngineConfig(), chat())) as pooled:
        threading.setprofile(trace)
        try:
            Engine(pooled).close()
        finally:
            threading.setprofile(None)
    assert out_of_order(spans, trace.calls) == []


@pytest.mark.parametrize("event", WRITERS)
def test_a_write_outside_a_batch_is_told_as_it_is_made(engine, event):
    """One walk for three events: each passes what is told for it and for all."""
    spans = told(told_walks()[WRITES])
    own = WRITERS[event]
    others = {span for spans in WRITERS.values() for span in spans if span not in own}
    assert set(own) < set(spans)
    assert out_of_order([span for span in spans if span not in others], event(engine)) == []


def test_a_prefill_passes_few_files(engine):
    """With a pool hit and an adapter, pool and guards included; one more is a decision, not an accident."""
    passed = Counter(file for file, _ in prefill(engine) if not file.startswith(("simulator/", "observability/")))
    assert len(passed) <= MOST_FILES_OF_A_PREFILL, sorted(passed)


def test_every_walk_is_held_to_what_it_tells():
    """Here or by a test named here."""
    assert set(told_walks()) == {*EVENTS, WRITES, *ELSEWHERE}
    assert [test for test in ELSEWHERE.values() if not (ROOT / test).exists()] == []


def test_every_function_a_walk_names_exists():
    """A name that is gone, or misspelt, would otherwise be passed over."""
    files = {file for file, _ in functions()}
    spans = [span for text in told_walks().values() for span in re.findall(r"`([a-z_]+\.[a-z_]+)`", text)]
    ours = [span for span in spans if any(is_of(span.split(".")[0], file) for file in files)]
    assert len(ours) > 20
    assert [span for span in ours if not span.endswith(".py") and not places(span)] == []


def test_another_order_and_a_call_that_is_not_made_are_seen(engine):
    """The prefill told backwards, and with a step it does not have."""
    spans, calls = told(told_walks()["Prefill"]), prefill(engine)
    assert out_of_order(spans, calls) == []
    assert len(out_of_order(spans[::-1], calls)) == len(spans) - 1
    assert out_of_order([*spans, "spill.freed"], calls) == ["spill.freed is not called"]
