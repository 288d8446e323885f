"""What is faster to compute than to load is computed: by what both take, alike on all ranks, and never to and fro."""

import dataclasses
from collections import defaultdict

import numpy as np
import pytest

from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.held_up import UNKNOWN_BUDGET_S
from mindie_kvpool_plugin.core.load_gate import NUM_FIGURES, LoadGate
from mindie_kvpool_plugin.core.load_pace import COMES_BACK, LEAST_LOADS, LOADS, PROBE_S, Figures
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.pools.base import Answers, Elsewhere
from mindie_kvpool_plugin.pools.guards.checked import CheckedPool
from mindie_kvpool_plugin.pools.local_dram import LocalDram

from .parts import BLOCK_SIZE, ArrayMemory, Rank, prompt

CALL_S, BLOCK_S = 0.0005, 0.0005
"""A get's, and each block's at full speed."""
COMPUTE_S = 0.004
"""A block's: loading pays eight times."""
LONG = 256


class Clock:
    """Time that passes only where it is said to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class TimedPool(LocalDram):
    """A pool that has everything and takes its time.

    Attributes:
        slower: than at full speed, times.
        call_s: a get's own.
        stall_s: what the next get takes longer.
        gets: blocks of each call.
    """

    def __init__(self, clock):
        super().__init__(1)
        self._clock = clock
        self.slower, self.stall_s = 1.0, 0.0
        self.call_s = CALL_S
        self.gets = []

    def get(self, keys, buffers):
        self.gets.append(len(keys))
        self._clock.now += self.call_s + self.slower * BLOCK_S * len(keys) + self.stall_s
        self.stall_s = 0.0
        return [True] * len(keys)


class PartedPool(TimedPool):
    """One of which part is the process's own memory; ``slower`` is what the network to the rest is.

    Attributes:
        lies: whether the next blocks that are asked about lie elsewhere, in the order of their prompts.
        questions: how often that was asked.
        is_silent: it does not answer.
    """

    has_own_part = True

    def __init__(self, clock):
        super().__init__(clock)
        self.lies, self.questions, self.is_silent, self.question_s = {}, 0, False, 0.0

    def lie_elsewhere(self, keys):
        self.questions += 1
        self._clock.now += self.question_s
        return [] if self.is_silent else Answers([self.lies[key] for key in keys])

    def get(self, keys, buffers):
        count = sum(self.lies[key] for key in keys)
        self.gets.append(len(keys))
        own_s = (self.call_s + BLOCK_S * (len(keys) - count)) * (count < len(keys))
        elsewhere_s = (self.call_s + self.slower * BLOCK_S * count) * (count > 0)
        self._clock.now += own_s + elsewhere_s
        return Answers([True] * len(keys), elsewhere=Elsewhere(count, elsewhere_s))


class Node:
    """One rank and the seconds its prompts take: what is not loaded is computed."""

    def __init__(
        self,
        token_s=COMPUTE_S / BLOCK_SIZE,
        slower=1.0,
        agree=None,
        decode_s=0.0,
        put_block_s=0.0,
        pool=TimedPool,
        **more,
    ):
        self.clock = Clock()
        self.pool = pool(self.clock)
        self.pool.slower = slower
        self.compute_s = token_s * BLOCK_SIZE
        self.known_token_s, self.known_decode_s = token_s, decode_s
        self.counters = Counters()
        self.gate = LoadGate(BLOCK_SIZE, self, self.counters, self.clock, **more)
        self.put_block_s = put_block_s
        self.gate.put_block_s = lambda: self.put_block_s
        self.rank = Rank(
            pool=self.pool,
            memory=ArrayMemory(num_blocks=1024),
            agree=agree or self._hears,
            clock=self.clock,
            load_gate=self.gate,
            counters=self.counters,
        )
        self._number = 0

    def token_s(self):
        return self.known_token_s

    def decode_s(self):
        return self.known_decode_s

    def _hears(self, lengths):
        self.gate.hears(self.gate.tells())
        return lengths

    def hit(self, count=LONG, blocks_at=0):
        """Of a prompt."""
        self._number += 1
        tokens = prompt(1000 * self._number, count)
        return self.rank.hit(tokens, list(range(blocks_at, blocks_at + count)), 0, count)

    def serve(self, count=LONG, idle_s=1.0):
        """A prompt all of whose blocks are promised: how many were loaded, and seconds until all is there."""
        return self._serve(self.hit(count), count, idle_s)

    def serve_lying(self, *lies, idle_s=1.0):
        """One whose blocks lie there: in its own part (0) or elsewhere (1)."""
        hit = self.hit(len(lies))
        keys = self.rank.keys.data(block_keys.hex_digests(block_keys.digests_of(hit.tokens, BLOCK_SIZE, None)))
        self.pool.lies = dict(zip(keys, map(bool, lies), strict=True))
        return self._serve(hit, len(lies), idle_s)

    def _serve(self, hit, count, idle_s):
        self.rank.directory.forget()
        self.rank.held.seconds = 0.0
        began = self.clock.now
        (loaded,) = self.rank.reload.load([hit]).tolist()
        self.clock.now += self.compute_s * (count - loaded)
        seconds = self.clock.now - began
        self.clock.now += idle_s
        return loaded, seconds


def test_everything_is_loaded_before_there_are_figures():
    """Neither what loading takes nor what computing takes is known."""
    node = Node(slower=30.0)
    node.known_token_s = 0.0
    assert [node.serve()[0] for _ in range(2 * LOADS)] == [LONG] * 2 * LOADS


def test_loads_that_pay_stay_loads():
    """Whatever their size, and in few calls."""
    node = Node()
    assert all(node.serve(count)[0] == count for count in (LONG, 1, 40, LONG, 7, 3, LONG, LONG, 1, 12) * 3)
    node.pool.gets.clear()
    node.serve()
    assert sum(node.pool.gets) == LONG
    assert len(node.pool.gets) <= 4
    assert (node.counters.load_is_on, node.counters.load_switches, node.counters.load_probes) == (1, 0, 0)


def test_a_pool_that_is_slower_than_computing_is_not_asked():
    """Not one get, once that is known; and it is told what was weighed."""
    node = Node(slower=100.0)
    for _ in range(LEAST_LOADS + 1):
        node.serve(idle_s=0.1)
    node.pool.gets.clear()
    before = node.counters.recomputed_cheaper
    assert [node.serve(idle_s=0.1)[0] for _ in range(6)] == [0] * 6
    assert node.pool.gets == []
    assert node.counters.recomputed_cheaper - before == 6 * LONG
    assert node.counters.recomputed_not_delivered == 0
    counters = node.counters
    assert (counters.load_is_on, counters.load_switches) == (0, 1)
    assert counters.load_block_seconds == pytest.approx(100 * BLOCK_S, rel=0.05)
    assert counters.compute_block_seconds == pytest.approx(COMPUTE_S)
    assert counters.declined_load_seconds > counters.declined_compute_seconds >= 6 * LONG * COMPUTE_S


def test_a_slow_load_ends_on_its_way_and_keeps_what_arrived():
    """The pool got slow since the last load: a small piece tells, and the rest is computed in the same step."""
    node = Node()
    for _ in range(LOADS):
        node.serve()
    node.pool.slower = 1000.0
    loaded, seconds = node.serve()
    assert 0 < loaded <= 4
    assert node.counters.recomputed_cheaper == LONG - loaded
    assert seconds < 3 * LONG * COMPUTE_S


def test_the_figures_of_a_load_that_was_ended_are_those_of_all_of_it():
    """Else short slow loads beside long fast ones would look like a pool whose calls are slow and blocks are free."""
    node = Node()
    for _ in range(LOADS):
        node.serve()
    node.pool.slower = 100.0
    for _ in range(LOADS):
        node.serve(idle_s=0.1)
    assert node.counters.load_is_on == 0


@pytest.mark.parametrize("stall_s", [0.01, 1.0, 60.0])
def test_one_stall_turns_nothing(stall_s):
    """Nor two in a row."""
    node = Node()
    for _ in range(LOADS):
        node.serve()
    for _ in range(2):
        node.pool.stall_s = stall_s
        node.serve()
    assert [node.serve()[0] for _ in range(5)] == [LONG] * 5
    assert node.counters.load_switches == 0


@pytest.mark.parametrize("slower", [10.0, 100.0, 1000.0])
def test_a_slow_pool_costs_at_most_a_twentieth(slower):
    """Over 200 prompts of all lengths, the first ones included."""
    node = Node(slower=slower)
    sizes = np.random.default_rng(1).integers(1, LONG, 200).tolist()
    taken = sum(node.serve(count)[1] for count in sizes)
    assert taken <= 1.05 * sum(sizes) * COMPUTE_S
    assert node.counters.load_switches <= 1


def test_a_fast_pool_saves_nearly_all_that_it_can():
    """Beside one call for every prompt."""
    node = Node()
    sizes = np.random.default_rng(1).integers(1, LONG, 200).tolist()
    taken = sum(node.serve(count)[1] for count in sizes)
    best = sum(min(CALL_S + BLOCK_S * count, COMPUTE_S * count) for count in sizes)
    computed = sum(sizes) * COMPUTE_S
    assert computed - taken >= 0.95 * (computed - best)


def test_a_load_that_nobody_would_feel_is_one_call():
    """Nine blocks take 5 ms, calls of four cost a tenth of that each; a hundred blocks begin with four."""
    node = seen(Node())
    for count, first in ((9, 9), (100, 4)):
        node.pool.gets.clear()
        assert node.serve(count)[0] == count
        assert node.pool.gets[0] == first


def far_away(compute_s):
    """A node whose pool takes ten times as long, for a call and for a block."""
    node = Node(token_s=compute_s / BLOCK_SIZE, slower=10.0)
    node.pool.call_s = 10 * CALL_S
    return node


def test_hits_too_short_to_be_worth_a_call_are_computed():
    """A block takes 5 ms, a call as much again, and computing one 7 ms: two pay, one does not."""
    node = far_away(compute_s=0.007)
    for count in (1, 64, 1, 64, 1, 64, 1, 64):
        node.serve(count)
    assert node.counters.load_call_seconds == pytest.approx(10 * CALL_S, rel=0.5)
    assert [node.serve(count)[0] for count in (1, 64)] == [0, 64]


def test_what_nobody_would_feel_is_loaded_whatever_computing_takes():
    """A model that computes in no time, as on a laptop: nine blocks take 5 ms, a hundred are left alone."""
    node = Node(token_s=1e-6)
    for _ in range(2 * LOADS):
        node.serve(100)
    assert node.counters.load_is_on == 0
    assert [node.serve(count)[0] for count in (9, 100, 9)] == [9, 0, 9]


def test_loading_comes_back_when_the_pool_does():
    """One prompt is tried every PROBE_S; as many that paid as were needed to stop turn it on again."""
    node = Node(slower=20.0)
    for _ in range(2 * LOADS):
        node.serve(idle_s=0.1)
    assert node.counters.load_is_on == 0
    node.pool.slower, began = 1.0, node.clock.now
    while not node.counters.load_is_on:
        node.serve(idle_s=0.5)
        assert node.clock.now - began < (LEAST_LOADS + 4) * PROBE_S
    assert node.serve()[0] == LONG
    assert node.counters.load_switches == 2


def test_probes_of_a_very_slow_pool_are_rare():
    """A block takes half a second then: of the time no more than a twentieth is spent on finding out."""
    node = Node(slower=1000.0)
    while node.counters.load_is_on:
        node.serve()
    began, spent = node.clock.now, 0.0
    while node.clock.now - began < 600:
        spent += max(0.0, node.serve()[1] - LONG * COMPUTE_S)
    assert 1 <= node.counters.load_probes <= 600 / PROBE_S
    assert spent <= 0.02 * 600


def test_hits_that_were_never_worth_a_call_are_tried_again():
    """All prompts are short, so nothing is loaded any more: what a call takes would never be measured again."""
    node = far_away(compute_s=0.007)
    for count in (1, 64, 1, 64, 1, 64, 1, 64):
        node.serve(count)
    for _ in range(60):
        node.serve(1, idle_s=1.0)
    assert node.counters.load_probes >= 4
    assert node.counters.load_switches == 0


@pytest.mark.parametrize("slower", [7.0, 7.5, 8.0, 8.5, 9.0])
def test_a_pool_about_as_fast_as_computing_does_not_flap(slower):
    """Half an hour of prompts whose loads vary by a third: turned off or left on, and seldom again."""
    node = Node(slower=slower)
    noise = np.random.default_rng(3)
    began = node.clock.now
    while node.clock.now - began < 1800:
        node.pool.slower = slower * noise.uniform(0.67, 1.33)
        node.serve()
    assert node.counters.load_switches <= 1800 / (LEAST_LOADS * PROBE_S) / 4


def alike(nodes):
    """What each rank would ask for now."""
    computed, promised = np.array([0, 3]), np.array([5, LONG])
    return {tuple(node.gate.choose(computed, promised).tolist()) for node in nodes}


# -- what is far from paying is not tried three times ----------------------------------------------------------


def test_a_first_load_far_from_paying_is_the_only_one_at_once():
    """It took 25 times as long as computing; prompts that come right after it are computed, and one is tried later."""
    node = Node(slower=200.0)
    node.serve(idle_s=0.1)
    node.pool.gets.clear()
    assert [node.serve(idle_s=0.1)[0] for _ in range(6)] == [0] * 6
    assert node.pool.gets == []
    node.clock.now += PROBE_S
    node.serve(), node.serve()
    assert node.pool.gets == [1]
    assert (node.counters.load_is_on, node.counters.load_switches) == (0, 1)


def test_a_first_load_somewhat_slower_than_computing_is_no_reason_yet():
    """Twice: that takes three loads."""
    node = Node(slower=16.0)
    for _ in range(LEAST_LOADS):
        assert node.counters.load_is_on == 1
        node.serve(idle_s=0.1)


def test_a_first_load_that_stalled_costs_one_probe():
    """A connection was made, perhaps: the first load that pays turns it on again, and no other stall turns it off."""
    node = Node()
    node.pool.stall_s = 10.0
    node.serve(idle_s=1.0)
    began = node.clock.now
    while node.serve(idle_s=1.0)[0] == 0:
        assert node.clock.now - began < PROBE_S + 5.0 + 10 * LONG * COMPUTE_S
    node.serve()
    assert node.counters.load_is_on == 1
    node.pool.stall_s = 10.0
    node.serve()
    assert [node.serve()[0] for _ in range(5)] == [LONG] * 5
    assert node.counters.load_switches == 2


def test_puts_far_slower_than_computing_stand_for_loads_that_nobody_made():
    """As long as they are there is hardly a probe; soon one of one block once they are not."""
    node = Node(slower=200.0, put_block_s=200 * BLOCK_S)
    assert [node.serve()[0] for _ in range(90)] == [0] * 90
    assert node.pool.gets == []
    assert (node.counters.load_is_on, node.counters.load_probes) == (0, 0)
    node.put_block_s = BLOCK_S
    assert [node.serve()[0] for _ in range(2)] == [0, 1]
    assert node.pool.gets == [1]


def test_puts_that_nobody_would_feel_are_no_reason():
    """A model that computes in no time, as on a laptop: a millisecond is many times as long, and not much."""
    node = Node(token_s=1e-6, put_block_s=2 * BLOCK_S)
    assert [node.serve(4)[0] for _ in range(LEAST_LOADS)] == [4] * LEAST_LOADS


def test_puts_that_stay_slow_leave_a_probe_now_and_then():
    """For a two thousandth of the time at most: loads may go another way, and a single one that pays turns them on."""
    node = Node(put_block_s=200 * BLOCK_S)
    loaded, since_s = [0], node.clock.now
    while not loaded[-1]:
        loaded.append(node.serve()[0])
    assert 2000 * node.put_block_s <= node.clock.now - since_s <= 2000 * node.put_block_s + 10
    assert [node.serve()[0] for _ in range(4)] == [LONG] * 4


def test_puts_somewhat_slower_than_computing_tell_nothing_of_loads():
    """They may go another way."""
    node = Node(put_block_s=2 * COMPUTE_S)
    assert [node.serve()[0] for _ in range(3)] == [LONG] * 3


def test_what_one_rank_doubts_all_leave_alone():
    """Its word is enough, and one probe that pays on both turns both on."""
    nodes = [Node(put_block_s=of, agree=lambda lengths: lengths) for of in (200 * BLOCK_S, 0.0)]

    def step():
        for node in nodes:
            node.clock.now += 250.0
        lengths = [node.serve()[0] for node in nodes]
        agreed = np.min([node.gate.tells() for node in nodes], axis=0)
        for node in nodes:
            node.gate.hears(agreed)
        return min(lengths)

    assert [step() for _ in range(5)] == [0, 0, LONG, LONG, LONG]
    assert {node.counters.load_is_on for node in nodes} == {1}


def test_ranks_that_measure_different_speeds_choose_alike():
    """At every step: the slowest one's figures count, which change; one rank misses an exchange now and then."""
    nodes = [Node(slower=slower, agree=lambda lengths: lengths) for slower in (1.0, 3.0, 30.0)]
    random, chosen = np.random.default_rng(5), []
    for step in range(400):
        if step % 40 == 0:
            nodes[2].pool.slower = random.choice([1.0, 4.0, 30.0])
        for node in nodes:
            node.serve(int(random.integers(1, LONG)), idle_s=random.uniform(0.5, 2.0))
        agreed = np.min([node.gate.tells() for node in nodes], axis=0)
        missing = nodes[step % 3] if step % 50 == 49 else None
        for node in nodes:
            if node is not missing:
                node.gate.hears(agreed)
        if missing is None and step % 50 != 0:
            assert len({node.counters.load_is_on for node in nodes}) == 1
            chosen.append(alike(nodes))
    assert all(len(each) == 1 for each in chosen)
    assert len(set.union(*chosen)) > 1
    assert sum(node.counters.load_switches for node in nodes) <= 3 * 20


