"""What a sequence leaves behind reaches the pool whole, or not at all."""

import dataclasses
import threading
from unittest.mock import Mock

import numpy as np
import pytest

from mindie_kvpool_plugin.core import spill as spill_module
from mindie_kvpool_plugin.core import spill_queue
from mindie_kvpool_plugin.core.fence import Fence
from mindie_kvpool_plugin.core.held_up import HeldUp
from mindie_kvpool_plugin.core.put_pace import LEAST_PUTS
from mindie_kvpool_plugin.core.spill import Replica
from tests.conftest import wait_until

from .parts import BLOCK_SIZE, ArrayMemory, Rank, ScriptedPool, StagedArrayMemory, freed, guarded, prompt
from .test_load_gate import Clock

JOIN_S = 60.0


def test_freed_blocks_are_stored_with_an_alias_written_after_the_data():
    """Blocks [1, 2] of a finished sequence: two data keys in one put, then two aliases."""
    rank = Rank()
    tokens = prompt(100, 2)
    rank.compute(7, tokens, [1, 2])
    rank.free(7, tokens, [1, 2])
    assert [len(keys) for keys in rank.pool.puts] == [2, 2]
    assert all(key.count("/") == 3 for key in rank.pool.puts[0])
    assert all(key.startswith("ns/model/") for key in rank.pool.puts[1])
    assert rank.counters.spilled_blocks == 2
    assert rank.counters.spilled_bytes == 2 * 96
    rank.spill.check_integrity()


def test_a_block_whose_put_failed_gets_no_alias():
    """The alias says that the data is there."""
    rank = Rank()
    tokens = prompt(100, 3)
    rank.compute(7, tokens, [1, 2, 3])
    second = rank.keys.data(hexes(rank, tokens))[1]
    rank.pool.refuse_put = lambda key: key == second
    rank.free(7, tokens, [1, 2, 3])
    assert len(rank.pool.alias_keys()) == 2
    assert rank.counters.failed_put_blocks == 1


def hexes(rank, tokens):
    from mindie_kvpool_plugin.core import block_keys

    return block_keys.hex_digests(block_keys.digest_chain(np.array(tokens), rank.keys.block_size))


def test_blocks_known_to_be_in_the_pool_are_not_offered_again():
    """A second sequence that hit the same blocks on the device frees them too."""
    rank = Rank()
    tokens = prompt(100, 2)
    rank.compute(7, tokens, [1, 2])
    rank.free(7, tokens, [1, 2])
    rank.free(8, tokens, [1, 2])
    assert len(rank.pool.puts) == 2
    assert rank.counters.kept_blocks == 2


def test_blocks_of_uncertain_content_are_not_stored():
    """Written by a running sequence 7, hit and freed by 8: only 7 can say what they are."""
    rank = Rank()
    tokens = prompt(100, 2)
    rank.compute(7, tokens, [1, 2])
    rank.free(8, tokens, [1, 2])
    assert rank.pool.puts == []
    assert rank.counters.unclaimed_blocks == 2


def found(rank, sequence_id, tokens, block_ids, computed, is_alike=lambda writer: True):
    """A sequence that found some of its blocks on the device and computed the others with them."""
    rank.directory.rewrite(sequence_id, np.array(block_ids[computed:]))
    ground = rank.directory.ground(sequence_id, np.array(block_ids[:computed]), is_alike)
    given = np.ones(len(block_ids), dtype=bool)
    rank.spill.freed(dataclasses.replace(freed(sequence_id, tokens, block_ids), ground=ground), given)


def test_what_was_computed_with_another_ones_block_is_not_stored():
    """The host found it by a forged hash: what follows is computed with it, and is not what its tokens say."""
    rank = Rank()
    rank.compute(7, prompt(100, 1), [1])
    rank.free(7, prompt(100, 1), [1])
    stored = set(rank.pool.keys())
    found(rank, 8, prompt(500, 3), [1, 2, 3], computed=1)
    assert set(rank.pool.keys()) == stored
    found(rank, 9, prompt(100, 3), [1, 4, 5], computed=1)
    assert len(rank.pool.data_keys()) == 3, "behind the block that these tokens name everything is stored"


