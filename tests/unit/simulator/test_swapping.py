"""Unit tests of simulator/swapping.py.  Blocks hold four tokens; ``[1]`` is device block 1."""

import pytest

from mindie_kvpool_plugin.simulator.block_manager import BlockManager, OutOfBlocksError
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.requests import SWAP_IN, SWAP_OUT, Limits, Request
from mindie_kvpool_plugin.simulator.run import wrong_answers
from mindie_kvpool_plugin.simulator.scheduler import Scheduler
from mindie_kvpool_plugin.simulator.swapping import Swapper
from mindie_kvpool_plugin.simulator.worker import Worker

A, B, C = [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]
PROMPT = list(range(10, 40))


def _scheduler(device=4, host=4, per_turn=1):
    manager = BlockManager(device, 4)
    return Scheduler(manager, Limits(), swapper=Swapper(manager, BlockManager(host, 4), per_turn))


def _turn(scheduler, token=50, ends=0):
    """Schedule, run and answer a batch; sequence ``ends`` is over."""
    scheduler.reclaim()
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.sent(batch)
    ids = [sequence.sequence_id for sequence in batch.sequences]
    scheduler.take(ids, [token + sequence_id for sequence_id in ids], [6 * (name == ends) for name in ids])
    scheduler.manager.check_integrity()
    scheduler.swapper.host.check_integrity()
    return batch


def _short_of_blocks(scheduler):
    """Two requests that fill the device; both need one more block now."""
    requests = Request(1, [*A, *B], 20), Request(2, [*A, *C], 20)
    for request in requests:
        scheduler.submit(request)
    assert _turn(scheduler).is_prefill
    return requests


def test_younger_request_goes_to_host_memory_and_comes_back():
    """``[0, 2]``, of which the other has ``[0]`` too, go out to ``[0, 1]`` and back in."""
    scheduler = _scheduler()
    older, younger = _short_of_blocks(scheduler)
    assert (older.blocks.block_ids, younger.blocks.block_ids) == ([0, 1], [0, 2])
    batch = _turn(scheduler)
    assert batch.requests == [older]
    assert batch.swaps == [(SWAP_OUT, 0, 0), (SWAP_OUT, 2, 1)]
    assert younger.blocks.block_ids == [0, 1]
    assert (younger.state, scheduler.cleanup, scheduler.preemptions) == ("swapped", [], 1)
    while len(older.blocks.block_ids) < 4:
        assert _turn(scheduler).swaps == []
    assert older.blocks.block_ids == [0, 1, 3, 2]
    _turn(scheduler, ends=1)
    batch = _turn(scheduler)
    assert batch.requests == [younger]
    assert batch.swaps == [(SWAP_IN, 0, 0), (SWAP_IN, 1, 2)]
    assert younger.blocks.block_ids == [0, 2, 3]
    assert scheduler.swapper.host.num_free == 4


def test_nothing_is_prefilled_while_something_is_swapped_out():
    """A new request waits although it would fit."""
    scheduler = _scheduler(device=6, host=6)
    _short_of_blocks(scheduler)
    while not scheduler.swapper.waiting:
        _turn(scheduler)
    scheduler.submit(Request(3, [1], 1))
    assert scheduler.manager.num_free > 0
    assert not _turn(scheduler).is_prefill


def test_full_host_memory_means_computing_again():
    """One host block is not enough: the request is prefilled again."""
    scheduler = _scheduler(host=1)
    _, younger = _short_of_blocks(scheduler)
    while scheduler.preemptions == 0:
        _turn(scheduler)
    assert younger.state == "waiting"
    assert scheduler.cleanup == [2]
    assert scheduler.swapper.blocks_out == 0


def test_limit_of_a_turn_is_kept():
    """The second request that has to make room in one turn is computed again."""
    scheduler = _scheduler(device=6, host=12)
    for sequence_id in (1, 2, 3):
        scheduler.submit(Request(sequence_id, [sequence_id, 2, 3, 4, 5, 6, 7], 40))
    assert _turn(scheduler).is_prefill
    scheduler.swapper.begin_turn()
    running = scheduler.running
    scheduler._preempt(running[2])
    scheduler._preempt(running[1])
    assert [request.state for request in running] == ["running", "waiting", "swapped"]


def test_swapped_request_can_be_aborted():
    """Its host blocks come back, and the workers are told."""
    scheduler = _scheduler()
    _, younger = _short_of_blocks(scheduler)
    while not scheduler.swapper.waiting:
        _turn(scheduler)
    scheduler.abort(younger)
    assert scheduler.reclaim() == [younger]
    assert scheduler.cleanup == [2]
    assert scheduler.swapper.host.num_free == 4
    assert not scheduler.swapper.waiting


def test_request_that_fits_nowhere_is_an_error():
    """The host would lose the block operations of a batch without sequences."""
    scheduler = _scheduler(device=3)
    scheduler.submit(Request(1, [*A, *B], 20))
    for _ in range(5):
        _turn(scheduler)
    with pytest.raises(OutOfBlocksError, match="give the simulator more device blocks"):
        _turn(scheduler)


def test_swaps_need_host_blocks():
    """As the host's configuration does."""
    with pytest.raises(ValueError, match="cpu_blocks"):
        EngineConfig(max_preempt_count=1)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("cpu_blocks", [64, 9], ids=["all-swapped", "some-recomputed"])
def test_swapped_requests_answer_right(monkeypatch, tp, async_scheduling, cpu_blocks):
    """The bytes come back with them, to other blocks of the device."""
    swaps = noted_swaps(monkeypatch)
    config = EngineConfig(
        tp=tp, hbm_blocks=20, async_scheduling=async_scheduling, max_preempt_count=2, cpu_blocks=cpu_blocks
    )
    with Engine(config) as engine:
        requests = [engine.submit([first + 3, *PROMPT], 70) for first in range(6)]
        engine.run()
        assert engine.scheduler.swapper.blocks_in > 0
        came_from = {place: block_id for kind, block_id, place in swaps if kind == SWAP_OUT}
        assert any(came_from[place] != block_id for kind, place, block_id in swaps if kind == SWAP_IN)
        assert any(request.prompt_tokens > len(request.prompt) for request in requests) is (cpu_blocks == 9)
        assert not [request for request in requests if wrong_answers(request, config.shape)]
        assert (engine.oracle.corruptions, engine.oracle.input_errors, engine.leaked_blocks) == (0, 0, 0)


def test_workers_keep_the_context_of_a_swapped_request():
    """Nothing but ``swap`` and the tables tells them of it."""
    with Engine(EngineConfig(hbm_blocks=8, max_preempt_count=1, cpu_blocks=32)) as engine:
        for first in range(2):
            engine.submit([first + 3, *PROMPT], 60)
        while not engine.scheduler.swapper.waiting:
            engine.step()
        known = engine.workers[0].generator.infer_context._batch_context.sequence_context_slot_map
        assert set(known) == {1, 2}
        engine.run()
        assert len(engine.done) == 2


def noted_swaps(monkeypatch):
    swaps = []
    move = Worker.move_blocks

    def noted(worker, copies, decisions):
        swaps.extend(decisions)
        return move(worker, copies, decisions)

    monkeypatch.setattr(Worker, "move_blocks", noted)
    return swaps
