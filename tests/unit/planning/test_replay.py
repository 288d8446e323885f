"""The replay without KV bytes: the simulator's block manager below, pools of names above."""

import random

import pytest

from mindie_kvpool_plugin.planning import admitted, device_side, pool_side
from mindie_kvpool_plugin.planning.asked import Asked, Traffic, from_trace
from mindie_kvpool_plugin.planning.pool_side import PoolRules
from mindie_kvpool_plugin.simulator.block_manager import BlockManager
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE, TraceRequest, read_trace

UNIT = 4
LRU = PoolRules("lru")


def asked(*names, answer=1):
    """A prompt of full units and an answer so short that it fills none."""
    return Asked(0, len(names) * UNIT, names, answer, names)


def hits(requests, device, pool, disk=0, rules=LRU, **more):
    log = device_side.replay(Traffic([asked(*names) for names in requests], UNIT), device, **more)
    found = pool_side.replay(log.events, pool, disk, rules)
    return log.device_hits, found.memory, found.disk


def test_the_pool_answers_what_the_device_forgot():
    """[1, 2] stored, [3, 4] takes its place, [1, 2] comes from the pool."""
    assert hits([[1, 2], [3, 4], [1, 2]], device=3, pool=8) == (0, 2, 0)
    assert hits([[1, 2], [3, 4], [1, 2]], device=8, pool=8) == (2, 0, 0)


def test_a_hit_ends_at_the_first_missing_block():
    """[2] was asked for behind another prefix: it is another block; [1] without what follows is one hit."""
    assert hits([[1, 2], [3, 4], [1, 9]], device=3, pool=8) == (0, 1, 0)


def test_the_least_recently_used_leaves_a_full_pool():
    """[1] is loaded and so younger than [2]."""
    requests = [[1], [2], [3], [1], [4], [1], [2]]
    assert hits(requests, device=2, pool=3) == (0, 2, 0)


def test_what_leaves_memory_is_found_on_disk():
    """And stays there."""
    requests = [[1], [2], [3], [4], [1], [1]]
    assert hits(requests, device=2, pool=2, disk=8) == (1, 0, 1)
    assert hits(requests, device=2, pool=2) == (1, 0, 0)


def test_the_master_lets_a_share_go_above_its_watermark():
    """Of 100 objects with watermark 0.5: the 51st makes room for a tenth, the oldest first."""
    pool = pool_side._Mooncake(100, PoolRules("mooncake", 0.5, 0.1), pool_side._Disk(0))
    pool.store(range(1, 51))
    assert list(pool.held) == list(range(1, 51))
    pool.store([51])
    assert list(pool.held) == list(range(7, 52))  # ceil(51 x (0.51 - 0.5 + 0.1)) = 6


def test_storing_again_makes_a_block_younger_in_the_embedded_pool_only():
    """A put of a key that Mooncake has changes nothing there; a look-up does."""
    for rules, first in ((LRU, 2), (PoolRules("mooncake", 1, 0.1), 1)):
        pool = (pool_side._Mooncake if rules.eviction == "mooncake" else pool_side._Lru)(8, rules, pool_side._Disk(0))
        pool.store([1, 2])
        pool.store([1])
        assert next(iter(pool.held)) == first
        pool.load([1], 0)
        assert next(iter(pool.held)) == 2


def test_groups_have_devices_of_their_own_and_one_pool():
    """The second group finds nothing on its device, and all in the pool."""
    assert hits([[1, 2], [1, 2]], device=8, pool=8, groups=2) == (0, 0, 0)
    requests = [[1, 2], [3, 4], [5, 6], [1, 2]]
    assert hits(requests, device=4, pool=8, groups=2, concurrency=1) == (0, 2, 0)


def test_running_requests_keep_their_blocks():
    """Two at once in a device for two: the third waits until there is room, and nothing is lost."""
    log = device_side.replay(Traffic([asked(n, n + 1) for n in (1, 3, 5, 7)], UNIT), 6, concurrency=2)
    assert log.num_requests == 4
    assert log.too_long == 0


def test_a_prompt_longer_than_the_device_is_counted_and_left_out():
    """Nothing of it is served."""
    log = device_side.replay(Traffic([asked(1, 2, 3), asked(1)], UNIT), 3)
    assert (log.too_long, log.num_requests, log.prompt_tokens) == (1, 1, UNIT)


def test_the_last_token_of_an_answer_has_no_kv():
    """A unit of 512 is full when one token more is there."""
    exact, more = (from_trace([TraceRequest(0, 1000, out, (5, 6))]).requests[0] for out in (24, 25))
    assert len(exact.names) == len(more.names) == 1
    assert len(exact.stored) == 1
    assert len(more.stored) == 2