def test_a_rank_that_says_nothing_leaves_the_others_figures():
    """Zeros: of one that gave up, or loads always."""
    node = Node(slower=100.0)
    while node.counters.load_is_on:
        node.serve()
    node.gate.hears(np.minimum(node.gate.tells(), np.zeros(NUM_FIGURES, dtype=np.int64)))
    assert node.counters.load_is_on == 0


def test_a_rank_that_was_left_behind_follows():
    """It missed when the others turned loading off, and turns with the next exchange."""
    node, behind = Node(slower=100.0), Node()
    while node.counters.load_is_on:
        node.serve()
    behind.gate.hears(np.minimum(node.gate.tells(), behind.gate.tells()))
    assert behind.counters.load_is_on == 0


def test_blocks_of_two_prompts_are_loaded_in_the_order_of_their_tokens():
    """Whatever ids they have: what arrived before the load ended is a prefix of each prompt."""
    node = Node()
    for _ in range(LOADS):
        node.serve()
    node.pool.slower = 1000.0
    node.rank.directory.forget()
    node.rank.held.seconds = 0.0
    first, second = node.hit(40, blocks_at=500), node.hit(40, blocks_at=100)
    lengths = node.rank.reload.load([first, second]).tolist()
    assert lengths[0] > 0
    assert lengths[1] == 0


