"""What every pool owes its callers (``pools.base``)."""

import threading

import numpy as np

from tests.conftest import CAPACITY_BYTES, Memory, wait_until


def _keys(count, prefix="key"):
    return [f"{prefix}/{number}" for number in range(count)]


def test_get_returns_the_bytes_put_when_blocks_have_several_segments(pool):
    """A round trip of scattered blocks is exact, also when it takes several pieces."""
    source, target = Memory(40, segments=5).fill(1), Memory(40, segments=5)
    for memory in (source, target):
        pool.register([memory.region])
    assert pool.put(_keys(40), source.buffers) == [True] * 40
    assert pool.get(_keys(40), target.buffers) == [True] * 40
    assert np.array_equal(source.bytes, target.bytes)


def test_results_are_one_plain_bool_per_key_in_order(pool):
    """Hits and misses are told apart key by key."""
    source, target = Memory(3).fill(2), Memory(5)
    assert pool.put(["b", "d", "e"], source.buffers) == [True] * 3
    expected = [False, True, False, True, True]
    for answer in (pool.exists(list("abcde")), pool.get(list("abcde"), target.buffers)):
        assert answer == expected
        assert all(type(one) is bool for one in answer)
    assert np.array_equal(target.bytes[[1, 3, 4]], source.bytes)


def test_missing_keys_answer_false(pool):
    """A key that was never put does not exist and cannot be got."""
    assert pool.exists(_keys(3)) == [False] * 3
    assert pool.get(_keys(3), Memory(3).buffers) == [False] * 3


def test_get_answers_false_when_the_size_differs(pool):
    """An object of another size is a miss, whether the buffers are larger or smaller, and stays whole."""
    source = Memory(2, segments=3).fill(3)
    pool.put(_keys(2), source.buffers)
    assert pool.get(_keys(2), Memory(2, segments=2).buffers) == [False] * 2
    assert pool.get(_keys(2), Memory(2, segments=4).buffers) == [False] * 2
    target = Memory(2, segments=3)
    assert pool.get(_keys(2), target.buffers) == [True] * 2
    assert np.array_equal(source.bytes, target.bytes)


def test_get_with_the_wrong_size_touches_no_other_memory(pool):
    """Bytes beside the buffers stay as they were."""
    pool.put(["key/0"], Memory(1, segments=3).fill(4).buffers)
    around = Memory(3, segments=2).fill(5)
    before = around.bytes.copy()
    assert pool.get(["key/0"], around.buffers.take(slice(1, 2))) == [False]
    assert np.array_equal(around.bytes[[0, 2]], before[[0, 2]])


def test_get_delivers_the_other_keys_when_one_fails(pool):
    """One missing and one ill-sized key leave the rest of the batch good."""
    source, target = Memory(4).fill(6), Memory(6)
    pool.put(_keys(4), source.buffers)
    pool.put(["small"], Memory(1, segments=1).fill(7).buffers)
    answer = pool.get(["key/0", "missing", "key/1", "small", "key/2", "key/3"], target.buffers)
    assert answer == [True, False, True, False, True, True]
    assert np.array_equal(target.bytes[[0, 2, 4, 5]], source.bytes)


def test_put_keeps_the_first_content_and_counts_as_stored(pool):
    """A key names its bytes: a second put of it stores nothing and is no failure."""
    first, second, target = Memory(2).fill(8), Memory(2).fill(9), Memory(2)
    assert pool.put(_keys(2), first.buffers) == [True, True]
    assert pool.put(_keys(2), second.buffers) == [True, True]
    pool.get(_keys(2), target.buffers)
    assert np.array_equal(target.bytes, first.bytes)


def test_pool_never_serves_wrong_bytes_when_it_is_full(own_pool):
    """Twice the capacity goes in; what is still there is exact, and recent blocks were accepted."""
    blocks, size = 64, 1 << 20
    source = Memory(blocks, segments=1, segment_bytes=size).fill(10)
    assert blocks * size == 2 * CAPACITY_BYTES
    stored = [own_pool.put([key], source.buffers.take(slice(i, i + 1)))[0] for i, key in enumerate(_keys(blocks))]
    assert sum(stored) > blocks // 2
    target = Memory(blocks, segments=1, segment_bytes=size)
    delivered = own_pool.get(_keys(blocks), target.buffers)
    assert 0 < sum(delivered) < blocks
    rows = np.flatnonzero(delivered)
    assert np.array_equal(target.bytes[rows], source.bytes[rows])


