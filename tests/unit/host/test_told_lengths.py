"""Ranks that run different batches hear what each of them computes, or all end the step."""

from types import SimpleNamespace

import numpy as np
import pytest

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host.told_lengths import ToldLengths
from tests.unit.host.test_agreement import meet
from tests.unit.host.threads import JOIN_S, on_all

SIZE = 4


def batch(lengths=(), *, computed=(), promised=(), seq_lens, is_prefill=True):
    """One rank's batch; without lengths a dummy one."""
    ids = np.arange(len(lengths)) + 1 if lengths else np.array([9223372036854775])
    return SimpleNamespace(
        is_prefill=is_prefill,
        is_dummy_batch=not lengths,
        batch_is_prefill=None,
        all_sequence_ids=ids,
        batch_sequence_ids=list(ids[:, None]),
        batch_seq_len=np.array(lengths or [1]),
        computed_blocks=np.array(computed) if np.any(computed) else None,
        remote_computed_blocks=np.array(promised) if np.any(promised) else None,
        seq_lens=seq_lens,
    )


def step(told, metadata, arrived=None):
    """What a rank may use of its hits, and all lengths as the host's model inputs have them afterwards."""
    inputs = SimpleNamespace(seq_lens=metadata.seq_lens)
    told.begin(metadata)
    used = None if arrived is None else told.minimum(np.array(arrived, dtype=np.int64)).tolist()
    told.finish(metadata, inputs)
    assert inputs.seq_lens == metadata.seq_lens
    return used, inputs.seq_lens


def groups(name, count, ranks_each=1, timeout_s=JOIN_S):
    size = count * ranks_each
    agreements = meet(size, name, timeout_s)
    return [ToldLengths(agreements[rank], rank // ranks_each, count, SIZE) for rank in range(size)]


def test_every_group_hears_what_another_one_lost():
    """Group 1 got one block of three and all two of the second; group 0 has no hit; group 2 has no prompt."""
    announced = [[20], [4, 9], []]
    ranks = groups("test lost", 3)
    batches = [
        batch([20], seq_lens=announced),
        batch([16, 17], computed=[0, 1], promised=[3, 2], seq_lens=announced),
        batch(seq_lens=announced),
    ]
    arrived = [None, [1, 2], None]
    results = on_all([lambda i=i: step(ranks[i], batches[i], arrived[i]) for i in range(3)])
    assert [used for used, _ in results] == [None, [1, 2], None]
    assert [lengths for _, lengths in results] == [[[20], [12, 9], []]] * 3


def test_ranks_of_one_group_use_the_least_that_came():
    """And the other group hears of that."""
    announced = [[4], [8]]
    ranks = groups("test least", 2, ranks_each=2)
    batches = [batch([16], promised=[3], seq_lens=announced) for _ in range(2)]
    batches += [batch([8], seq_lens=announced) for _ in range(2)]
    arrived = [[3], [2], None, None]
    results = on_all([lambda i=i: step(ranks[i], batches[i], arrived[i]) for i in range(4)])
    assert results == [([2], [[8], [8]])] * 2 + [(None, [[8], [8]])] * 2


def test_a_rank_that_stumbles_keeps_what_is_on_the_device():
    """It takes part with zeros; what was computed before stays."""
    announced = [[4], [8]]
    ranks = groups("test stumbles", 2)
    batches = [batch([16], computed=[1], promised=[3], seq_lens=announced), batch([8], seq_lens=announced)]
    results = on_all([lambda: step(ranks[0], batches[0], [0]), lambda: step(ranks[1], batches[1])])
    assert results == [([1], [[12], [8]]), (None, [[12], [8]])]


def test_a_prompt_that_is_cached_as_a_whole_computes_its_last_block():
    """The host announces no tokens of it, on the device or in the pool, and computes a block."""
    announced = [[0, 3], [0]]
    ranks = groups("test whole", 2)
    batches = [
        batch([16, 7], computed=[1, 1], promised=[4, 1], seq_lens=announced),
        batch([8], computed=[2], promised=[2], seq_lens=announced),
    ]
    results = on_all([lambda: step(ranks[0], batches[0], [4]), lambda: step(ranks[1], batches[1])])
    assert [lengths for _, lengths in results] == [[[SIZE, 3], [SIZE]]] * 2


def test_lengths_are_those_computed_whatever_was_announced():
    """With sequence parallelism the host takes off the hits on the last rank only: two of four blocks here."""
    announced = [[12], [8]]
    ranks = groups("test computed", 2)
    batches = [batch([20], computed=[[1, 1]], promised=[[2, 2]], seq_lens=announced), batch([8], seq_lens=announced)]
    results = on_all([lambda: step(ranks[0], batches[0], [4]), lambda: step(ranks[1], batches[1])])
    assert results == [([4], [[4], [8]]), (None, [[4], [8]])]


def test_decodes_concern_nobody_else():
    """No other rank is there, and none is waited for."""
    told = ToldLengths(meet(2, "test decodes", timeout_s=0.2)[0], 0, 2, SIZE)
    assert step(told, batch([5], seq_lens=[[1]], is_prefill=False)) == (None, [[1]])


def test_hits_are_not_used_when_the_host_tells_nobody():
    """Its schedulers did not meet: every rank runs for itself, and nobody could hear of a loss."""
    told = ToldLengths(meet(2, "test untold", timeout_s=0.2)[0], 0, 2, SIZE)
    assert step(told, batch([16], computed=[1], promised=[3], seq_lens=[[4]]), [3]) == ([1], [[4]])


def test_another_number_of_prompts_than_announced_ends_the_step():
    """The others would wait for tokens that never come."""
    told = ToldLengths(meet(2, "test number", timeout_s=0.2)[0], 1, 2, SIZE)
    with pytest.raises(HostCompatError, match="rank 1 got 1 prompts, and the host announced 2"):
        told.begin(batch([16], seq_lens=[[4], [4, 4]]))


@pytest.mark.parametrize("arrived", [None, [2]], ids=["without hits", "with hits"])
def test_a_rank_that_is_gone_ends_the_step_of_the_others(arrived):
    """Within the bound, with what to do; and the next step at once: nothing is known of the others then, either."""
    told = groups("test gone", 2, timeout_s=0.2)[0]
    announced = [[8], [8]]
    for _ in range(2):
        promised = [2] if arrived else [0]
        with pytest.raises(HostCompatError, match=r"rank 0 could not hear .*kv_pool\.agreement: restart"):
            step(told, batch([16], promised=promised, seq_lens=announced), arrived)
