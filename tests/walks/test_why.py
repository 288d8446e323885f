"""Every cause by which a prompt's prefix may end, provoked on the simulated host and named right."""

import contextlib
import dataclasses
import json
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.cli.why_join import stories
from mindie_kvpool_plugin.core.why import services
from mindie_kvpool_plugin.observability import causes, run_directory
from mindie_kvpool_plugin.observability.questions import ask_all
from mindie_kvpool_plugin.pools.local_dram import forget_pool, pool_of
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import FAULTY, injected, parse_spec
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from mindie_kvpool_plugin.simulator.run import POOL_PLUGINS, RunConfig, opened_pool
from tests.conftest import mooncake_keys, wait_until
from tests.walks.conftest import SHAPES, assert_right_so_far, chat

PROMPT = list(range(10, 90))  # five blocks of 16
DRAIN_S = 30.0
ON = {"why_requests": 16}


@pytest.fixture(autouse=True)
def own_processes(monkeypatch):
    """Root would ask those of all users, too."""
    monkeypatch.setattr(run_directory, "all_paths", lambda: [run_directory.own_path()])


class Asked:
    """An engine of which every prompt is judged before it goes on: what it stores itself comes afterwards."""

    def __init__(self, engine):
        self.engine = engine
        self.whys = [worker.plugin("kv_pool")._worker.why for worker in engine.workers]

    def run(self, tokens=PROMPT, max_tokens=8, adapter=None):
        request = self.engine.submit(tokens, max_tokens, adapter)
        self.engine.step()
        self.drain()
        self.engine.run()
        self.drain()
        return request

    def drain(self):
        for worker in self.engine.workers:
            worker.wait_until_idle()
        for worker, why in zip(self.engine.workers, self.whys, strict=True):
            assert worker.plugin("kv_pool").drain(DRAIN_S)
            assert why.drain(DRAIN_S)

    def lose_hbm(self):
        """As a restart does: neither the host nor the plugin knows what the device holds."""
        self.engine.drop_hbm()
        for worker in self.engine.workers:
            worker.plugin("kv_pool")._worker.walks.directory.forget()

    def last(self, rank=0):
        return SimpleNamespace(**self.whys[rank].told({"last": 1})["requests"][-1])

    def cause(self, rank=0):
        return self.last(rank).cause

    def stored(self):
        return list(self.pool.keys())

    @property
    def pool(self):
        return pool_of(self.engine.config.pool_file)


@contextlib.contextmanager
def asked(config=None, faults=None, pool_blocks=4096, **options):
    with opened_pool(RunConfig(config or EngineConfig(), chat(), pool_blocks=pool_blocks)) as pooled:
        set_options(pooled.pool_file, **ON, **options)
        with contextlib.ExitStack() as stack:
            if faults:
                stack.enter_context(injected(parse_spec(faults), pooled.backend, pooled.pool_file))
            with Engine(dataclasses.replace(pooled, backend=FAULTY) if faults else pooled) as engine:
                yield Asked(engine)
                assert_right_so_far(engine)


def wait_until_heard():
    """A process begins to listen beside its start."""
    wait_until(lambda: ask_all({"ask": "stats"}), DRAIN_S, "the process listens")


def set_options(path, **options):
    content = json.loads(Path(path).read_text(encoding="utf-8"))
    section = {**content["kv_pool"], **options}
    Path(path).write_text(json.dumps({**content, "kv_pool": section}), encoding="utf-8")


# -- off ---------------------------------------------------------------------------------------------------


def test_nothing_is_noted_and_nobody_asks_when_it_is_off(monkeypatch):
    """No record, no thread, not a key more in the pool; on, there are all three."""

    def run(**options):
        calls = []
        with opened_pool(RunConfig(EngineConfig(), chat())) as pooled:
            set_options(pooled.pool_file, **options)
            with Engine(pooled) as engine:
                pool = pool_of(pooled.pool_file)
                monkeypatch.setattr(pool, "exists", count_calls(calls, pool.exists))
                engine.submit(PROMPT, 8)
                engine.run()
                lookups = len(calls)
                engine.drop_hbm()
                engine.plugin("kv_pool").drain(DRAIN_S)
                threads = {thread.name for thread in threading.enumerate()}
                return engine.plugin("kv_pool")._worker, lookups, threads, pool.keys()

    worker, lookups, threads, keys = run()
    assert worker.why is None
    assert worker.walks.prefill._rank.why is None
    assert lookups == 1, "the scheduler's"
    assert "kvpool-why" not in threads
    assert not [key for key in keys if key.startswith("mindie-kvpool/")]
    worker, _, threads, keys = run(**ON)
    assert worker.why is not None
    assert "kvpool-why" in threads
    assert [key for key in keys if key.startswith("mindie-kvpool/stores/")]