def test_what_was_computed_with_a_block_of_another_adapter_is_not_stored():
    """Still running, or gone without a word: nobody named it, and whose it is does not fit."""
    rank = Rank()
    rank.compute(7, prompt(100, 1), [1])
    found(rank, 8, prompt(100, 3), [1, 2, 3], computed=1, is_alike=lambda writer: False)
    assert rank.pool.data_keys() == []
    found(rank, 9, prompt(100, 3), [1, 4, 5], computed=1, is_alike=lambda writer: writer == 7)
    assert len(rank.pool.data_keys()) == 2


def test_what_was_computed_with_a_block_of_two_sequences_is_not_stored():
    """Nobody knows which of their answers it holds."""
    rank = Rank()
    rank.compute(7, prompt(100, 1), [1])
    rank.directory.extend(np.array([6]), np.array([1]))
    found(rank, 8, prompt(100, 3), [1, 2, 3], computed=1)
    assert rank.pool.data_keys() == []


def test_a_known_block_is_stored_only_under_its_own_digest():
    """The host's table may name a block for other tokens than it contains; then it is skipped."""
    rank = Rank()
    rank.pool.put_proof_s = 0.0
    rank.compute(7, prompt(100, 1), [1])
    rank.free(7, prompt(100, 1), [1])
    stored = set(rank.pool.data_keys())
    rank.free(8, prompt(500, 1), [1])
    assert set(rank.pool.data_keys()) == stored


def test_replicas_share_the_storing():
    """Three ranks with the same bytes: each stores every third block, together they store all."""
    pool = ScriptedPool()
    tokens = prompt(100, 7)
    for index in range(3):
        rank = Rank(pool=pool, replica=Replica(index, 3))
        rank.compute(7, tokens, list(range(1, 8)))
        rank.free(7, tokens, list(range(1, 8)))
        assert rank.counters.spilled_blocks == len(range(index, 7, 3))
    assert len(pool.data_keys()) == len(pool.alias_keys()) == 7


def test_overwrite_waits_for_the_spill_that_reads_the_block():
    """The step that reuses block 1 goes on only after its bytes were read."""
    reading, go_on = threading.Event(), threading.Event()
    pool = ScriptedPool()
    pool.before_put = lambda: (reading.set(), go_on.wait(JOIN_S))
    rank = Rank(pool=pool, queue=100, fence_timeout_s=JOIN_S)
    tokens = prompt(100, 1)
    rank.compute(7, tokens, [1])
    rank.free(7, tokens, [1])
    assert reading.wait(JOIN_S)
    order = []
    step = threading.Thread(target=lambda: (rank.spill.before_write(8, np.array([1])), order.append("step")))
    pool.before_put = lambda: None
    step.start()
    wait_until(lambda: rank.counters.fence_waits, JOIN_S, "the step waits")
    order.append("read")
    go_on.set()
    step.join(JOIN_S)
    assert order == ["read", "step"]
    assert rank.counters.fence_seconds.count == 1
    assert rank.memory.bound_threads == 1
    rank.spill.close()


def test_overwrite_does_not_wait_for_the_pool_when_blocks_are_copied_first():
    """With staging a pool that hangs stops no step, and what it stores is what the block held."""
    reading, go_on = threading.Event(), threading.Event()
    pool, was_released = ScriptedPool(), []
    pool.before_put = lambda: (reading.set(), was_released.append(go_on.wait(JOIN_S)))
    rank = Rank(pool=pool, memory=StagedArrayMemory(), queue=100)
    tokens = prompt(100, 1)
    rank.compute(7, tokens, [1])
    content = rank.memory.content(1)
    rank.free(7, tokens, [1])
    assert reading.wait(JOIN_S)
    rank.spill.before_write(8, np.array([1]))
    rank.compute(8, prompt(200, 1), [1])
    go_on.set()
    assert rank.spill.drain(JOIN_S)
    assert all(was_released), "the step went on while the pool hung"
    assert [bytes(pool.value(key)) for key in pool.data_keys()] == [content]
    rank.spill.check_integrity()
    rank.free(8, prompt(200, 1), [1])
    assert rank.spill.drain(JOIN_S)
    assert len(pool.data_keys()) == 2, "the block is not taken for what it held before"
    rank.spill.close()


