"""Only what came before is admitted, alike on all ranks, in a memory that does not grow."""

import threading

import numpy as np
import pytest

from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.admission import SecondUse
from mindie_kvpool_plugin.core.spill import Replica
from mindie_kvpool_plugin.core.why import fates

from .parts import BLOCK_SIZE, Rank, ScriptedPool, freed, prompt

JOIN_S = 30.0


def chain(tokens):
    return block_keys.digest_chain(np.array(tokens), BLOCK_SIZE)


def distinct(number, blocks):
    return np.random.default_rng(number).integers(0, 1 << 64, (blocks, 2), dtype=np.uint64)


def test_a_chain_is_admitted_as_far_as_it_came_before():
    """[1, 2, 3] ended; of [1, 2, 9] two blocks were seen, and of [9, 2, 3], another chain, none."""
    memory = SecondUse()
    memory.note(chain(prompt(100, 3)))
    assert memory.leading(chain(prompt(100, 3))) == 3
    assert memory.leading(chain(prompt(100, 2) + prompt(900, 1))) == 2
    assert memory.leading(chain(prompt(900, 1) + prompt(104, 2))) == 0
    assert memory.leading(chain([])) == 0


def test_asking_is_not_seeing():
    """A question leaves nothing behind."""
    memory = SecondUse()
    assert [memory.leading(chain(prompt(100, 3))) for _ in range(3)] == [0, 0, 0]


def test_the_last_blocks_are_known_and_older_ones_forgotten():
    """Of a capacity of 1,000 the latest 1,000 are known for certain, those beyond twice as many not."""
    memory = SecondUse(1000)
    chains = [distinct(number, 10) for number in range(300)]
    for each in chains:
        memory.note(each)
    assert all(memory.leading(each) == 10 for each in chains[-100:])
    assert sum(memory.leading(each) for each in chains[:99]) < 10


def test_what_is_seen_again_is_not_forgotten():
    """Popular blocks outlive any number of others."""
    memory, popular = SecondUse(1000), distinct(0, 10)
    for number in range(1, 400):
        memory.note(popular)
        memory.note(distinct(number, 10))
    assert memory.leading(popular) == 10


def test_few_blocks_are_admitted_by_mistake():
    """Both filters full: less than one in a hundred of those never seen."""
    memory = SecondUse(10_000)
    for number in range(199):
        memory.note(distinct(number, 100))
    assert memory.seen(distinct(1_000_000, 10_000)).mean() < 0.01


def test_the_memory_does_not_grow():
    """What was allocated at the start is all there is."""
    memory = SecondUse(1000)
    before = memory._young.nbytes + memory._old.nbytes
    for number in range(500):
        memory.note(distinct(number, 10))
    assert memory._young.nbytes + memory._old.nbytes == before <= 8192


# -- the spill ---------------------------------------------------------------------------------------------


def end(rank, sequence_id, tokens, blocks):
    rank.compute(sequence_id, tokens, blocks)
    rank.free(sequence_id, tokens, blocks)


@pytest.mark.parametrize("queue", [0, 100], ids=["step-thread", "spill-thread"])
def test_the_second_sequence_with_the_same_tokens_stores_them(queue):
    """[1, 2] is left once: nothing is put. Left again, with [3] behind it: two blocks, each before its alias."""
    rank = Rank(admission=SecondUse(), queue=queue)
    end(rank, 1, prompt(100, 2), [0, 1])
    assert rank.spill.drain(JOIN_S)
    assert (rank.pool.puts, rank.counters.unadmitted_blocks) == ([], 2)
    end(rank, 2, prompt(100, 3), [4, 5, 6])
    assert rank.spill.drain(JOIN_S)
    assert rank.pool.puts[0] == rank.keys.data(block_keys.hex_digests(chain(prompt(100, 2))))
    assert [len(keys) for keys in rank.pool.puts] == [2, 2]
    assert (rank.counters.unadmitted_blocks, rank.counters.spilled_blocks) == (3, 2)
    rank.spill.check_integrity()
    rank.spill.close()


def test_a_sequence_that_hit_the_blocks_on_the_device_is_the_second():
    """It computed none of them: they are stored as what the first one wrote."""
    rank, tokens = Rank(admission=SecondUse()), prompt(100, 2)
    end(rank, 1, tokens, [0, 1])
    rank.free(2, tokens, [0, 1])
    assert len(rank.pool.data_keys()) == len(rank.pool.alias_keys()) == 2
    assert rank.counters.renewed_blocks == 2