def test_coming_back_takes_a_clear_gain():
    """A pool that loads a little faster than computing is not worth turning for."""
    node = Node(slower=20.0)
    while node.counters.load_is_on:
        node.serve()
    node.pool.slower = (COMES_BACK + 0.1) * COMPUTE_S / BLOCK_S
    for _ in range(300):
        node.serve()
    assert node.counters.load_is_on == 0


# -- a step is not held up without bound --------------------------------------------------------------------


def seen(node, count=LOADS):
    """The node after some loads, so that there are figures."""
    for _ in range(count):
        node.serve()
    return node


def test_a_budget_is_what_a_step_may_be_held_up():
    """At half a millisecond a block 20 ms bring about 38 blocks, and these first; the rest is computed."""
    node = Node(budget_s=0.02)
    before = seen(node).counters.recomputed_over_budget
    began = node.clock.now
    node.rank.held.seconds = 0.0
    loaded = node.rank.reload.load([node.hit(blocks_at=0), node.hit(blocks_at=LONG)]).tolist()
    assert node.clock.now - began <= 0.02
    assert 30 <= loaded[0] <= 40
    assert loaded[1] == 0
    assert node.counters.recomputed_over_budget - before == 2 * LONG - loaded[0]
    assert node.counters.recomputed_cheaper == 0
    assert node.counters.reload_budget_seconds == 0.02