def count_calls(calls, ask):
    def counted(keys):
        calls.append(list(keys))
        return ask(keys)

    return counted


def test_the_thread_ends_with_its_worker():
    """Nothing of it is left behind."""
    with asked() as it:
        thread = it.whys[0]._thread
        it.run()
        assert thread.is_alive()
    assert not thread.is_alive()


def test_only_the_last_prompts_are_kept():
    """The ring has the size that was asked for; sums are over it."""
    with asked() as it:
        for first in range(20):
            it.run([first, *PROMPT])
        told = it.whys[0].told({"last": 100})
        assert (told["kept"], told["capacity"], len(told["requests"])) == (16, 16, 16)
        assert [each["request_id"] for each in told["requests"]] == [str(number) for number in range(5, 21)]
        assert [each["request_id"] for each in it.whys[0].told({"request": "7"})["requests"]] == ["7"]
        assert it.whys[0].told({"request": 4})["requests"] == []


def test_a_prompt_costs_the_pool_a_question_of_two_keys(monkeypatch):
    """However long it is; those that hit all they can cost none."""
    with asked() as it:
        it.run()
        calls = []
        monkeypatch.setattr(it.pool, "exists", count_calls(calls, it.pool.exists))
        it.run()
        assert [len(keys) for keys in calls] == [], "all of it in device memory, nobody asks"
        it.lose_hbm()
        it.pool.remove(next(key for key in it.stored() if key.count("/") == 3))
        it.run([*PROMPT, *PROMPT])
        aside = [keys for keys in calls if any(key.count("/") == 3 for key in keys)]
        assert [len(keys) for keys in aside] == [2]


# -- nothing was missing -----------------------------------------------------------------------------------


def test_a_prompt_that_found_all_its_full_blocks_misses_nothing():
    """From the pool, and from device memory."""
    with asked() as it:
        it.run([*PROMPT, 1])
        it.run([*PROMPT, 2])
        found = it.last()
        assert (found.cause, found.computed, found.promised, found.reused) == (causes.COMPLETE, 5, 5, 5)
        it.lose_hbm()
        it.run([*PROMPT, 3])
        found = it.last()
        assert (found.cause, found.computed, found.promised, found.reused) == (causes.COMPLETE, 0, 5, 5)


def test_a_prompt_without_a_full_block_cannot_hit():
    """15 tokens of 16."""
    with asked() as it:
        it.run(PROMPT[:15])
        assert (it.cause(), it.last().full_blocks) == (causes.TOO_SHORT, 0)


def test_of_a_prompt_in_chunks_the_first_one_is_told():
    """It was all there, and that is all that is known of it."""
    config = EngineConfig(chunk_tokens=48)
    with asked(config) as it:
        it.run()
        assert (it.cause(), it.last().is_whole) == (causes.NEVER_STORED, False)
        it.lose_hbm()
        it.run()
        assert it.cause() in {causes.FIRST_CHUNK, causes.COMPLETE}


# -- the block is not in the pool --------------------------------------------------------------------------


def test_new_content_was_never_stored():
    """Told of the block behind the known ones."""
    with asked() as it:
        it.run()
        assert (it.cause(), it.last().reused) == (causes.NEVER_STORED, 0)
        it.run([*PROMPT, *range(200, 240)])
        assert (it.cause(), it.last().reused) == (causes.NEVER_STORED, 5)


def test_equal_prompts_of_one_batch_come_too_early_for_each_other():
    """Blocks are stored when a request ends."""
    with asked() as it:
        it.engine.submit(PROMPT, 8)
        it.run()
        told = it.whys[0].told({})["requests"]
        assert [each["cause"] for each in told] == [causes.NEVER_STORED, causes.NOT_YET_STORED]


