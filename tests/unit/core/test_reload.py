"""A pool hit is used exactly as far as its bytes arrived."""

import numpy as np
import pytest

from mindie_kvpool_plugin.blocks import PoolHit, Prompt

from .parts import Rank, ScriptedPool, guarded, prompt


def spilled(pool, tokens, count):
    """A rank on another machine that stored the tokens' blocks."""
    rank = Rank(pool=pool)
    rank.compute(1, tokens, list(range(count)))
    rank.free(1, tokens, list(range(count)))
    pool.gets.clear()


def test_load_fills_the_promised_blocks_byte_for_byte():
    """Blocks 1..3 of a chain come back into [5, 6, 7]; block 0 was on the device."""
    pool, tokens = ScriptedPool(), prompt(100, 4)
    spilled(pool, tokens, 4)
    rank = Rank(pool=pool)
    blocks = [4, 5, 6, 7]
    lengths = rank.reload.load([rank.hit(tokens, blocks, computed=1, promised=4)])
    assert lengths.tolist() == [4]
    assert all(rank.is_right(tokens, blocks, index) for index in (1, 2, 3))
    assert rank.counters.reloaded_blocks == 3
    assert rank.counters.recomputed_blocks == 0


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_load_shortens_the_hit_at_the_first_block_that_did_not_arrive(lost):
    """What comes after a hole is of no use."""
    pool, tokens = ScriptedPool(), prompt(100, 4)
    spilled(pool, tokens, 4)
    key = pool.data_keys()[lost]
    pool.refuse_get = lambda asked: asked == key
    rank = Rank(pool=pool)
    lengths = rank.reload.load([rank.hit(tokens, [4, 5, 6, 7], computed=0, promised=4)])
    assert lengths.tolist() == [lost]
    assert rank.counters.failed_get_blocks == 1
    assert rank.counters.recomputed_blocks == 4 - lost


def test_load_believes_a_promise_as_far_as_the_prompt_goes():
    """More blocks promised than the prompt fills: its own are loaded, and so are the other prompt's."""
    pool, tokens, other = ScriptedPool(), prompt(100, 2), prompt(200, 2)
    spilled(pool, tokens, 2)
    spilled(pool, other, 2)
    rank = Rank(pool=pool)
    hits = [rank.hit(tokens, [4, 5, 6], computed=0, promised=3), rank.hit(other, [7, 8], computed=0, promised=2)]
    assert rank.reload.load(hits).tolist() == [2, 2]
    assert all(rank.is_right(tokens, [4, 5], index) for index in (0, 1))
    assert rank.counters.hook_errors == 0


def test_load_uses_no_more_than_the_other_ranks_have():
    """Another rank got one block less, so nobody uses it."""
    pool, tokens = ScriptedPool(), prompt(100, 3)
    spilled(pool, tokens, 3)
    rank = Rank(pool=pool, agree=lambda lengths: np.minimum(lengths, 2))
    assert rank.reload.load([rank.hit(tokens, [4, 5, 6], 0, 3)]).tolist() == [2]


def test_load_never_takes_away_what_is_on_the_device():
    """Ranks that cannot agree any more answer zero; computed blocks stay."""
    rank = Rank(agree=np.zeros_like)
    assert rank.reload.load([rank.hit(prompt(100, 3), [4, 5, 6], 2, 3)]).tolist() == [2]


def test_load_asks_for_nothing_while_the_ranks_cannot_agree():
    """They would use none of it; once they can, it is loaded as ever."""
    pool, tokens = ScriptedPool(), prompt(100, 3)
    spilled(pool, tokens, 3)
    rank = Rank(pool=pool, agree=lambda lengths: lengths if rank.can_agree else np.zeros_like(lengths))
    rank.can_agree = False
    assert rank.reload.load([rank.hit(tokens, [4, 5, 6], 1, 3)]).tolist() == [1]
    assert pool.gets == []
    assert (rank.counters.recomputed_ranks_disagree, rank.counters.recomputed_blocks) == (2, 2)
    assert rank.counters.ranks_agree == 0
    rank.can_agree = True
    assert rank.reload.load([rank.hit(tokens, [4, 5, 6], 1, 3)]).tolist() == [3]
    assert (rank.counters.recomputed_blocks, rank.counters.ranks_agree) == (2, 1)


def test_load_waits_for_the_device_and_gives_up_in_time():
    """The batch before never leaves the device: nothing is written, the host recomputes."""
    pool, tokens = ScriptedPool(), prompt(100, 2)
    spilled(pool, tokens, 2)
    rank = Rank(pool=pool, device_idle=lambda: False)
    assert rank.reload.load([rank.hit(tokens, [4, 5], 0, 2)]).tolist() == [0]
    assert pool.gets == []


def test_two_prompts_that_share_a_block_load_it_once():
    """The same new prefix twice in a step: one get per block."""
    pool, tokens = ScriptedPool(), prompt(100, 3)
    spilled(pool, tokens, 3)
    rank = Rank(pool=pool)
    hits = [rank.hit(tokens, [4, 5, 6], 0, 3), rank.hit(tokens, [4, 5, 7], 0, 3)]
    assert rank.reload.load(hits).tolist() == [3, 3]
    assert sum(len(keys) for keys in pool.gets) == 4
    assert rank.is_right(tokens, [4, 5, 7], 2)


