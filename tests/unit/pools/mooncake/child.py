"""Programs that tests run in a process of their own, because they may crash, wedge or be killed.

``python -m tests.unit.pools.mooncake.child <function> <arguments>``; each prints one JSON line when it is done.
"""

import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from mindie_kvpool_plugin.pools.mooncake.wedge import WedgeWatch
from mindie_kvpool_plugin.pools.registry import open_pool
from tests.conftest import HOST, Memory, free_port, write_pool_file
from tests.unit.pools.mooncake.conftest import patience


def say(**facts):
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _open(address, segment_bytes, **more):
    keys = {
        "local_hostname": HOST,
        "master_server_address": address,
        "global_segment_size": int(segment_bytes),
        "local_buffer_size": 0,
        "protocol": "tcp",
        **more,
    }
    return open_pool("mooncake", write_pool_file(Path(tempfile.mkdtemp()), **keys), "worker")


def peer(address, segment_bytes, blocks, seed):
    """Hold a segment with blocks peer/0.. until the end of standard input."""
    pool = _open(address, segment_bytes)
    keys = [f"peer/{number}" for number in range(int(blocks))]
    stored = pool.put(keys, Memory(len(keys)).fill(int(seed)).buffers) if keys else []
    say(stored=stored)
    sys.stdin.read()
    pool.close()
    say(closed=True)


def leaver(address, segment_bytes, blocks, seed):
    """Hold a segment with blocks of its own; leave at a first line, end at a second, as the host does."""
    pool = _open(address, segment_bytes)
    keys = [f"leaver/{os.getpid()}/{number}" for number in range(int(blocks))]
    memory = Memory(len(keys)).fill(int(seed))
    say(stored=pool.put(keys, memory.buffers), name=pool.link.client._current.name, keys=keys)
    sys.stdin.readline()
    pool.leave()
    again = pool.get(keys, memory.clear().buffers)
    say(left=True, again=again, is_right=bool((memory.bytes == Memory(len(keys)).fill(int(seed)).bytes).all()))
    sys.stdin.readline()
    os._exit(1)


def raw_call(when, address):
    """Call the bare client when it is not open."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    if when == "after_close":
        assert store.setup(f"{HOST}:{free_port()}", "P2PHANDSHAKE", 0, 0, "tcp", "", address) == 0
        store.close()
    say(about_to=when)
    store.batch_is_exist(["key"])
    say(survived=True)


def our_calls(address):
    """Call our pool while it closes and after."""
    pool, memory = _open(address, str(16 << 20)), Memory(2)
    pool.close()
    say(answers=[pool.exists(["a", "b"]), pool.put(["a", "b"], memory.buffers), pool.get(["a", "b"], memory.buffers)])


SEGMENTS, SEGMENT_BYTES, QUEUE = 42, 128 << 10, 64
WEDGED_S = 60.0  # a stuck call sits in the store as long


def _overload(pool, memory, keys, threads):
    started = [
        threading.Thread(target=pool.get, args=(keys, Memory(len(keys), SEGMENTS, SEGMENT_BYTES).buffers), daemon=True)
        for _ in range(threads)
    ]
    for thread in started:
        thread.start()
    return started


def _bear(pool, source, keys):
    """How many of forty rounds brought every byte while three more threads read."""
    good, target = 0, Memory(len(keys), SEGMENTS, SEGMENT_BYTES)
    for _ in range(40):
        threads = _overload(pool, source, keys, 3)
        arrived = pool.get(keys, target.clear().buffers)
        good += arrived == [True] * len(keys) and bool((target.bytes == source.bytes).all())
        for thread in threads:
            thread.join()
    return good


def wedge(address, splits):
    """Overrun a small queue to the peer that holds all keys; with splitting nothing happens, without it wedges."""
    os.environ["MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER"] = str(QUEUE)
    os.environ["MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER"] = str(QUEUE)
    os.environ["MC_TCP_ADMISSION_TIMEOUT_MS"] = "100"
    pool = _open(address, "0", max_slices_in_flight=QUEUE if splits == "split" else 10**6)
    keys = [f"block/{number}" for number in range(4)]
    source = Memory(4, SEGMENTS, SEGMENT_BYTES).fill(1)
    one, check = ["block/0"], Memory(1, SEGMENTS, SEGMENT_BYTES)
    assert [pool.put([key], source.buffers.take(slice(i, i + 1))) for i, key in enumerate(keys)] == [[True]] * 4
    if splits == "split":
        with patience():
            good = _bear(pool, source, keys)
        say(good=good, replacements=pool.link.client.replacements)
        os._exit(0)
    first_connection = pool.link.client._current
    pool.link.watch = WedgeWatch(span_s=3600)  # not yet: first the wedge is shown to last
    deadline = time.monotonic() + WEDGED_S
    failures = 0
    while failures < 10 and time.monotonic() < deadline:
        if failures == 0:  # the race behind the wedge is not lost every time
            for thread in _overload(pool, source, keys, 3):
                thread.join(0.5)
        failures = failures + 1 if pool.get(one, check.buffers) == [False] else 0
    pool.link.watch = WedgeWatch(span_s=0.3)
    deadline = time.monotonic() + WEDGED_S
    recovered = False
    while not recovered and time.monotonic() < deadline:
        recovered = pool.get(one, check.clear().buffers) == [True] and bool((check.bytes[0] == source.bytes[0]).all())
    say(
        failures_in_a_row=failures,
        recovered=recovered,
        replacements=pool.link.client.replacements,
        old_calls_in_flight=first_connection.in_flight,
        put_after=pool.put(["new"], source.buffers.take(slice(0, 1))),
    )
    os._exit(0)  # the stuck call sits in the old client for 60 s


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