def test_spills_that_have_not_begun_are_withdrawn_when_a_step_cannot_wait():
    """The spill thread hangs on one sequence; the next one's block is overwritten and never stored."""
    reading, go_on = threading.Event(), threading.Event()
    pool = ScriptedPool()

    def hang():
        reading.set()
        go_on.wait(JOIN_S)

    pool.before_put = hang
    rank = Rank(pool=pool, queue=100, fence_timeout_s=0.01)
    first, second = prompt(100, 1), prompt(200, 1)
    rank.compute(7, first, [1])
    rank.compute(8, second, [2])
    rank.free(7, first, [1])
    assert reading.wait(JOIN_S)
    rank.free(8, second, [2])
    rank.spill.before_write(9, np.array([2]))  # returns although the pool still hangs
    rank.memory.fill(2, 1)
    go_on.set()
    assert rank.spill.drain(JOIN_S)
    assert rank.counters.withdrawn_blocks == 1
    assert len(pool.data_keys()) == 1
    rank.spill.close()


class SlowPool(ScriptedPool):
    """Its puts take seconds of a clock, and hang from some number of blocks on."""

    def __init__(self, clock, block_s, hangs_after):
        super().__init__()
        self._clock, self._block_s, self._left = clock, block_s, hangs_after
        self.hangs, self.go_on = threading.Event(), threading.Event()

    def put(self, keys, buffers, groups=None):
        if keys[0].count("/") == 3:
            if self._left <= 0:
                self.hangs.set()
                assert self.go_on.wait(JOIN_S)
            self._left -= len(keys)
            self._clock.now += self._block_s * len(keys)
        return super().put(keys, buffers, groups)


def behind_a_queue(block_s, fence_timeout_s):
    """A rank whose spill thread reads the fourth of eleven blocks, one put each, after three that took so long."""
    clock = Clock()
    pool = SlowPool(clock, block_s, hangs_after=LEAST_PUTS)
    memory = ArrayMemory(max_blocks_per_call=1)
    rank = Rank(pool=pool, memory=memory, queue=100, fence_timeout_s=fence_timeout_s, clock=clock)
    tokens, blocks = prompt(100, 11), list(range(1, 12))
    rank.compute(7, tokens, blocks)
    rank.free(7, tokens, blocks)
    assert pool.hangs.wait(JOIN_S)
    return rank


def test_a_step_does_not_wait_for_what_cannot_be_through_in_time():
    """Eight blocks at a second each, and a step may wait two: it goes on at once, and the rest is given up."""
    rank = behind_a_queue(block_s=1.0, fence_timeout_s=2.0)
    wait = Mock(wraps=rank.spill._fence.wait)
    rank.spill._fence.wait = wait
    rank.spill.before_write(9, np.array([11]))
    assert [call.args[1] for call in wait.call_args_list] == [0.0, None]
    assert rank.counters.withdrawn_blocks == 7
    assert rank.counters.fence_seconds.total == 0
    rank.pool.go_on.set()
    assert rank.spill.drain(JOIN_S)
    assert len(rank.pool.data_keys()) == 4
    rank.spill.close()


@pytest.mark.parametrize(("block_s", "block"), [(0.2, 11), (1.0, 5), (0.0, 11)])
def test_a_step_waits_for_what_will_be_through(block_s, block):
    """Eight blocks at a fifth of a second, or two at a second; or nobody knows."""
    rank = behind_a_queue(block_s=block_s, fence_timeout_s=2.0)
    wait = Mock(side_effect=lambda block_ids, timeout_s: rank.pool.go_on.set() or rank.spill.drain(JOIN_S))
    rank.spill._fence.wait = wait
    rank.spill.before_write(9, np.array([block]))
    assert [call.args[1] for call in wait.call_args_list] == [2.0]
    assert rank.counters.withdrawn_blocks == 0
    rank.spill.close()


def test_blocks_ahead_are_those_up_to_the_last_one_needed():
    """Closed in this order: 3, 1, 2, and 3 again; opened from the first on, or all given up."""
    fence = Fence(8)
    fence.close(np.array([3, 1]))
    fence.close(np.array([2, 3]))
    assert [fence.ahead(np.array([block])) for block in (3, 1, 2, 0)] == [4, 2, 3, 0]
    fence.open(np.array([3]))
    assert [fence.ahead(np.array([block])) for block in (3, 1, 2)] == [3, 1, 2]
    assert fence.ahead(np.array([0, 1, 2])) == 2
    fence.open(np.array([1, 2, 3]))
    fence.close(np.array([5]))
    assert [fence.ahead(np.array([block])) for block in (5, 3)] == [1, 0]


