"""The fault injector: every kind does what it says, and is counted only when it happened."""

import json
import threading

import pytest

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.host.scheduler_lookup import SchedulerLookup
from mindie_kvpool_plugin.host.slow_lookups import SHARE, SlowLookups
from mindie_kvpool_plugin.options.pool_file import read_pool_file
from mindie_kvpool_plugin.pools import registry
from mindie_kvpool_plugin.pools.base import Answers, Elsewhere
from mindie_kvpool_plugin.pools.local_dram import forget_pool
from mindie_kvpool_plugin.simulator import faults
from mindie_kvpool_plugin.simulator.faults import FAULTY, FaultRecord, FaultyPool, InjectedError, injected, parse_spec
from mindie_kvpool_plugin.simulator.run import RunConfig, run_with_pool
from tests.conftest import Memory
from tests.walks.conftest import EngineConfig, assert_right, chat, counts

BLOCKS = 40
DATA = [f"ns/print/{number}/0of1" for number in range(BLOCKS)]
ALIASES = [f"ns/model/{number}" for number in range(BLOCKS)]
GROUPS = [f"ns/print/{number}" for number in range(BLOCKS)]


@pytest.fixture
def pool_file(tmp_path):
    path = tmp_path / "pool.json"
    path.write_text(json.dumps({"capacity": 1 << 24, "kv_pool": {}}), encoding="utf-8")
    yield read_pool_file(str(path))
    forget_pool(str(path))


class Setup:
    """A faulty pool around a local one that holds BLOCKS blocks and their aliases."""

    def __init__(self, spec, pool_file):
        self.inner = registry.open_pool("local_dram", pool_file, "worker")
        self.record = FaultRecord(parse_spec(spec), "local_dram")
        self.pool = FaultyPool(self.inner, self.record)
        self.stored = Memory(BLOCKS).fill(1)
        self.found = Memory(BLOCKS).fill(2)
        self.before = self.found.bytes.copy()

    def store(self):
        assert self.inner.put(DATA, self.stored.buffers) == [True] * BLOCKS
        assert self.inner.put(ALIASES, self.stored.buffers.head(16)) == [True] * BLOCKS

    def get(self):
        return self.pool.get(DATA, self.found.buffers)


@pytest.mark.parametrize("kind", ["get_fail", "evict", "short", "torn", "flip"])
def test_failed_read_says_no_and_never_leaves_the_right_bytes(kind, pool_file):
    """Untouched, half written or damaged; counted once per block."""
    setup = Setup(f"{kind}=0.5", pool_file)
    setup.store()
    answers = setup.get()
    assert setup.record.happened[kind] == answers.count(False) > 5
    for row, answer in enumerate(answers):
        assert bool((setup.found.bytes[row] == setup.stored.bytes[row]).all()) == answer
        if kind in ("get_fail", "evict") and not answer:
            assert (setup.found.bytes[row] == setup.before[row]).all()


def test_undetected_flip_says_yes_to_one_wrong_bit(pool_file):
    """Only an oracle can tell."""
    setup = Setup("undetected_flip=1", pool_file)
    setup.store()
    assert setup.get() == [True] * BLOCKS
    wrong = setup.found.bytes ^ setup.stored.bytes
    assert [sum(int(byte).bit_count() for byte in row.flat) for row in wrong] == [1] * BLOCKS


@pytest.mark.parametrize(("spec", "told"), [("undetected_flip=1", BLOCKS), ("flip=1", 0)])
def test_where_blocks_came_from_is_told_of_a_broken_get_too(spec, told, pool_file):
    """As far as they arrived; its seconds passed."""
    setup = Setup(spec, pool_file)
    setup.store()
    get = setup.inner.get
    setup.inner.get = lambda *call: Answers(get(*call), elsewhere=Elsewhere(BLOCKS, 0.5))
    assert setup.get().elsewhere == Elsewhere(told, 0.5)


def test_get_that_would_have_missed_is_no_fault(pool_file):
    """Nothing stored, nothing counted."""
    setup = Setup("get_fail=0.5,short=0.5", pool_file)
    assert setup.get() == [False] * BLOCKS
    assert not setup.record.happened


def test_evicted_block_stays_lost_until_it_is_put_again(pool_file):
    """Its alias stays: each further get finds it stale."""
    setup = Setup("evict=0.5", pool_file)
    setup.store()
    lost = {row for row, answer in enumerate(setup.get()) if not answer}
    assert setup.pool.exists(ALIASES) == [True] * BLOCKS
    assert {row for row, answer in enumerate(setup.get()) if not answer} >= lost
    assert setup.record.happened["stale"] == len(lost)
    assert setup.pool.put(DATA, setup.stored.buffers, GROUPS) == [True] * BLOCKS
    assert setup.pool.exists(DATA) == [True] * BLOCKS