def test_blocks_that_are_not_admitted_hold_nobody_up():
    """Their fences are open at once, and what they contain is known."""
    rank, tokens = Rank(admission=SecondUse(), queue=100), prompt(100, 2)
    end(rank, 1, tokens, [0, 1])
    assert rank.spill.drain(JOIN_S)
    assert rank.directory.holds(np.array([0, 1]), chain(tokens)).all()
    rank.spill.before_write(2, np.array([0, 1]))
    assert rank.counters.fence_waits == 0
    rank.spill.close()


def test_a_sequence_without_free_event_counts_once():
    """Its blocks are taken, then the host tells of it: what was never left before is not stored for that."""
    rank, tokens = Rank(admission=SecondUse()), prompt(100, 2)
    rank.compute(1, tokens, [0, 1])
    rank.running[1] = freed(1, tokens, [0, 1]), np.ones(2, dtype=bool)
    rank.spill.hand_over(np.array([1]), 2)
    rank.free(1, tokens, [0, 1])
    assert rank.pool.puts == []
    end(rank, 3, tokens, [4, 5])
    assert len(rank.pool.data_keys()) == 2


def test_a_sequence_of_which_nothing_is_certain_counts_all_the_same():
    """Whether its blocks' content is known depends on the spill thread's pace, which differs between ranks."""
    rank, tokens = Rank(admission=SecondUse(), queue=100), prompt(100, 2)
    rank.free(1, tokens, [0, 1], given=[False, False])
    assert rank.spill.drain(JOIN_S)
    end(rank, 2, tokens, [4, 5])
    assert rank.spill.drain(JOIN_S)
    assert len(rank.pool.data_keys()) == 2
    rank.spill.close()


def test_replicas_decide_alike_about_blocks_of_each_other():
    """Each stores its part of the second sequence's blocks, and together all of them."""
    pool, tokens = ScriptedPool(), prompt(100, 7)
    for index in range(3):
        rank = Rank(pool=pool, replica=Replica(index, 3), admission=SecondUse())
        end(rank, 1, tokens, list(range(7)))
        assert rank.counters.spilled_blocks == 0
        end(rank, 2, tokens, list(range(7, 14)))
    assert len(pool.data_keys()) == len(pool.alias_keys()) == 7


def test_a_rank_that_began_anew_catches_up():
    """It alone has forgotten: no alias lies, its blocks are stored at the second end from then on."""
    tokens = prompt(100, 2)
    old, new = Rank(admission=SecondUse()), Rank(admission=SecondUse())
    end(old, 1, tokens, [0, 1])
    for sequence_id in (2, 3):
        for rank in (old, new):
            end(rank, sequence_id, tokens, [4, 5])
    assert [len(rank.pool.data_keys()) for rank in (old, new)] == [2, 2]


def test_what_becomes_of_a_block_is_noted():
    """The judge hears that it was not admitted, and then that it was stored."""
    noted = []

    class Notes:
        def offered(self, sequence, rows, fate):
            pass

        def settled(self, digests, rows, valid, stored, withdrawn, admitted, has_time, refused):
            noted.append((stored.tolist(), admitted.tolist(), refused))

        def names_due(self):
            return []

    rank, tokens = Rank(admission=SecondUse(), why=Notes()), prompt(100, 1)
    end(rank, 1, tokens, [0])
    end(rank, 2, tokens, [1])
    assert noted == [([False], [False], fates.PUT_FAILED), ([True], [True], fates.PUT_FAILED)]


def test_a_put_that_fails_is_tried_again_at_the_next_end():
    """Seen stays seen."""
    rank, tokens = Rank(admission=SecondUse()), prompt(100, 1)
    end(rank, 1, tokens, [0])
    rank.pool.refuse_put = lambda key: True
    end(rank, 2, tokens, [1])
    assert (rank.pool.alias_keys(), rank.counters.failed_put_blocks) == ([], 1)
    rank.pool.refuse_put = lambda key: False
    end(rank, 3, tokens, [2])
    assert len(rank.pool.alias_keys()) == 1


ENDS = [(100, [0]), (100, [1]), (200, [2, 3]), (100, [4, 5]), (200, [6])]
"""First token of a sequence and its blocks."""


def test_two_ranks_with_different_queues_decide_alike():
    """One stores at once, the other long after: what each is given in order decides, not when."""
    began, go_on = threading.Event(), threading.Event()
    slow = Rank(admission=SecondUse(), queue=100)
    slow.pool.before_put = lambda: (began.set(), go_on.wait(JOIN_S))
    ranks = [Rank(admission=SecondUse()), slow]
    for rank in ranks:
        for sequence_id, (first, blocks) in enumerate(ENDS):
            end(rank, sequence_id, prompt(first, len(blocks)), blocks)
    assert began.wait(JOIN_S)
    go_on.set()
    assert slow.spill.drain(JOIN_S)
    slow.spill.close()
    one, other = (sorted(rank.pool.keys()) for rank in ranks)
    assert one == other
    assert len(one) == 2 * 2