def test_what_fits_into_the_budget_is_loaded_whole():
    """It is a bound, not a pace."""
    assert seen(Node(budget_s=0.2)).serve()[0] == LONG


def test_the_wait_at_a_fence_counts():
    """Of 20 ms a fence took 15; nothing is left when it took all."""
    node = seen(Node(budget_s=0.02))
    node.rank.held.seconds = 0.0
    node.rank.held.seconds += 0.015
    (loaded,) = node.rank.reload.load([node.hit()]).tolist()
    assert 5 <= loaded <= 10
    node.pool.gets.clear()
    node.rank.held.seconds = 0.0
    node.rank.held.seconds += 0.03
    assert node.rank.reload.load([node.hit()]).tolist() == [0]
    assert node.pool.gets == []


def test_a_budget_holds_where_the_pool_gets_slow_on_the_way():
    """Computing would take longer, yet the operator said how long a step may be held up; a piece may overshoot."""
    node = seen(Node(budget_s=0.2))
    node.pool.slower = 5.0
    loaded, _ = node.serve()
    assert 60 <= loaded <= 90
    assert node.counters.recomputed_over_budget == LONG - loaded


def test_without_an_operators_budget_a_load_that_pays_is_not_cut():
    """25 steps of a millisecond are less than the load takes; computing in that step would hold it up for longer."""
    node = seen(Node(decode_s=0.001))
    assert node.serve()[0] == LONG
    assert node.counters.reload_budget_seconds == pytest.approx(0.025)
    assert node.counters.recomputed_over_budget == 0