def test_prompts_that_disagree_about_a_shared_block_are_not_both_served():
    """A collision of the host's hash gives two prompts one block; the second one recomputes."""
    pool, one, two = ScriptedPool(), prompt(100, 1), prompt(500, 1)
    spilled(pool, one, 1)
    spilled(pool, two, 1)
    rank = Rank(pool=pool)
    lengths = rank.reload.load([rank.hit(one, [4], 0, 1), rank.hit(two, [4], 0, 1)])
    assert lengths.tolist() == [1, 0]
    assert rank.is_right(one, [4], 0)


def test_blocks_already_holding_the_content_are_not_fetched():
    """The device still has the bytes though the scheduler counts them as a pool hit."""
    pool, tokens = ScriptedPool(), prompt(100, 2)
    rank = Rank(pool=pool)
    rank.compute(1, tokens, [4, 5])
    rank.free(1, tokens, [4, 5])
    assert rank.reload.load([rank.hit(tokens, [4, 5], 0, 2)]).tolist() == [2]
    assert pool.gets == []


def test_tokens_that_only_share_a_host_hash_load_nothing():
    """The alias said yes, the digest says no: one recompute, never a wrong block."""
    pool, tokens = ScriptedPool(), prompt(100, 1)
    spilled(pool, tokens, 1)
    rank = Rank(pool=pool)
    assert rank.reload.load([rank.hit([1, 2, 3, 4], [4], 0, 1)]).tolist() == [0]


@pytest.mark.parametrize("answer", ["raises", "too short"])
def test_a_pool_that_breaks_its_contract_costs_a_recompute(answer):
    """Backends must not raise nor forget keys; if one does, the other ranks still get an answer."""
    pool, tokens = ScriptedPool(), prompt(100, 2)
    spilled(pool, tokens, 2)

    def get(keys, buffers):
        if answer == "raises":
            raise RuntimeError("planted")
        return [True]

    pool.get = get
    asked = []
    rank = Rank(pool=guarded(pool), agree=lambda lengths: asked.append(lengths.tolist()) or lengths)
    assert rank.reload.load([rank.hit(tokens, [4, 5], 0, 2)]).tolist() == [0]
    assert asked == [[0]]


def test_a_pool_that_answers_too_few_keys_brings_nothing_without_its_guards_too():
    """An answer about other keys than were asked for says nothing about any of them."""
    pool, tokens = ScriptedPool(), prompt(100, 2)
    spilled(pool, tokens, 2)
    pool.get = lambda keys, buffers: [True]
    rank = Rank(pool=pool)
    assert rank.reload.load([rank.hit(tokens, [4, 5], 0, 2)]).tolist() == [0]


def test_load_and_spill_leave_a_pool_alone_that_is_in_trouble(monkeypatch):
    """Nothing is hashed, copied or asked; the hit is what the device has, and the ranks still agree."""
    agreed = []
    rank = Rank(agree=lambda lengths: agreed.append(lengths.tolist()) or lengths)
    monkeypatch.setattr(type(rank.pool), "is_available", property(lambda pool: False))
    tokens = prompt(100, 3)
    rank.compute(1, tokens, [0, 1, 2])
    rank.free(1, tokens, [0, 1, 2])
    assert rank.reload.load([rank.hit(tokens, [3, 4, 5], 1, 3)]).tolist() == [1]
    assert agreed == [[1]]
    assert rank.pool.puts == rank.pool.gets == []
    assert rank.counters.dropped_pool_left_alone == rank.counters.dropped_blocks == 3
    assert rank.counters.recomputed_pool_left_alone == rank.counters.recomputed_blocks == 2
    assert rank.counters.refused_keys == 0  # the breaker's alone


def test_load_leaves_other_ranks_prompts_to_them():
    """One batch for all data-parallel ranks: this one fetches its own prompt and takes the other's agreed length."""
    tokens = prompt(100, 2)
    pool = ScriptedPool()
    spilled(pool, tokens, 2)
    offered = []
    rank = Rank(pool=pool, agree=lambda lengths: offered.append(lengths.tolist()) or np.array([2, 1]))
    elsewhere = PoolHit(1, *(np.zeros(0, np.int64),) * 3, 0, 3, is_own=False)
    assert rank.reload.load([rank.hit(tokens, [4, 5], 0, 2), elsewhere]).tolist() == [2, 1]
    assert offered == [[2, 3]], "the other's hit is not ours to lower"
    assert rank.counters.promised_blocks == rank.counters.reloaded_blocks == 2


def test_a_rank_whose_loading_raised_still_tells_the_others():
    """They wait for it: whoever catches what was raised gives the hits up, once, and all compute them."""
    offered = []
    rank = Rank(agree=lambda lengths: offered.append(lengths.tolist()) or lengths)
    rank.memory.write = None
    rank.prefill.begin()
    with pytest.raises(TypeError):
        rank.prefill.run([], [rank.hit(prompt(100, 3), [3, 4, 5], 1, 3)])
    assert offered == []
    assert rank.prefill.give_up(1) is None
    assert offered == [[0]]


def test_what_the_ranks_agreed_on_stands_whatever_is_raised_afterwards():
    """A second answer would meet the others at their next batch."""
    offered = []
    rank = Rank(agree=lambda lengths: offered.append(lengths.tolist()) or lengths)
    rank.directory.rewrite = None
    rank.prefill.begin()
    hit = rank.hit(prompt(100, 3), [3, 4, 5], 1, 3)
    with pytest.raises(TypeError):
        rank.prefill.run([Prompt(0, 7, 12, np.arange(3), np.array([3, 4, 5]), 1)], [hit])
    assert rank.prefill.give_up(1).tolist() == [1]
    assert offered == [[1]]