class Naive:
    """The whole of it with tokens: every prompt is hashed, every token decoded, and the pool is a list."""

    def __init__(self, device, pool):
        self.manager = BlockManager(device, UNIT)
        self.pool, self.capacity = [], pool
        self.clock = self.device_hits = self.pool_hits = 0

    def serve(self, prompt, answer):
        manager = self.manager
        table = manager.allocate(prompt)
        computed = manager.num_computed(table)
        manager.mark_computed()
        self.device_hits += computed
        for name in table.hashes[computed : len(prompt) // UNIT]:
            if name not in self.pool:
                break
            self.pool_hits += 1
            self.use(name)
        for token in answer[:-1]:
            manager.append(table, [token])
            manager.mark_computed()
        stored = [name for name in table.hashes if name]
        manager.reserve(table, 1)
        self.clock += 1
        manager.free(table, float(self.clock))
        for name in stored:
            self.use(name)
            del self.pool[: max(0, len(self.pool) - self.capacity)]

    def use(self, name):
        if name in self.pool:
            self.pool.remove(name)
        self.pool.append(name)


def random_chats(source):
    """(prompt, answer) token lists of speakers that come back with what was said, in random order."""
    histories = [[source.randrange(10, 99) for _ in range(source.randrange(1, 12))] for _ in range(5)]
    for _ in range(source.randrange(10, 60)):
        at = source.randrange(len(histories))
        prompt = histories[at] + [source.randrange(10, 99) for _ in range(source.randrange(1, 9))]
        answer = [source.randrange(10, 99) for _ in range(source.randrange(1, 7))]
        yield prompt, answer
        # the longest are forgotten, some are cut: prefixes of every length
        kept = prompt + answer if len(prompt) < 30 else prompt[: source.randrange(1, 8)]
        histories[at] = kept


def as_asked(prompt, answer, names):
    def name(tokens):
        return names.setdefault(tuple(tokens), len(names) + 1)

    whole = [*prompt, *answer]
    chain = [name(whole[: UNIT * (index + 1)]) for index in range((len(whole) - 1) // UNIT)]
    own = [name(prompt[: UNIT * (index + 1)]) for index in range(len(prompt) // UNIT)]
    return Asked(0, len(prompt), own, len(answer), chain)


@pytest.mark.parametrize("seed", range(60))
def test_names_alone_give_what_tokens_give(seed):
    """The same hits on the device and in the pool, exactly, on random traffic with small devices and pools."""
    source = random.Random(seed)
    device, pool = source.randrange(12, 40), source.randrange(2, 60)
    naive, names, requests = Naive(device, pool), {}, []
    for prompt, answer in random_chats(source):
        naive.serve(prompt, answer)
        requests.append(as_asked(prompt, answer, names))
    log = device_side.replay(Traffic(requests, UNIT), device)
    found = pool_side.replay(log.events, pool, rules=LRU)
    assert (log.device_hits, found.memory) == (naive.device_hits, naive.pool_hits)
    assert log.too_long == 0


def test_a_larger_pool_answers_no_less():
    """Over the bundled trace, for both kinds of eviction."""
    traffic = from_trace(read_trace(BUNDLED_TRACE, 300))
    log = device_side.replay(traffic, 60)
    for rules in (LRU, PoolRules()):
        found = [pool_side.replay(log.events, size, rules=rules).memory for size in (50, 100, 200, 400, 800, 1600)]
        assert found == sorted(found)
        assert found[-1] * traffic.unit_tokens + log.device_hits * traffic.unit_tokens == traffic.repeated_tokens


def seconds(requests, pool=100, groups=1, rules=LRU):
    log = device_side.replay(Traffic([asked(*names) for names in requests], UNIT), 8, groups=groups)
    found = pool_side.replay(admitted.second_use(log, rules.stored_at, 1.0), pool, rules=rules)
    return found.memory, found.writes


def test_second_use_stores_what_ends_a_second_time():
    """[1, 2] is asked for thrice: the second end stores both, the third asker finds them; [3 ... 8] is never stored."""
    between = [list(range(10 * n, 10 * n + 7)) for n in (1, 2, 3)]
    assert seconds([[1, 2], between[0], [1, 2], between[1], [1, 2], between[2]]) == (2, 2)


def test_second_use_ends_at_the_first_block_that_is_new():
    """[1, 2] behind [1, 3]: one block was there before."""
    assert seconds([[1, 3], [1, 2], [5], [1, 2]]) == (0, 2)


def test_groups_do_not_tell_each_other_what_they_saw():
    """Two groups are asked in turn: what each has seen once is seen once."""
    assert seconds([[1, 2], [1, 2]], groups=1)[1] == 2
    assert seconds([[1, 2], [1, 2]], groups=2)[1] == 0
    assert seconds([[1, 2], [1, 2], [1, 2]], groups=2)[1] == 2


def test_second_use_at_overwrite_looks_at_each_block():
    """A device of eight forgets [1, 2] twice: the second time they are stored."""
    rules = PoolRules("lru", at_overwrite=True)
    others = [list(range(10 * n, 10 * n + 7)) for n in (1, 2, 3)]
    assert seconds([[1, 2], others[0], [1, 2], others[1], [1, 2]], rules=rules)[0] == 2


def test_answers_of_which_only_the_length_is_known_are_never_admitted():
    """Each has a name of its own, below 0."""
    trace = [TraceRequest(0, 3 * 512, 1200, (1, 2, 3))] * 3
    log = device_side.replay(from_trace(trace), 50)
    ended = [names for names, what, _ in admitted.second_use(log, device_side.ENDED, 1.0) if what == device_side.ENDED]
    assert [list(names) for names in ended] == [[], [2, 3, 4], [2, 3, 4]]