def test_prompts_in_chunks_are_loaded_within_so_many_decode_steps():
    """Those that decode would go on between the chunks."""
    loaded, _ = seen(Node(decode_s=0.001, is_chunked=True)).serve()
    assert 40 <= loaded <= 50


def test_no_load_takes_longer_than_computing_and_the_budget():
    """Whatever the pool does: of every speed, from one load to the next, at all stalls."""
    random, node = np.random.default_rng(7), Node(decode_s=0.03)
    for _ in range(300):
        node.pool.slower = float(random.choice([1, 1, 5, 50, 500]))
        count = int(random.integers(1, LONG))
        began = node.clock.now
        node.rank.directory.forget()
        node.rank.held.seconds = 0.0
        node.rank.reload.load([node.hit(count)])
        # a piece that had begun is waited for: at most four times as many blocks as the one before
        largest = max(node.pool.gets, default=0) * BLOCK_S * node.pool.slower
        assert node.clock.now - began <= max(25 * 0.03, COMPUTE_S * count) + largest + CALL_S
        node.pool.gets.clear()
        node.clock.now += 1.0


def test_before_there_are_figures_a_load_takes_five_seconds():
    """Nobody has computed or decoded yet, and the pool is a thousand times slower than it should be."""
    node = Node(slower=1000.0)
    node.known_token_s = 0.0
    began = node.clock.now
    (loaded,) = node.rank.reload.load([node.hit()]).tolist()
    assert 1 <= loaded <= 20
    assert node.clock.now - began <= UNKNOWN_BUDGET_S