def test_a_block_that_arrives_before_the_judge_asks_was_not_stored_yet(monkeypatch):
    """It was on its way when the prompt was looked up, and is in the pool a moment later.  Staged: no step waits."""
    with asked(EngineConfig(async_write=True), staging="on") as it:
        go_on, put, ask = threading.Event(), it.pool.put, it.pool.exists

        def slow_put(*args):
            assert go_on.wait(DRAIN_S)
            return put(*args)

        def late_question(keys):
            if threading.current_thread().name == "kvpool-why" and len(keys) == 2:
                go_on.set()
                assert it.engine.plugin("kv_pool").drain(DRAIN_S)
            return ask(keys)

        monkeypatch.setattr(it.pool, "put", slow_put)
        it.engine.submit(PROMPT, 8)
        it.engine.run()
        it.lose_hbm()
        monkeypatch.setattr(it.pool, "exists", late_question)
        it.run()
        assert it.pool.exists([key for key in it.stored() if key.count("/") == 3])
        assert it.cause() == causes.NOT_YET_STORED


@pytest.mark.parametrize(
    "config", [EngineConfig(), EngineConfig(tp=2, async_write=True)], ids=["tp1", "tp2-async-write"]
)
def test_what_was_seen_once_is_not_admitted(config):
    """With second_use the second asker misses for that reason, and the third one finds all of it."""
    with asked(config, admission="second_use") as it:
        for expected in (causes.NEVER_STORED, causes.NOT_ADMITTED, causes.COMPLETE):
            request = it.run()
            assert [it.cause(rank) for rank in range(config.tp)] == [expected] * config.tp
            it.lose_hbm()
        assert request.pool_blocks == 5


def test_what_the_pool_gave_away_was_evicted():
    """A pool of eight blocks, three prompts of five; promised or not, the alias may be gone, too."""
    with asked(pool_blocks=8) as it:
        it.run()
        it.run([1000 + token for token in PROMPT])
        it.run([2000 + token for token in PROMPT])
        it.lose_hbm()
        it.run()
        assert it.cause() == causes.EVICTED
        assert it.last().facts["ago_s"] > 0


@pytest.mark.parametrize("kept", ["alias", "nothing"])
def test_a_lost_block_was_evicted_with_and_without_its_alias(kept):
    """Promised and gone, or gone before the lookup."""
    with asked() as it:
        it.run()
        it.lose_hbm()
        for key in it.stored():
            if key.count("/") == 3 or kept == "nothing":
                it.pool.remove(key)
        it.run()
        assert (it.cause(), it.last().promised) == (causes.EVICTED, 5 if kept == "alias" else 0)


def test_a_full_queue_is_named():
    """Of five blocks two fit; what was dropped ends the next prompt's prefix."""
    with asked(EngineConfig(async_write=True), queue_capacity_blocks=2) as it:
        it.run()
        assert it.engine.plugin("kv_pool").counters.dropped_blocks > 0
        it.lose_hbm()
        it.run()
        assert (it.cause(), it.last().reused) == (causes.QUEUE_FULL, 2)


def test_a_dropped_block_that_the_next_turn_hit_on_the_device_was_still_dropped(monkeypatch):
    """There was no room for any of them; the next turn did not compute them and cannot say what they are."""
    with asked(EngineConfig(async_write=True), queue_capacity_blocks=2) as it:
        go_on, put = threading.Event(), it.pool.put

        def slow_put(*args):
            assert go_on.wait(DRAIN_S)
            return put(*args)

        monkeypatch.setattr(it.pool, "put", slow_put)
        for tokens in ([1000 + token for token in PROMPT], PROMPT, [*PROMPT, *range(200, 216)]):
            it.engine.submit(tokens, 8)
            it.engine.run()
        go_on.set()
        it.drain()
        assert it.last().computed == 5
        assert it.engine.plugin("kv_pool").counters.unclaimed_blocks > 0
        it.lose_hbm()
        it.run()
        assert (it.cause(), it.last().reused) == (causes.QUEUE_FULL, 0)