class StoringRank(Rank):
    """The step thread stores, in puts of at most two blocks, for a second at most."""

    def __init__(self, block_s):
        self.clock = Clock()
        memory = ArrayMemory(num_blocks=32, max_blocks_per_call=2)
        super().__init__(SlowPool(self.clock, block_s, 1000), memory, clock=self.clock, held=HeldUp(budget_s=1.0))

    def finish(self, sequence_id, num_blocks):
        """The tokens of a sequence that ends in this step."""
        tokens, blocks = prompt(1000 * sequence_id, num_blocks), list(range(num_blocks))
        self.compute(sequence_id, tokens, blocks)
        self.free(sequence_id, tokens, blocks)
        return tokens

    def step(self):
        """The next one begins; seconds of the last one."""
        took_s, self.clock.now = self.clock.now, 0.0
        self.prefill.begin()
        return took_s


def test_a_step_that_stores_itself_ends_within_its_budget():
    """At an eighth of a second the first eight of twenty blocks are stored, and can be found; the next step goes on."""
    rank = StoringRank(block_s=0.125)
    tokens = rank.finish(1, 20)
    assert rank.pool.data_keys() == rank.keys.data(hexes(rank, tokens)[:8])
    assert len(rank.pool.alias_keys()) == 8
    rank.finish(2, 3)
    assert len(rank.pool.data_keys()) == 8
    assert rank.counters.dropped_over_budget == rank.counters.dropped_blocks == 12 + 3
    assert rank.step() == 1.0
    rank.finish(3, 3)
    assert len(rank.pool.data_keys()) == 11
    rank.spill.check_integrity()


def test_a_step_that_stores_itself_waits_for_one_block_of_a_very_slow_pool():
    """Two take six seconds; once that is known one in every step tells whether it is so still, and then more fit."""
    rank, held_s = StoringRank(block_s=3.0), []
    for number in range(1, 7):
        rank.finish(number, 4)
        rank.finish(100 + number, 4)
        held_s.append(rank.step())
    assert held_s == [6.0, 3.0, 3.0, 3.0, 3.0, 3.0]
    rank.pool._block_s = 0.0
    for number in range(10, 20):
        rank.finish(number, 4)
        rank.step()
    before = rank.counters.dropped_over_budget
    rank.finish(20, 4)
    assert rank.counters.dropped_over_budget == before


def test_what_fences_and_loads_took_is_not_left_for_puts():
    """Nine tenths of the second are gone; one block fits."""
    rank = StoringRank(block_s=0.09)
    rank.finish(1, 6)
    rank.step()
    rank.held.seconds += 0.9
    rank.finish(2, 6)
    assert rank.counters.dropped_over_budget == 5


def test_what_a_step_stored_itself_is_not_left_for_loads():
    """Sequence 7 lost its blocks and is saved first; the load gate hears how long that took."""
    rank = StoringRank(block_s=0.1)
    rank.prefill.begin()
    tokens = prompt(100, 3)
    rank.compute(7, tokens, [1, 2, 3])
    rank.running[7] = (freed(7, tokens, [1, 2, 3]), np.ones(3, dtype=bool))
    rank.spill.before_write(8, np.array([1, 2, 3]))
    assert rank.counters.spilled_blocks == 3
    assert rank.held.seconds == pytest.approx(0.3)


def test_the_spill_thread_holds_no_step_up():
    """It has no budget."""
    clock = Clock()
    pool = SlowPool(clock, 3.0, 1000)
    rank = Rank(pool=pool, queue=100, clock=clock, held=HeldUp(budget_s=1.0))
    tokens, blocks = prompt(100, 4), [1, 2, 3, 4]
    rank.compute(7, tokens, blocks)
    rank.free(7, tokens, blocks)
    assert rank.spill.drain(JOIN_S)
    assert (len(pool.data_keys()), rank.held.seconds) == (4, 0.0)
    rank.spill.close()


