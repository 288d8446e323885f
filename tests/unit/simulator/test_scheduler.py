"""Unit tests of simulator/scheduler.py: what the pool is asked and how its answer is read."""

import numpy as np
import pytest

from mindie_kvpool_plugin.simulator.block_manager import BlockManager, chain_hash
from mindie_kvpool_plugin.simulator.requests import Limits, Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler

A, B = [1, 2, 3, 4], [5, 6, 7, 8]


class Lookup:
    """Answers what it was told to and remembers what it was asked."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def batch_exist(self, keys):
        self.asked += keys
        return self.answer


def _scheduled(lookup, tp=1):
    scheduler = Scheduler(BlockManager(8, 4), Limits(), lookup=lookup, tp=tp, model_name="m")
    scheduler.submit(Request(1, [*A, *B, 9], 1))
    batch = scheduler.schedule()
    assert batch is not None
    return batch


def test_lookup_asks_for_every_rank_of_every_block_and_for_hash_zero_at_the_end():
    """Block by block, all ranks of a block together; the partial block has no hash."""
    lookup = Lookup([False] * 6)
    _scheduled(lookup, tp=2)
    first = chain_hash(0, A)
    second = chain_hash(first, B)
    assert lookup.asked == [f"{name}_{rank}_2_m" for name in (first, second, 0) for rank in (0, 1)]


@pytest.mark.parametrize(
    ("answer", "promised"),
    [
        ([True, True, True, False, False, False], 1),
        ([False, True, True, True, True, True], 0),
        ([True] * 4 + [False] * 2, 2),
    ],
)
def test_promise_is_the_leading_answers_divided_by_the_ranks(answer, promised):
    """A block counts when all its ranks have it, and only up to the first miss."""
    assert _scheduled(Lookup(answer), tp=2).promised == [promised]


@pytest.mark.parametrize("answer", [[1, 1, 0], [np.True_, np.True_, np.False_], [True, True]])
def test_answer_the_host_could_not_cast_is_refused(answer):
    """Python bools, one per key: the host's binding takes nothing else."""
    with pytest.raises(TypeError, match="one Python bool per key"):
        _scheduled(Lookup(answer))


def test_ended_sequence_gives_its_blocks_back_at_the_next_turn():
    """Its blocks stay its own while its last step is answered."""
    scheduler = Scheduler(BlockManager(8, 4), Limits())
    request = Request(1, A, 1)
    scheduler.submit(request)
    batch = scheduler.schedule()
    assert batch is not None
    scheduler.sent(batch)
    scheduler.take([1], [7], [6])
    assert request.state == "finished"
    assert scheduler.manager.num_free == 7
    assert scheduler.reclaim() == [request]
    assert scheduler.manager.num_free == 8
    assert scheduler.idle