def test_a_spill_that_made_way_for_a_step_was_withdrawn(monkeypatch):
    """The first spill hangs in the pool, the second one waits behind it, and a step needs the second one's blocks."""
    with asked(EngineConfig(async_write=True, hbm_blocks=12), fence_timeout_s=0.05) as it:
        go_on, put = threading.Event(), it.pool.put

        def slow_put(*args):
            assert go_on.wait(DRAIN_S)
            return put(*args)

        monkeypatch.setattr(it.pool, "put", slow_put)
        counters = it.engine.plugin("kv_pool").counters

        def let_go():
            wait_until(lambda: counters.withdrawn_blocks > 0, DRAIN_S, "a withdrawn spill")
            go_on.set()

        helper = threading.Thread(target=let_go)
        helper.start()
        first, second, third = PROMPT, [1000 + token for token in PROMPT], list(range(2000, 2160))
        for tokens in (first, second, third):
            it.engine.submit(tokens, 8)
            it.engine.run()
        helper.join()
        it.drain()
        assert counters.withdrawn_blocks > 0
        it.lose_hbm()
        it.run(second)
        assert it.cause() == causes.WITHDRAWN


def test_a_put_that_the_pool_refused_is_named():
    """Nothing else is wrong with the pool."""
    with asked(faults="put_fail=1.0") as it:
        it.run()
        assert it.engine.plugin("kv_pool").counters.failed_put_blocks > 0
        it.lose_hbm()
        it.run()
        assert it.cause() == causes.PUT_FAILED


def test_blocks_freed_while_the_pool_is_left_alone_are_told_so(monkeypatch):
    """A put that raises opens the breaker; what is freed from then on is dropped."""
    with asked(breaker_failures=1, breaker_retry_s=600.0) as it:
        monkeypatch.setattr(it.pool, "put", raising)
        it.run([1000 + token for token in PROMPT])
        assert it.engine.plugin("kv_pool").counters.breaker_openings == 1
        it.run()
        it.lose_hbm()
        it.run()
        assert it.cause() == causes.LEFT_ALONE_SPILL


def raising(*args):
    raise OSError("planted")


def test_content_that_is_not_certain_is_not_stored():
    """The adapter was loaded anew while the request ran."""
    with asked() as it:
        plugin = it.engine.plugin("kv_pool")
        it.engine.submit(PROMPT, 8, "poet")
        it.engine.step()
        plugin.adapter_changing("poet")
        plugin.adapter_loaded("poet")
        it.engine.run()
        it.lose_hbm()
        it.run(adapter="poet")
        assert it.cause() == causes.UNCERTAIN


def test_what_ran_when_the_device_failed_is_not_on_its_way():
    """All requests ended with it, and nothing of them was offered."""
    with asked() as it:
        it.engine.submit(PROMPT, 40)
        it.engine.step()
        it.drain()
        it.engine.fail_device()
        it.engine.run()
        it.drain()
        assert it.engine.recoveries == 1
        it.run()
        assert it.cause() == causes.UNCERTAIN


def test_tokens_known_under_another_adapter_only():
    """With one and without."""
    with asked() as it:
        it.run(adapter="poet")
        it.lose_hbm()
        it.run()
        assert (it.cause(), it.last().facts["adapter"]) == (causes.OTHER_ADAPTER, "poet")
        it.lose_hbm()
        it.run(adapter="clerk")
        assert (it.cause(), it.last().facts["adapter"]) == (causes.OTHER_ADAPTER, "")


def test_an_adapter_that_was_loaded_anew_is_another_one(monkeypatch):
    """Its name finds the alias of the blocks it had before, and its content does not find their data."""
    with asked() as it:
        it.run(adapter="poet")
        it.lose_hbm()
        plugin = it.engine.plugin("kv_pool")
        monkeypatch.setattr(plugin._worker.adapters, "_content", lambda name: f"{name}, trained on")
        plugin.adapter_changing("poet")
        plugin.adapter_loaded("poet")
        request = it.run(adapter="poet")
        assert (it.cause(), it.last().promised) == (causes.OTHER_ADAPTER, 5)
        assert "known under adapter poet, with the content it had before" in why(str(request.sequence_id)).output


def test_a_prompt_whose_adapter_has_no_name_yet():
    """It runs without the pool."""
    with asked() as it:
        it.engine.workers[0].generator.model_wrapper.adapter_manager = SimpleNamespace(adapter_info_registry={})
        it.run(adapter="poet")
        assert (it.cause(), it.last().facts["adapter"]) == (causes.ADAPTER_UNNAMED, "poet")