def test_a_step_never_waits_for_more_of_a_very_slow_pool_than_for_a_small_piece():
    """A sixteenth of a second each, and a step may be held up for one: the first put tells, later ones have a block."""
    clock = Clock()
    pool = SlowPool(clock, 1 / 16, 1000)
    rank = Rank(pool=pool, memory=ArrayMemory(64), queue=100, clock=clock, held=HeldUp(budget_s=1.0))
    tokens, blocks = prompt(100, 40), list(range(40))
    for sequence_id, at in ((7, 0), (8, 20)):
        own_tokens, own_blocks = tokens[at * BLOCK_SIZE :][: 20 * BLOCK_SIZE], blocks[at:][:20]
        rank.compute(sequence_id, own_tokens, own_blocks)
        rank.free(sequence_id, own_tokens, own_blocks)
        assert rank.spill.drain(JOIN_S)
    assert [len(keys) for keys in pool.puts if keys[0].count("/") == 3] == [20, *[1] * 20]
    rank.spill.close()


def test_a_full_queue_drops_the_tail_of_the_chain_and_counts_it():
    """Capacity for 2 of 5 blocks: the leading ones are useful without the others."""
    reading, go_on = threading.Event(), threading.Event()
    pool = ScriptedPool()
    pool.before_put = lambda: (reading.set(), go_on.wait(JOIN_S))
    rank = Rank(pool=pool, queue=3)
    first, tokens = prompt(900, 1), prompt(100, 5)
    rank.compute(6, first, [10])
    rank.free(6, first, [10])
    assert reading.wait(JOIN_S)
    rank.compute(7, tokens, [1, 2, 3, 4, 5])
    rank.free(7, tokens, [1, 2, 3, 4, 5])
    go_on.set()
    assert rank.spill.drain(JOIN_S)
    assert rank.counters.dropped_blocks == 3
    assert rank.keys.data(hexes(rank, tokens)[:2]) == pool.data_keys()[1:]
    rank.spill.close()


def test_blocks_taken_from_a_sequence_without_a_free_event_are_saved_first():
    """Preempted sequence 7 lost blocks [1, 2] to 8 before the host told; its bytes are saved before the batch runs."""
    rank = Rank()
    tokens = prompt(100, 3)
    rank.compute(7, tokens, [1, 2, 3])
    from .parts import freed

    rank.running[7] = (freed(7, tokens, [1, 2, 3]), np.ones(3, dtype=bool))
    rank.spill.before_write(8, np.array([2, 1]))
    assert rank.counters.spilled_blocks == 2
    rank.directory.rewrite(8, np.array([2, 1]))
    del rank.running[7]
    rank.free(7, tokens, [1, 2, 3])
    assert rank.counters.spilled_blocks == 3
    assert len(rank.pool.data_keys()) == 3


def test_blocks_of_a_sequence_that_goes_on_in_the_same_batch_are_not_saved():
    """The host counts a chunk of 7 that is not computed yet, and 8 shares its block: nobody took it; it is empty."""
    rank = Rank()
    tokens = prompt(100, 1)
    rank.compute(7, tokens, [1])
    from .parts import freed

    rank.running[7] = (freed(7, tokens, [1]), np.ones(1, dtype=bool))
    with rank.spill.computing(np.array([7, 9])):
        rank.spill.before_write(8, np.array([1]))
        rank.spill.hand_over(np.array([2]), 9)
    assert rank.pool.puts == []
    assert not rank.directory.holds(np.array([1]), digests(tokens)).any()
    rank.spill.before_write(8, np.array([1]))
    assert rank.counters.spilled_blocks == 1


def digests(tokens):
    from mindie_kvpool_plugin.core import block_keys

    return block_keys.digest_chain(np.array(tokens), BLOCK_SIZE)


def test_blocks_of_a_batch_in_flight_are_not_read():
    """The sequence that loses its block is still being computed: storing it now would store half a block."""
    rank = Rank()
    tokens = prompt(100, 1)
    rank.compute(7, tokens, [1])
    from .parts import freed

    rank.running[7] = (freed(7, tokens, [1]), np.ones(1, dtype=bool))
    rank.is_idle = False
    rank.spill.before_write(8, np.array([1]))
    assert rank.pool.puts == []