# -- blocks lie in the own part of the pool or elsewhere ----------------------------------------------------------

OWN, ELSEWHERE = (0,) * LONG, (1,) * LONG


def parted(slower=40.0):
    """A node that has seen prompts of both places; from elsewhere a block takes five times as long as computing it."""
    node = Node(slower=slower, pool=PartedPool)
    for _ in range(LOADS):
        node.serve_lying(*OWN)
        node.serve_lying(*ELSEWHERE)
    node.pool.gets.clear()
    return node


def test_what_a_place_takes_is_told_apart():
    """By mixed loads, too; in one line the one would turn the other off."""
    node = parted()
    for _ in range(LOADS):
        node.serve_lying(*[0] * 60, 1, *[0] * 60)
    assert node.counters.load_block_seconds == pytest.approx(BLOCK_S, rel=0.1)
    assert node.counters.load_elsewhere_block_seconds == pytest.approx(40 * BLOCK_S, rel=0.1)
    assert (node.counters.load_is_on, node.counters.load_elsewhere_is_on) == (1, 0)


def test_what_lies_elsewhere_is_computed_where_that_is_faster_and_the_own_part_is_loaded():
    """Whichever comes first, and of one prompt as far as it lies in the own part."""
    node = parted()
    half = LONG // 2
    for _ in range(3):
        assert node.serve_lying(*OWN, idle_s=0.1)[0] == LONG
        assert node.serve_lying(*ELSEWHERE, idle_s=0.1)[0] == 0
        assert node.serve_lying(*OWN[:half], *ELSEWHERE[half:], idle_s=0.1)[0] == half
    assert node.counters.load_switches == 1
    assert node.counters.failed_get_blocks == 0