# -- stored by others --------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path):
    """Runs the prompt in one deployment after the other, in one pool, and says what the last one found."""
    path = tmp_path / "pool.json"

    def run(*deployments):
        for config, options in deployments:
            path.write_text(json.dumps({"capacity": 64 << 20, "kv_pool": options}), encoding="utf-8")
            pooled = dataclasses.replace(config, plugins=POOL_PLUGINS, backend="local_dram", pool_file=str(path))
            with Engine(pooled) as engine:
                if options.get("why_requests"):
                    it = Asked(engine)
                    it.run()
                else:
                    engine.submit(PROMPT, 8)
                    engine.run()
                assert_right_so_far(engine)
        return it.last()

    yield run
    forget_pool(str(path))


BASE = EngineConfig()
OTHER_WEIGHTS = EngineConfig(shape=ModelShape(dtype="bfloat16"))


def test_blocks_of_a_service_with_other_weights_are_told_from_lost_ones(shared):
    """The alias is there and the data is not; the other service says that it has stored it."""
    found = shared((OTHER_WEIGHTS, ON), (BASE, ON))
    assert (found.cause, found.promised) == (causes.OTHER_FINGERPRINT, 5)
    assert found.facts["namespace"] == "default"


def test_blocks_of_another_number_of_ranks_are_another_services(shared):
    """Their shards have other names."""
    assert shared((dataclasses.replace(BASE, tp=2), ON), (BASE, ON)).cause == causes.OTHER_FINGERPRINT


def test_an_alias_of_a_service_that_does_not_say_who_it_is(shared):
    """It is plain that the data is missing, and not why; nobody guesses."""
    assert shared((OTHER_WEIGHTS, {}), (BASE, ON)).cause == causes.ALIAS_ONLY


def test_blocks_in_another_namespace_are_found(shared):
    """And which one it is."""
    found = shared((BASE, {**ON, "namespace": "team-b"}), (BASE, ON))
    assert (found.cause, found.facts["namespace"]) == (causes.OTHER_NAMESPACE, "team-b")


def test_blocks_in_another_namespace_of_a_service_that_is_silent(shared):
    """Nothing in the pool leads there: never stored, as far as anybody here knows."""
    found = shared((BASE, {"namespace": "team-b"}), (BASE, ON))
    assert found.cause == causes.NEVER_STORED


def test_services_are_found_again_after_a_minute(shared, monkeypatch):
    """One search serves all prompts meanwhile."""
    searches = []
    search = services.Services._search
    monkeypatch.setattr(services.Services, "_search", lambda self: searches.append(1) or search(self))
    with asked() as it:
        it.run()
        it.run([1000 + token for token in PROMPT])
    assert len(searches) == 1


# -- in the pool, and not promised -------------------------------------------------------------------------


def test_a_block_that_the_scheduler_did_not_promise(monkeypatch):
    """It is there with its alias."""
    with asked() as it:
        it.run()
        it.lose_hbm()
        monkeypatch.setattr(it.engine._lookup, "batch_exist", lambda keys: [False] * len(keys))
        it.run()
        assert (it.cause(), it.last().promised) == (causes.NOT_PROMISED, 0)


def test_a_block_that_was_never_announced():
    """Its alias is missing."""
    with asked() as it:
        it.run()
        it.lose_hbm()
        for key in it.stored():
            if key.count("/") == 2:
                it.pool.remove(key)
        it.run()
        assert it.cause() == causes.NOT_ANNOUNCED


# -- promised, and not loaded ------------------------------------------------------------------------------


def test_a_get_that_did_not_deliver():
    """The block is in the pool."""
    with asked(faults="get_fail=1.0") as it:
        it.run()
        it.lose_hbm()
        it.run()
        assert it.engine.plugin("kv_pool").counters.failed_get_blocks > 0
        assert (it.cause(), it.last().promised) == (causes.GET_FAILED, 5)


def test_ranks_tell_what_each_of_them_had():
    """Rank 1 did not get its half; rank 0 gives up what it has."""
    with asked(EngineConfig(tp=2), faults="get_fail=1.0,rank=1") as it:
        it.run()
        it.lose_hbm()
        it.run()
        assert (it.cause(0), it.cause(1)) == (causes.OTHER_RANK, causes.GET_FAILED)
        assert (it.last(0).arrived, it.last(1).arrived) == (5, 0)


