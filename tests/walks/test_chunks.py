"""SplitFuse: prompts in chunks over several steps, decodes in the same batches, in a device memory that is short.

The host refuses asyncWrite together with it.  Each run is also made without a guard of the plugin: then wrong blocks
are served.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mindie_kvpool_plugin.host import step_view
from mindie_kvpool_plugin.simulator import engine as engine_module
from mindie_kvpool_plugin.simulator.block_manager import BlockManager
from mindie_kvpool_plugin.simulator.chunks import ChunkedScheduler
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.faults import parse_spec
from mindie_kvpool_plugin.simulator.requests import Limits
from mindie_kvpool_plugin.simulator.run import RunConfig, broken_pool, opened_pool, run_with_pool, run_without_pool
from mindie_kvpool_plugin.simulator.traffic import Chat
from tests.walks.conftest import assert_right, assert_right_so_far, counts

SCHEDULING = pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
ONE_RANK_FAILS = parse_spec("get_fail=0.3,torn=0.2,rank=1")
BLOCK_SIZE = 16


def chunked(*, async_scheduling, chunk_tokens=48, **engine):
    blocks = 56 if async_scheduling else 40  # asynchronous scheduling only starts what surely ends
    return RunConfig(
        EngineConfig(hbm_blocks=blocks, chunk_tokens=chunk_tokens, async_scheduling=async_scheduling, **engine),
        lambda: Chat(8, 3),
    )


@pytest.fixture
def schedulers(monkeypatch):
    """Those of the engines that the test builds."""
    built = []

    def build(*args, **kwargs):
        built.append(ChunkedScheduler(*args, **kwargs))
        return built[-1]

    monkeypatch.setattr(engine_module, "ChunkedScheduler", build)
    return built


@SCHEDULING
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("chunk_tokens", [20, 48, 100])
def test_chunks_are_right_with_a_pool(schedulers, chunk_tokens, tp, async_scheduling):
    """Chunks that end inside a block, pool hits that end inside a chunk and go beyond it."""
    result = run_with_pool(chunked(chunk_tokens=chunk_tokens, tp=tp, async_scheduling=async_scheduling))
    assert_right(result)
    assert result.hook_errors == 0
    assert result.pool_hit_tokens > 0
    assert result.reloaded_blocks > 0
    assert result.aborted == 0
    assert schedulers[0].chunks > 1.2 * result.requests
    assert schedulers[0].mixed_batches > 1


@SCHEDULING
def test_chunks_are_right_while_gets_fail_on_one_rank(async_scheduling):
    """Both ranks compute what one of them did not get."""
    config = chunked(tp=2, chunk_tokens=64, async_scheduling=async_scheduling)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert_right(result)
    assert result.hook_errors == 0
    assert result.failed_get_blocks > 0
    assert sum(result.faults.values()) > 0
    assert result.reloaded_blocks > 0


@SCHEDULING
def test_chunks_are_right_without_a_pool(schedulers, async_scheduling):
    """The simulated host does nothing wrong by itself."""
    result = run_without_pool(chunked(async_scheduling=async_scheduling))
    assert_right(result)
    assert result.hbm_hit_tokens > 0
    assert schedulers[0].mixed_batches > 1


def test_chunks_are_right_when_running_prompts_make_room(schedulers):
    """Preempted between two chunks, and while decoding; the batch's tokens run out before the chunk's."""
    limits = Limits(max_prefill_tokens=40)
    config = chunked(chunk_tokens=32, async_scheduling=False, limits=limits)
    config = dataclasses.replace(config, engine=dataclasses.replace(config.engine, hbm_blocks=26))
    result = run_with_pool(config)
    assert_right(result)
    assert schedulers[0].preemptions > 0
    assert result.pool_hit_tokens > 0


def test_a_run_repeats():
    """The same configuration, the same counters."""
    config = chunked(tp=2, async_scheduling=True)
    assert counts(run_with_pool(config)) == counts(run_with_pool(config))


@SCHEDULING
def test_what_ran_before_an_abort_comes_back(async_scheduling):
    """A prompt aborted between two chunks: what its chunks computed is kept, and nothing else."""
    with opened_pool(chunked(chunk_tokens=44, async_scheduling=async_scheduling)) as config, Engine(config) as engine:
        prompt = Chat(1, 1, system_tokens=200).ready[0].tokens
        cut = engine.submit(prompt, 4)
        engine.step()
        engine.step()
        assert 0 < cut.computed_tokens < len(prompt)
        engine.abort(cut)
        engine.run()
        computed = engine.computed_tokens
        again = finished(engine, prompt)
        assert again.hbm_blocks == cut_blocks(cut)
        assert engine.computed_tokens == computed + len(prompt) - again.hbm_blocks * BLOCK_SIZE
        engine.drop_hbm()
        last = finished(engine, prompt)
        assert last.hbm_blocks == 0
        assert last.pool_blocks == len(prompt) // BLOCK_SIZE
        assert_right_so_far(engine)


@SCHEDULING
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("chunk_tokens", [24, 32, 44])
def test_a_prompt_that_shares_what_another_one_computes_in_the_same_batch(chunk_tokens, steps, async_scheduling):
    """The second prompt's hit goes on in a block that the first one's chunk only fills now; the pool has it.

    What lies in that block yet is neither stored nor taken for what the pool promised.
    """
    system = Chat(1, 1, system_tokens=150).ready[0].tokens[:150]
    with opened_pool(chunked(chunk_tokens=chunk_tokens, async_scheduling=async_scheduling)) as config:
        with Engine(config) as engine:
            finished(engine, [*system, *range(5, 45)])
        with Engine(config) as engine:  # nothing is on the device
            for user in range(4):
                engine.submit([*system, *range(100 * user + 50, 100 * user + 90)], 4)
                for _ in range(steps):
                    engine.step()
            engine.run()
            assert_right_so_far(engine)
            assert engine.plugin("kv_pool").counters.reloaded_blocks > 0
        with Engine(config) as engine:
            finished(engine, [*system, *range(350, 390)])
            assert_right_so_far(engine)


@SCHEDULING
@pytest.mark.parametrize(("chunk_tokens", "steps"), [(24, 1), (24, 3), (44, 1), (44, 2)])
def test_a_get_that_fails_undoes_nothing_of_what_another_prompt_computed(chunk_tokens, steps, async_scheduling):
    """It leaves anything in its blocks, and one of them is half computed by the prompt that goes on in the batch."""
    system = Chat(1, 1, system_tokens=150).ready[0].tokens[:150]
    with opened_pool(chunked(chunk_tokens=chunk_tokens, async_scheduling=async_scheduling)) as config:
        with Engine(config) as engine:
            finished(engine, [*system, *range(5, 45)])
        with broken_pool(config, parse_spec("get_fail=0.5,torn=0.5")) as (broken, _), Engine(broken) as engine:
            for user in range(4):
                engine.submit([*system, *range(100 * user + 50, 100 * user + 90)], 4)
                for _ in range(steps):
                    engine.step()
            engine.run()
            assert_right_so_far(engine)
        with Engine(config) as engine:
            finished(engine, [*system, *range(350, 390)])
            assert_right_so_far(engine)


@SCHEDULING
def test_believing_promises_serves_wrong_blocks(monkeypatch, async_scheduling):
    """The same failing gets, and the host is told that everything arrived."""
    lower_hits = step_view.lower_hits

    def believe(metadata, inputs, lengths, *more):
        begins = metadata.batch_is_prefill & (metadata.split_start_position == 0)
        if metadata.remote_computed_blocks is not None:
            held = np.minimum(metadata.remote_computed_blocks, metadata.batch_seq_len // BLOCK_SIZE)
            lengths = np.where(begins, held, lengths)
        lower_hits(metadata, inputs, lengths, *more)

    config = chunked(tp=2, chunk_tokens=64, async_scheduling=async_scheduling)
    monkeypatch.setattr(step_view, "lower_hits", believe)
    result = run_with_pool(dataclasses.replace(config, faults=ONE_RANK_FAILS))
    assert result.failed_get_blocks > 0
    assert result.corruptions > 0
    assert result.wrong_answers > 0


@SCHEDULING
def test_oracle_sees_a_host_that_counts_chunks_before_they_ran(monkeypatch, async_scheduling):
    """As the real host does: all blocks of a prompt are marked with its first chunk."""
    mark_computed = BlockManager.mark_computed
    monkeypatch.setattr(BlockManager, "mark_computed", lambda self, block_ids=None: mark_computed(self))
    with Engine(EngineConfig(chunk_tokens=32, async_scheduling=async_scheduling)) as engine:
        engine.submit([7] * 120, 4)
        engine.step()
        engine.submit([7] * 120, 4)
        engine.run()
        assert engine.oracle.corruptions > 0


@pytest.mark.parametrize("beams", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("chunk_tokens", [20, 50])
def test_several_answers_are_right_beside_chunks(chunk_tokens, beams):
    """Requests that decode with three sequences stand in one batch with prompts whose hits fall short on one rank."""
    result = run_with_pool(dataclasses.replace(several_answers(chunk_tokens, beams), faults=ONE_RANK_FAILS))
    assert_right(result)
    assert result.hook_errors == 0
    assert result.recomputed_blocks > 0
    assert result.reloaded_blocks > 0
    assert result.copied_blocks > 0
    assert (result.moved_beams > 0) == (beams > 0)


def test_a_prompt_swapped_out_between_chunks_damages_blocks_that_others_share():
    """By the host itself: what was never computed goes out, and back into what another request has computed."""
    engine = EngineConfig(
        hbm_blocks=30, chunk_tokens=16, max_preempt_count=4, cpu_blocks=64, limits=Limits(max_prefill_tokens=24)
    )
    with Engine(engine) as host:
        for first in (7, 8, 9):
            host.submit([first] * 60, 36)
        for _ in range(14):
            host.step()
        long = host.submit(range(100, 340), 6)
        while not (long.state == "swapped" and long.computed_tokens):
            host.step()
        host.submit(long.prompt[: (long.computed_tokens // BLOCK_SIZE + 3) * BLOCK_SIZE + 3], 80)
        host.run()
        assert host.oracle.corruptions > 0


def test_asynchronous_write_does_not_go_with_chunks():
    """At construction, with the reason."""
    with pytest.raises(ValueError, match="chunk_tokens does not go with async_write"):
        chunked(async_scheduling=False, async_write=True)


def test_adapters_do_not_go_with_chunks():
    """The model would not be told."""
    with Engine(EngineConfig(chunk_tokens=32)) as engine, pytest.raises(ValueError, match="SplitFuse goes without"):
        engine.submit([5] * 40, 4, adapter="a")


def several_answers(chunk_tokens, beams=0.0):
    config = chunked(async_scheduling=False, chunk_tokens=chunk_tokens, tp=2)
    return dataclasses.replace(config, make_traffic=lambda: Chat(8, 3, sampled=0.6, samples=3, beams=beams))


def finished(engine, prompt):
    request = engine.submit(prompt, 4)
    engine.run()
    assert request.state == "finished"
    return request


def cut_blocks(request):
    return request.computed_tokens // BLOCK_SIZE