def test_stale_put_says_yes_and_stores_nothing(pool_file):
    """The gets that miss are counted; aliases are never lost this way."""
    setup = Setup("stale=0.5", pool_file)
    assert setup.pool.put(DATA, setup.stored.buffers, GROUPS) == [True] * BLOCKS
    assert setup.pool.put(ALIASES, setup.stored.buffers.head(16), GROUPS) == [True] * BLOCKS
    assert setup.pool.exists(ALIASES) == [True] * BLOCKS
    assert setup.get().count(False) == setup.record.happened["stale"] > 5


def test_put_that_is_refused_stores_nothing(pool_file):
    """Half way over a batch."""
    setup = Setup("put_fail=0.5", pool_file)
    answers = setup.pool.put(DATA, setup.stored.buffers, GROUPS)
    assert setup.record.happened["put_fail"] == answers.count(False) > 5
    assert setup.inner.exists(DATA) == answers


def test_lookups_lie_both_ways(pool_file):
    """lie: yes to what is not there; deny: no to what is."""
    lying = Setup("lie=0.5", pool_file)
    assert lying.pool.exists(ALIASES).count(True) == lying.record.happened["lie"] > 5
    denying = Setup("deny=0.5", pool_file)
    denying.store()
    assert denying.pool.exists(ALIASES).count(False) == denying.record.happened["deny"] > 5


def test_crash_loses_data_at_once_and_aliases_later(pool_file):
    """Half of the blocks, and always data and alias of the same ones."""
    setup = Setup("crash=1", pool_file)
    setup.pool.put(DATA, setup.stored.buffers, GROUPS)
    setup.pool.put(ALIASES, setup.stored.buffers.head(16), GROUPS)
    dead = [not answer for answer in setup.get()]
    assert 5 < dead.count(True) < BLOCKS - 5
    assert setup.record.happened["crash"] == 1
    assert setup.pool.exists(ALIASES) == [True] * BLOCKS
    for _ in range(faults.CRASH_ALIAS_CALLS):
        answers = setup.pool.exists(ALIASES)
    assert answers == [not is_dead for is_dead in dead]