def test_a_rank_that_does_not_store_a_block_leaves_it_to_the_one_that_does():
    """Both ranks hold the same bytes; rank 1 stores the odd blocks, and its queue has room for one of two."""
    config = EngineConfig(shape=SHAPES["mla"], tp=2, async_write=True)
    with asked(config, queue_capacity_blocks=1) as it:
        it.run()
        it.lose_hbm()
        it.run()
        assert it.last().reused == 2, "block 0 of rank 0 and block 1 of rank 1"
        assert (it.cause(0), it.cause(1)) == (causes.QUEUE_FULL, causes.ELSEWHERE)


def test_ranks_that_cannot_agree_any_more():
    """All of them give up."""
    with asked(EngineConfig(tp=2)) as it:
        it.run()
        it.lose_hbm()
        for worker in it.engine.workers:
            worker.plugin("kv_pool")._worker.agreement.broken = True
        it.run()
        assert (it.cause(0), it.cause(1)) == (causes.RANKS_DISAGREE, causes.RANKS_DISAGREE)


def test_a_device_that_is_being_repaired_loads_nothing():
    """Promised, and given up."""
    with asked() as it:
        it.run()
        it.lose_hbm()
        it.engine.plugin("kv_pool").device_closing()
        it.run()
        assert (it.cause(), it.last().promised) == (causes.DEVICE_BUSY, 5)


def test_a_mistake_of_ours_is_told_as_one(monkeypatch):
    """The other prompts of the batch lost their hits, too."""
    with asked() as it:
        it.run()
        it.lose_hbm()
        with monkeypatch.context() as patched:
            patched.setattr(it.engine.plugin("kv_pool")._worker.walks.prefill._reload, "_get", raising)
            it.run()
        assert (it.cause(), it.last().promised, it.last().reused) == (causes.HOOK_ERROR, 5, 0)


def test_a_pool_that_is_left_alone_is_not_asked(monkeypatch):
    """The get that opens the breaker, and the prompt after it."""
    with asked(breaker_failures=1, breaker_retry_s=600.0) as it:
        it.run()
        it.lose_hbm()
        calls = []
        monkeypatch.setattr(it.pool, "get", raising)
        monkeypatch.setattr(it.pool, "exists", count_calls(calls, it.pool.exists))
        it.run()
        assert (it.cause(), it.last().promised) == (causes.LEFT_ALONE, 5)
        it.lose_hbm()
        it.run()
        assert (it.cause(), it.last().promised) == (causes.LEFT_ALONE, 5)
        assert not [keys for keys in calls if any(key.count("/") == 3 for key in keys)]


@pytest.mark.parametrize("slow", [(0, 1), (1,)], ids=["both ranks", "one rank"])
def test_what_is_faster_to_compute_is_told_so(slow):
    """The pool is not asked; a rank that heard of it a step later loaded in vain, and leaves it to the other."""
    with asked(EngineConfig(tp=2), load="auto") as it:
        it.run()
        it.lose_hbm()
        for rank in slow:
            gate = it.engine.plugin("kv_pool", rank)._worker.walks.prefill._reload._load_gate
            gate.hears(np.array([0, -1, -(10**10), 0, 0, -1, 0, 0, 0, -1]))  # picoseconds: a token, a block
        request = it.run()
        counters = [it.engine.plugin("kv_pool", rank).counters for rank in (0, 1)]
        assert [counters[rank].recomputed_cheaper for rank in slow] == [5] * len(slow)
        assert [each.reloaded_blocks > 0 for each in counters] == [rank not in slow for rank in (0, 1)]
        assert [each.load_is_on for each in counters] == [0, 0]
        wanted = [causes.CHEAPER_TO_COMPUTE if rank in slow else causes.OTHER_RANK for rank in (0, 1)]
        assert [it.cause(rank) for rank in (0, 1)] == wanted
        wait_until_heard()
        assert story(request).cause == causes.CHEAPER_TO_COMPUTE