def test_a_few_blocks_elsewhere_are_worth_the_many_behind_them():
    """One takes five blocks' computing: twenty more come after it.  After two tens of them three do not pay."""
    node = parted()
    one, many = (*[0] * 20, 1, *[0] * 20), (*[0] * 20, *[1] * 20, *[0] * 3)
    assert node.serve_lying(*one, idle_s=0.1)[0] == len(one)
    assert node.serve_lying(*many, idle_s=0.1)[0] == 20


def test_the_prefix_that_saves_most_is_chosen():
    """Of all prefixes of each prompt; a place that takes longer than computing counts a quarter more than that."""
    random, worth, second = np.random.default_rng(11), 10, 10**12
    for _ in range(200):
        own, elsewhere = random.integers(1, 20, 2).tolist()
        lies = [random.random(random.integers(1, 12)) < 0.5 for _ in range(random.integers(1, 5))]
        gate = LoadGate(1, Node(), Counters(), Clock())
        gate.hears(np.array([0, -worth * second, -own * second, 0, 0, -1, -elsewhere * second, 0, 0, -1]))
        price = [each if each <= worth else max(each, worth / COMES_BACK) for each in (own, elsewhere)]
        best = [_most_saved([worth - price[int(at)] for at in prompt]) for prompt in lies]
        computed = np.arange(len(lies))
        chosen = gate.choose(computed, computed + [len(prompt) for prompt in lies], find=lambda at=lies: np.hstack(at))
        assert (chosen - computed).tolist() == best


def _most_saved(gains):
    return max(range(len(gains) + 1), key=lambda end: (sum(gains[:end]), end))


def test_where_blocks_lie_is_not_asked_where_nothing_would_be_loaded():
    """A model that computes in no time."""
    node = parted(slower=2.0)
    node.known_token_s = 1e-7
    while node.counters.load_is_on or node.counters.load_elsewhere_is_on:
        node.serve_lying(*OWN), node.serve_lying(*ELSEWHERE)
    node.pool.questions = 0
    assert [node.serve_lying(*lies, idle_s=0.1)[0] for lies in (OWN, ELSEWHERE)] == [0, 0]
    assert node.pool.questions == 0


def test_a_place_comes_back_by_itself():
    """Of a prompt that goes on elsewhere one block of there is tried, behind what is loaded anyway."""
    node = parted()
    node.pool.slower, began = 1.0, node.clock.now
    while not node.counters.load_elsewhere_is_on:
        node.serve_lying(*[0] * 100, *[1] * 100, idle_s=0.5)
        assert node.clock.now - began < (LEAST_LOADS + 4) * PROBE_S
    assert node.serve_lying(*ELSEWHERE)[0] == LONG
    assert node.counters.load_is_on == 1


def test_a_probe_of_elsewhere_ends_with_its_first_block():
    """It is as slow as before: a hundred blocks of the own part, and one."""
    node = parted()
    node.clock.now += 10_000.0
    lies = (*[0] * 100, *[1] * 100)
    found = [node.serve_lying(*lies, idle_s=0.1)[0] for _ in range(3)]
    assert sorted(found) == [100, 100, 101]
    assert sum(node.pool.gets) == 301


def test_prompts_of_both_places_take_at_most_a_twentieth_longer_than_the_best():
    """Over 200 of all lengths, from the first one on."""
    node, random = Node(slower=40.0, pool=PartedPool), np.random.default_rng(1)
    taken = best = 0.0
    for _ in range(200):
        size, own = int(random.integers(1, LONG)), float(random.choice([0.0, 0.5, 1.0]))
        lies = [0] * int(own * size) + [1] * (size - int(own * size))
        taken += node.serve_lying(*lies)[1]
        best += (CALL_S + BLOCK_S * lies.count(0)) * (0 in lies) + COMPUTE_S * lies.count(1)
    assert taken <= 1.05 * best