@pytest.mark.parametrize("queue", [0, 100])
def test_a_pool_that_raises_costs_only_the_spill(queue):
    """Backends must not raise; if one does, fences open and the next spill works."""
    pool = ScriptedPool()

    def fail():
        pool.before_put = lambda: None
        raise RuntimeError("planted")

    pool.before_put = fail
    rank = Rank(pool=guarded(pool), queue=queue)
    one, two = prompt(100, 1), prompt(200, 1)
    rank.compute(7, one, [1])
    rank.compute(8, two, [2])
    rank.free(7, one, [1])
    assert rank.spill.drain(JOIN_S)
    assert rank.counters.failed_put_blocks == 1
    rank.spill.before_write(9, np.array([1]))
    rank.free(8, two, [2])
    assert rank.spill.drain(JOIN_S)
    assert len(pool.data_keys()) == 1
    rank.spill.close()


def test_chunks_are_spilled_and_released_one_by_one():
    """With room for two blocks per call, five blocks take three puts of data and three of aliases."""
    rank = Rank(memory=ArrayMemory(max_blocks_per_call=2))
    tokens = prompt(100, 5)
    rank.compute(7, tokens, [1, 2, 3, 4, 5])
    rank.free(7, tokens, [1, 2, 3, 4, 5])
    assert [len(keys) for keys in rank.pool.puts] == [2, 2, 2, 2, 1, 1]


def test_close_leaves_nothing_reading_the_device():
    """Queued spills are stored within the bound, and the thread is gone."""
    others = set(threading.enumerate())
    rank = Rank(queue=100)
    tokens = prompt(100, 2)
    rank.compute(7, tokens, [1, 2])
    rank.free(7, tokens, [1, 2])
    started = set(threading.enumerate()) - others
    rank.spill.close()
    assert len(rank.pool.data_keys()) == 2
    assert [thread.name for thread in started] == ["kvpool-spill"]
    assert not any(thread.is_alive() for thread in started)
    rank.spill.before_write(9, np.array([1, 2]))


def test_queue_is_bounded_in_bytes_of_blocks_and_tokens():
    """Room for two blocks of 96 bytes and a sequence's tokens: the head of a chain is kept, the rest dropped."""
    tokens = prompt(100, 4)
    rank = Rank(queue=16, queue_bytes=2 * 96 + 4 * BLOCK_SIZE * 8)
    entered, release = threading.Event(), threading.Event()
    rank.pool.before_put = lambda: (entered.set(), release.wait(30))
    rank.compute(1, tokens, [0, 1, 2, 3])
    rank.free(1, tokens, [0, 1, 2, 3])
    assert entered.wait(30)
    assert rank.counters.dropped_blocks == 2
    rank.compute(2, tokens, [4, 5])
    rank.free(2, tokens, [4, 5])
    assert rank.counters.dropped_blocks == 4, "what is being stored still counts"
    release.set()
    assert rank.spill.drain(30)
    assert rank.counters.spilled_blocks == 2
    rank.spill.close()


def test_close_leaves_a_put_that_does_not_return_to_the_end_of_the_process(monkeypatch):
    """The bound holds, nothing queued is begun any more, and later frees are dropped."""
    monkeypatch.setattr(spill_module, "DRAIN_TIMEOUT_S", 0.01)
    monkeypatch.setattr(spill_queue, "LONGEST_READ_S", 0.01)
    rank = Rank(queue=16)
    entered, release = threading.Event(), threading.Event()
    rank.pool.before_put = lambda: (entered.set(), release.wait(30))
    for sequence_id, first in ((1, 0), (2, 2)):
        tokens = prompt(100 * sequence_id, 2)
        rank.compute(sequence_id, tokens, [first, first + 1])
        rank.free(sequence_id, tokens, [first, first + 1])
    assert entered.wait(30)
    rank.spill.close()
    thread = rank.spill._queue._thread
    assert thread.is_alive()
    release.set()
    thread.join(30)
    assert len(rank.pool.puts) == 2, "one block's data and alias; the second sequence was withdrawn"
    rank.compute(3, prompt(500, 1), [8])
    rank.free(3, prompt(500, 1), [8])
    assert rank.counters.dropped_blocks == 1