def test_what_does_not_fit_into_its_step_is_told_so():
    """A nanosecond is no time: the pool is not asked once it is known what a block takes."""
    with asked(load="auto", reload_budget_ms=1e-6) as it:
        it.run()
        it.lose_hbm()
        gate = it.engine.plugin("kv_pool")._worker.walks.prefill._reload._load_gate
        told = [0, -(10**12), -1_000_000, 0, 0, -1, 0, 0, 0, -1]  # a second to compute a token, a microsecond a block
        gate.hears(np.array(told))
        it.run()
        assert it.engine.plugin("kv_pool").counters.recomputed_over_budget == 5
        assert it.cause() == causes.OVER_BUDGET


def test_blocks_that_their_step_had_no_time_to_store_are_told():
    """Two requests end in one step, which may store for a nanosecond: what the first leaves takes longer."""
    with asked(reload_budget_ms=1e-6) as it:
        other = [1000 + token for token in PROMPT]
        for tokens in (PROMPT, other):
            it.engine.submit(tokens, 8)
        it.engine.run()
        it.drain()
        counters = it.engine.plugin("kv_pool").counters
        assert (counters.spilled_blocks, counters.dropped_over_budget) == (5, 5)
        it.lose_hbm()
        it.run(other)
        assert it.cause() == causes.OVER_BUDGET_SPILL


def test_a_pool_that_does_not_answer_leaves_the_cause_open(monkeypatch):
    """Nobody guesses, and the breaker does not hear of it."""
    with asked() as it:
        it.run()
        it.lose_hbm()
        pool, ask = it.pool, it.pool.exists

        def exists(keys):
            return raising() if any(key.count("/") == 3 for key in keys) else ask(keys)

        pool.remove(next(key for key in it.stored() if key.count("/") == 3))
        monkeypatch.setattr(pool, "exists", exists)
        it.run()
        assert it.cause() == causes.UNKNOWN
        assert it.engine.plugin("kv_pool").counters.breaker_openings == 0
        assert it.engine.plugin("kv_pool")._worker.walks.pool._failed_in_a_row == 0


def test_every_cause_has_a_test():
    """In this file."""
    text = Path(__file__).read_text(encoding="utf-8")
    assert [word for word in causes.CAUSES if f"causes.{word.upper()}" not in text] == []
    assert np.unique(causes.CAUSES).size == len(causes.CAUSES)


# -- joined with what the scheduler was told -----------------------------------------------------------------


def story(request):
    """What the command makes of this process's answer."""
    answers = [reply.answer for reply in ask_all({"ask": "why", "request": str(request.sequence_id)})]
    (found,) = stories(answers)
    return found


def test_a_lookup_that_came_too_late_is_told(monkeypatch):
    """The pool has the block, and the scheduler's question hung for longer than its budget."""
    with asked(lookup_budget_s=0.05, breaker_failures=1000) as it:
        it.run()
        it.lose_hbm()
        go_on, ask = threading.Event(), it.pool.exists

        def slow(keys):
            if threading.current_thread().name.startswith("kvpool-lookup"):
                assert go_on.wait(DRAIN_S)
            return ask(keys)

        with monkeypatch.context() as patched:
            patched.setattr(it.pool, "exists", slow)
            request = it.run()
            go_on.set()
        found = story(request)
        assert (found.cause, found.said["cause"]) == (causes.LOOKUP_LATE, causes.NOT_PROMISED)
        assert found.lookup["took_s"] >= 0.05


def test_a_scheduler_that_leaves_the_pool_alone_is_told(monkeypatch):
    """Its breaker is open, the workers' are not."""
    with asked(breaker_failures=1, breaker_retry_s=600.0) as it:
        it.run()
        it.lose_hbm()
        with monkeypatch.context() as patched:
            patched.setattr(it.pool, "exists", raising)
            it.engine._lookup.batch_exist(["1_0_1_simulated"])
        request = it.run()
        found = story(request)
        assert (found.cause, found.lookup["outcome"]) == (causes.LOOKUP_LEFT_ALONE, "left_alone")


def test_what_the_scheduler_was_told_is_found_for_a_prompt():
    """Asked for five blocks, told of five."""
    with asked(EngineConfig(tp=2)) as it:
        it.run()
        it.lose_hbm()
        request = it.run([*PROMPT, 1, 2, 3])
        found = story(request)
        assert (found.lookup["asked"], found.lookup["found"], found.lookup["outcome"]) == (5, 5, "answered")
        assert [part.identity["rank"] for part in found.parts] == [0, 1]
    assert stories([reply.answer for reply in ask_all({"ask": "why"})]) == []