def test_elsewhere_gets_slow_on_the_way():
    """Both paid so far: the load ends soon after the first slow blocks, and what arrived stays."""
    node = parted(slower=2.0)
    node.pool.slower = 1000.0
    loaded, seconds = node.serve_lying(*[0] * 100, *[1] * 100)
    assert 100 <= loaded <= 140
    assert seconds <= 200 * COMPUTE_S + 40 * 1000 * BLOCK_S
    assert node.counters.recomputed_cheaper == 200 - loaded


def test_a_pool_that_does_not_say_where_blocks_lie_is_left_alone():
    """For this step: it would not answer the get either."""
    node = parted()
    node.pool.is_silent = True
    before = node.counters.recomputed_pool_left_alone
    assert node.serve_lying(*OWN)[0] == 0
    assert node.pool.gets == []
    assert node.counters.recomputed_pool_left_alone - before == LONG


def test_the_question_where_blocks_lie_counts_in_the_budget():
    """Of 20 ms it takes 15; and the step was held up by all of it."""
    node = Node(budget_s=0.02, pool=PartedPool)
    for _ in range(LOADS):
        node.serve_lying(*OWN)
    node.pool.question_s = 0.015
    loaded, _ = node.serve_lying(*OWN)
    assert 5 <= loaded <= 10
    assert 0.0175 <= node.rank.held.seconds <= 0.02


def test_a_slow_load_says_nothing_of_a_place_it_did_not_come_to():
    """The own part has become slow, and the load ends before the first block of elsewhere."""
    node = Node(slower=2.0, pool=PartedPool)
    for _ in range(LOADS):
        node.serve_lying(*OWN), node.serve_lying(*ELSEWHERE)
    known = node.gate.elsewhere.figures
    node.pool.call_s = 1.0
    for _ in range(LOADS):
        node.gate.elsewhere.is_probe_due = False
        assert node.serve_lying(*OWN, *ELSEWHERE[:4], idle_s=0.1)[0] < LONG
    assert node.gate.elsewhere.figures == known


def test_blocks_dealt_to_other_ranks_lie_as_ones_own():
    """Every second block is this rank's; those of the second half lie elsewhere."""
    node = parted()
    hit = node.hit(LONG)
    chain = block_keys.digests_of(hit.tokens, BLOCK_SIZE, None)
    keys = node.rank.keys.data(block_keys.hex_digests(chain))
    node.pool.lies = {key: at >= LONG // 2 for at, key in enumerate(keys)}
    mine = hit.indexes % 2 == 0
    hit = dataclasses.replace(hit, indexes=hit.indexes[mine], block_ids=hit.block_ids[mine])
    node.rank.directory.forget()
    assert node.rank.reload.load([hit]).tolist() == [LONG // 2 - 1]


def test_ranks_whose_blocks_lie_otherwise_have_one_verdict():
    """What one rank measures of elsewhere all leave alone there, and load from their own parts."""
    nodes = [Node(slower=slower, pool=PartedPool, agree=lambda lengths: lengths) for slower in (2.0, 40.0)]
    for _ in range(2 * LOADS):
        for node in nodes:
            node.serve_lying(*OWN), node.serve_lying(*ELSEWHERE)
        agreed = np.min([node.gate.tells() for node in nodes], axis=0)
        for node in nodes:
            node.gate.hears(agreed)
    for node in nodes:
        assert node.serve_lying(*ELSEWHERE, idle_s=0.1)[0] == 0
        assert node.serve_lying(*OWN, idle_s=0.1)[0] == LONG


class DamagedPool(CheckedPool):
    """All that comes, comes from elsewhere and is not what its checksum says."""

    def __init__(self, clock):
        super().__init__(PartedPool(clock), Counters())
        self.inner.lies = defaultdict(lambda: True)


def test_blocks_that_came_damaged_from_elsewhere_say_nothing_of_the_own_part():
    """They are computed, load by load, and no figure of either place is made of them."""
    node = Node(pool=DamagedPool)
    assert [node.serve(count)[0] for count in (3, 3, 40, 40)] == [0] * 4
    assert node.gate.own.figures == node.gate.elsewhere.figures == Figures()