def test_put_answers_false_when_a_block_exceeds_the_pool(own_pool):
    """A block that can never fit is refused, and the pool goes on; Mooncake may evict others in the attempt."""
    small = Memory(1).fill(11)
    assert own_pool.put(["large"], Memory(1, 1, CAPACITY_BYTES + (1 << 20)).buffers) == [False]
    assert own_pool.put(["small"], small.buffers) == [True]
    assert own_pool.exists(["large", "small"]) == [False, True]


def test_empty_calls_answer_with_empty_lists(pool):
    """No keys, no results, no harm."""
    nothing = Memory(1).buffers.take(slice(0, 0))
    assert pool.exists([]) == []
    assert pool.put([], nothing) == []
    assert pool.put([], nothing, []) == []
    assert pool.get([], nothing) == []
    pool.register([])


def test_threads_get_exactly_what_they_put(pool):
    """Six threads put, ask and get their own and shared keys at once; every byte is right."""
    shared = Memory(4).fill(12)
    wrong = []

    def work(number):
        own, target = Memory(10).fill(100 + number), Memory(10)
        for turn in range(5):
            keys = _keys(10, f"thread{number}/{turn}")
            if pool.put(keys, own.buffers) != [True] * 10 or pool.exists(keys) != [True] * 10:
                wrong.append(f"thread {number} could not put")
            pool.put(_keys(4, "shared"), shared.buffers)
            if pool.get(keys, target.clear().buffers) != [True] * 10 or not np.array_equal(own.bytes, target.bytes):
                wrong.append(f"thread {number} got other bytes")
            got = pool.get(_keys(4, "shared"), target.buffers.take(slice(0, 4)))
            if not np.array_equal(target.bytes[:4][got], shared.bytes[got]):
                wrong.append(f"thread {number} got other shared bytes")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []


def test_alias_of_a_block_is_its_head(pool):
    """A few bytes of the first segment can be stored beside the block and asked for."""
    source, target = Memory(3).fill(13), Memory(3)
    aliases, heads = _keys(3, "alias"), source.buffers.head(64)
    groups = [f"group/{number}" for number in range(3)]
    assert pool.put(_keys(3), source.buffers, groups) == [True] * 3
    assert pool.put(aliases, heads, groups) == [True] * 3
    assert pool.exists(aliases) == [True] * 3
    assert pool.get(aliases, target.buffers.head(64)) == [True] * 3
    assert np.array_equal(target.bytes[:, 0, :64], source.bytes[:, 0, :64])
    assert not target.bytes[:, 0, 64:].any()


def test_pools_share_objects_when_they_name_the_same_service(open_another):
    """What one worker puts, another one gets."""
    source, target = Memory(30).fill(14), Memory(30)
    writer, reader = open_another(), open_another()
    assert writer.put(_keys(30), source.buffers) == [True] * 30
    assert reader.exists(_keys(30)) == [True] * 30
    assert reader.get(_keys(30), target.buffers) == [True] * 30
    assert np.array_equal(source.bytes, target.bytes)


def test_closed_pool_answers_false(own_pool, backend):
    """After close every call answers, and none succeeds; the embedded pool outlives its users."""
    source = Memory(2).fill(15)
    own_pool.put(_keys(2), source.buffers)
    own_pool.close()
    own_pool.close()
    lives_on = backend == "local_dram"
    assert own_pool.exists(_keys(2)) == [lives_on] * 2
    assert own_pool.get(_keys(2), source.buffers) == [lives_on] * 2
    assert own_pool.put(["new/0", "new/1"], source.buffers) == [lives_on] * 2


def test_close_waits_for_calls_in_flight(own_pool):
    """Threads that keep calling while the pool closes get answers until the end, and no crash."""
    source = Memory(16).fill(16)
    calls = [0] * 4
    stop = threading.Event()

    def work(number):
        while not stop.is_set():
            own_pool.put(_keys(16, f"{number}/{calls[number]}"), source.buffers)
            own_pool.exists(_keys(16))
            calls[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: min(calls) > 2, 60, "all threads are calling")
    own_pool.close()
    after = list(calls)
    wait_until(lambda: all(now > then for now, then in zip(calls, after, strict=True)), 60, "calls after close")
    stop.set()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