# -- on a real Mooncake -----------------------------------------------------------------------------------


def on_mooncake(path, master, config, segment_bytes=64 << 20, **options):
    keys = {**mooncake_keys(master, segment_bytes), "kv_pool": {**ON, **options}}
    path.write_text(json.dumps(keys), encoding="utf-8")
    return dataclasses.replace(config, plugins=POOL_PLUGINS, backend="mooncake", pool_file=str(path))


@pytest.mark.parametrize("cause", [causes.OTHER_FINGERPRINT, causes.OTHER_NAMESPACE])
def test_another_service_on_a_real_mooncake_is_found(cause, own_master, tmp_path):
    """By the names it left there; a master over loopback."""
    pytest.importorskip("mooncake.store")
    path, is_namespace = tmp_path / "pool.json", cause == causes.OTHER_NAMESPACE
    more = {"namespace": "team-b"} if is_namespace else {}
    with Engine(on_mooncake(path, own_master, BASE if is_namespace else OTHER_WEIGHTS, **more)) as first:
        Asked(first).run()
        with Engine(on_mooncake(path, own_master, BASE)) as second:
            it = Asked(second)
            it.run()
            assert it.cause() == cause
            assert_right_so_far(second)


def test_what_a_real_mooncake_evicted_is_named(tmp_path):
    """Blocks of 512 KiB in a pool of 16 MiB: of the first prompts some are thrown out, by the master's choice."""
    pytest.importorskip("mooncake.store")
    config = EngineConfig(shape=ModelShape(head_size=1024), hbm_blocks=32)
    prompts = [[100 * number + token for token in range(80)] for number in range(10)]
    with (
        MooncakeMaster("--default_kv_lease_ttl=100ms") as master,
        Engine(on_mooncake(tmp_path / "pool.json", master, config, segment_bytes=16 << 20)) as engine,
    ):
        it = Asked(engine)
        assert engine.plugin("kv_pool")._worker.walks.prefill._rank.memory.block_bytes == 512 << 10
        found = []
        for tokens in [*prompts, *prompts, *prompts]:
            it.run(tokens)
            found.append(it.cause())
        assert found[:10] == [causes.NEVER_STORED] * 10
        assert causes.EVICTED in found[10:]
        assert set(found[10:]) <= {causes.EVICTED, causes.PUT_FAILED, causes.COMPLETE}
        assert_right_so_far(engine)


# -- the command ------------------------------------------------------------------------------------------


def why(*args):
    return CliRunner().invoke(main, ["why", *args, "--lang", "en"], prog_name="mindie-kvpool")


def test_the_command_asks_the_processes_that_run():
    """Over their sockets: all prompts, one of them, and one that nobody had."""
    with asked(EngineConfig(tp=2), faults="get_fail=1.0,rank=1") as it:
        wait_until_heard()
        assert "remember no prompt yet" in why().output
        it.run()
        it.lose_hbm()
        request = it.run()
        result = why()
        assert result.exit_code == 0
        assert "Last 2 prompts, 160 tokens: 0.0 % found in HBM, 0.0 % loaded from the pool" in result.output
        result = why(str(request.sequence_id))
        assert "Block 0 (tokens 0 to 15) ended the prefix: get_failed (get did not deliver)" in result.output
        assert "5 blocks: other_rank" in result.output
        assert "asked for 5 blocks, was told of 5" in result.output
        (told,) = json.loads(why(str(request.sequence_id), "--format", "json").output)
        assert [rank["said"]["cause"] for rank in told["ranks"]] == [causes.OTHER_RANK, causes.GET_FAILED]
        assert why("1234").exit_code == 1
    assert why().exit_code == 2


def test_the_command_says_how_to_switch_it_on():
    """The pool file is named."""
    with opened_pool(RunConfig(EngineConfig(), chat())) as pooled, Engine(pooled):
        wait_until_heard()
        result = why()
        assert result.exit_code == 2
        assert f'write "why_requests": 256 into the kv_pool section of {pooled.pool_file}' in result.output