def test_exception_comes_after_half_of_the_call(pool_file):
    """The worst moment."""
    setup = Setup("raise=1", pool_file)
    with pytest.raises(InjectedError):
        setup.pool.put(DATA, setup.stored.buffers, GROUPS)
    assert setup.inner.exists(DATA) == [row < BLOCKS // 2 for row in range(BLOCKS)]
    with pytest.raises(InjectedError):
        setup.get()
    with pytest.raises(InjectedError):
        setup.pool.exists(DATA)
    assert setup.record.happened["raise"] == 3


def test_hung_call_fails_as_a_whole_and_short_answers_are_short(pool_file):
    """Both kinds of call faults that answer."""
    hung = Setup("hang_ms=1:1", pool_file)
    hung.store()
    assert hung.get() == [False] * BLOCKS
    assert (hung.found.bytes == hung.before).all()
    short = Setup("wrong_length=1", pool_file)
    short.store()
    assert len(short.get()) == BLOCKS - 1


def test_slow_lookups_delay_no_get_and_no_put(pool_file):
    """Only the scheduler waits, and its answers are right."""
    setup = Setup("slow_lookup_ms=30:1", pool_file)
    slept = setup.record.sleep = Slept()
    assert setup.pool.put(DATA, setup.stored.buffers, GROUPS) == [True] * BLOCKS
    assert setup.get() == [True] * BLOCKS
    assert slept.seconds == []
    assert setup.pool.exists(DATA) == [True] * BLOCKS
    assert slept.seconds == [0.03]
    assert setup.record.happened == {"slow_lookup_ms": 1}


def test_slow_lookups_are_left_out_when_they_have_taken_their_share(pool_file):
    """What is slow is the pool's, not the lookup's: so it is asked again, as often as it may be."""
    setup, budget_s = Setup("slow_lookup_ms=30:1", pool_file), 0.5
    clock = setup.record.sleep = Slept()
    setup.inner.put(ALIASES, setup.stored.buffers.head(16))
    scheduler = SchedulerLookup(setup.pool, "ns", 32, slow=SlowLookups(budget_s, clock.now))
    asked = 400
    for _ in range(asked):
        scheduler.batch_exist(["1_0_1_model"])
        clock.others_s += 0.05
    slow = setup.record.happened["slow_lookup_ms"]
    assert slow * 0.03 <= 2 * budget_s + SHARE * clock.now()
    assert slow == len(clock.seconds)
    assert scheduler.counters.refused_keys == asked - slow > 0


def test_clients_opened_while_a_record_spares_break_nothing(pool_file):
    """What they store is lost with the instance it lies in, like everything else."""
    record = FaultRecord(parse_spec("crash=1,put_fail=1,deny=1"), "local_dram")
    inner, memory = registry.open_pool("local_dram", pool_file, "worker"), Memory(BLOCKS).fill(1)
    with record.sparing():
        sound = FaultyPool(inner, record)
    assert sound.put(DATA, memory.buffers, GROUPS) == [True] * BLOCKS
    assert sound.exists(DATA) == [True] * BLOCKS
    assert not record.happened
    dead = [not answer for answer in FaultyPool(inner, record).get(DATA, memory.buffers)]
    assert 5 < dead.count(True) < BLOCKS - 5
    assert record.happened["crash"] == 1


class Slept:
    """A clock that goes on when somebody sleeps."""

    def __init__(self):
        self.seconds, self.others_s = [], 0.0

    def __call__(self, seconds):
        self.seconds.append(seconds)

    def now(self):
        return self.others_s + sum(self.seconds)


def test_one_rank_only(pool_file):
    """The other ranks and the scheduler see a sound pool."""
    record = FaultRecord(parse_spec("get_fail=1,lie=1,rank=1"), "local_dram")
    inner = registry.open_pool("local_dram", pool_file, "worker")
    stored, found = Memory(BLOCKS).fill(1), Memory(BLOCKS)
    inner.put(DATA, stored.buffers)
    assert FaultyPool(inner, record, 1).get(DATA, found.buffers) == [False] * BLOCKS
    assert FaultyPool(inner, record, 0).get(DATA, found.buffers) == [True] * BLOCKS
    assert FaultyPool(inner, record, -1).exists(ALIASES) == [False] * BLOCKS


def test_faulty_backend_exists_only_inside_the_block(pool_file):
    """Nothing of it can be reached from a configuration."""
    assert FAULTY not in registry.BACKENDS
    with injected(parse_spec(""), "local_dram", str(pool_file.path)):
        assert isinstance(registry.open_pool(FAULTY, pool_file, "worker"), FaultyPool)
    with pytest.raises(ConfigError, match="use one of: memcache, mooncake"):
        registry.open_pool(FAULTY, pool_file, "worker")


def test_rank_is_told_by_the_inference_thread():
    """As the engine names them."""
    assert [faults.rank_of(name) for name in ("inference", "inference-0", "inference-3", "MainThread")] == [0, 0, 3, 0]
    assert threading.current_thread().name == "MainThread"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gte_fail=0.1", 'unknown fault "gte_fail"; did you mean "get_fail"?'),
        ("get_fail", '"get_fail" has no value'),
        ("get_fail=2", 'get_fail has "2", expected a rate from 0 to 1'),
        ("get_fail=nan", "expected a rate"),
        ("slow_ms=5", "expected MILLISECONDS:RATE"),
        ("hang_ms=99999:0.1", "at most 10000"),
        ("slow_lookup_ms=5", "expected MILLISECONDS:RATE"),
        ("raise=0.5,slow_lookup_ms=1:0.6", "the rates of raise, slow_lookup_ms add up to 1.1"),
        ("rank=-1", 'rank is "-1", expected a whole number'),
        ("get_fail=0.6,short=0.6", "the rates of get_fail, short add up to 1.2"),
    ],
)
def test_wrong_spec_says_what_was_meant(text, expected):
    """One clear error each."""
    with pytest.raises(ConfigError) as caught:
        parse_spec(text)
    assert expected in str(caught.value)


@pytest.mark.parametrize("tp", [1, 2])
def test_faulty_run_repeats_exactly(tp):
    """Seeded: the same faults at the same places; another seed, others."""
    text = "get_fail=0.2,short=0.1,put_fail=0.1,stale=0.1,lie=0.1"
    runs = [
        run_with_pool(RunConfig(EngineConfig(hbm_blocks=56, tp=tp), chat(10, 4), faults=parse_spec(text + more)))
        for more in ("", "", ",seed=1")
    ]
    for run in runs:
        assert_right(run)
    if tp == 1:  # ranks are threads: what one loses another may just have asked for
        assert counts(runs[0]) == counts(runs[1])
    assert runs[0].faults != runs[2].faults
    assert set(runs[0].faults) == {"get_fail", "short", "put_fail", "stale", "lie"}
