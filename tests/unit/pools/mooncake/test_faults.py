"""The faults of the real Mooncake Store that a plugin must survive, each shown to have happened."""

import signal
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from chaos.processes import freeze, frozen
from mindie_kvpool_plugin.blocks import Region
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.mooncake import split_hostname
from mindie_kvpool_plugin.pools.base import NOTHING
from mindie_kvpool_plugin.pools.mooncake import peers as mooncake_peers
from mindie_kvpool_plugin.pools.mooncake import places as mooncake_places
from mindie_kvpool_plugin.pools.mooncake import pool as mooncake
from mindie_kvpool_plugin.pools.mooncake.admin import Admin
from mindie_kvpool_plugin.pools.mooncake.transfer import Put
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests.conftest import HOST, Memory, needs_told_system_calls, wait_until

PEER_KEYS = [f"peer/{number}" for number in range(8)]


def _raw(pool, call):
    with pool.link.client.lent() as connection:
        assert connection is not None
        return call(connection.store)


def _raw_get(pool, keys, memory):
    sizes = [memory.buffers.sizes.tolist()] * len(keys)
    return _raw(pool, lambda s: s.batch_get_into_multi_buffers(keys, memory.buffers.addresses.tolist(), sizes, False))


def test_bare_client_dies_and_ours_answers_when_it_is_not_open(master, run_child):
    """SIGSEGV before setup and after close is real, and our pool is never in that place."""
    bare = {when: run_child("raw_call", when, master.address) for when in ("before_setup", "after_close")}
    ours = run_child("our_calls", master.address)
    for when, child in bare.items():
        assert child.hear() == {"about_to": when}
        assert child.wait() == -signal.SIGSEGV
    assert ours.hear() == {"answers": [[False, False]] * 3}
    assert ours.wait() == 0


def test_wedged_client_is_replaced_and_works_again(own_master, run_child):
    """A client that lost its peer by an overrun queue is replaced while its stuck call still sits in it."""
    holder = run_child("peer", own_master.address, str(256 << 20), "0", "0")
    holder.hear()
    told = run_child("wedge", own_master.address, "whole").hear()
    assert told["failures_in_a_row"] == 10
    assert told["old_calls_in_flight"] >= 1
    assert told["recovered"] is True
    assert told["replacements"] == 1
    assert told["put_after"] == [True]


def test_split_calls_never_wedge_under_the_same_load(own_master, run_child):
    """Four threads that together offer ten times the queue get every byte, with the client they began with."""
    holder = run_child("peer", own_master.address, str(256 << 20), "0", "0")
    holder.hear()
    assert run_child("wedge", own_master.address, "split").hear() == {"good": 40, "replacements": 0}


def test_slices_in_flight_stay_below_the_limit_over_all_threads(shared_mooncake, unhurried):
    """However many threads call, the gate's peak is the limit."""
    pool = shared_mooncake
    keys = [[f"gate{number}/{i}" for i in range(40)] for number in range(4)]
    source = Memory(40).fill(1)
    threads = [threading.Thread(target=pool.put, args=(names, source.buffers)) for names in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _raw(pool, lambda s: s.batch_is_exist(keys[3])) == [1] * 40
    assert 3 <= pool.link.client._current.gate.peak <= pool.link.client._current.gate.limit == 24


class Counted:
    """The binding's client, and the calls that were made of it."""

    def __init__(self, pool):
        self._store, self.calls = pool.link.client._current.store, []
        pool.link.client._current.store = self

    def __getattr__(self, name):
        call = getattr(self._store, name)
        return lambda *arguments: (self.calls.append(name), call(*arguments))[1]


@pytest.mark.parametrize("call", ["exists", "get", "put"])
def test_failures_are_false_and_not_truthy_when_the_master_is_killed(own_master, open_mooncake, call):
    """Negative exist codes, which Python takes for true, become False; a call is bounded by the client's 4.3 s."""
    pool, memory = open_mooncake(own_master), Memory(2)
    assert pool.put(["a", "b"], memory.fill(2).buffers) == [True, True]
    own_master.kill()
    counted = Counted(pool)
    for most_calls in (2, 1):  # the second one tries to connect again; who took that long is not asked a second time
        counted.calls.clear()
        started = time.monotonic()
        answers = pool.exists(["a", "b"]) if call == "exists" else getattr(pool, call)(["a", "b"], memory.buffers)
        assert answers == [False, False]
        assert answers.trouble is not None
        assert 1 <= len(counted.calls) <= most_calls
        assert time.monotonic() - started < 6
    assert _raw(pool, lambda s: s.batch_is_exist(["a"])) == [-900]
    own_master.start()


def test_get_misses_and_put_recovers_when_the_master_restarts_empty(own_master, open_mooncake):
    """A restarted master has forgotten every key; the same client stores again soon after."""
    pool, memory = open_mooncake(own_master), Memory(2).fill(3)
    assert pool.put(["a", "b"], memory.buffers) == [True, True]
    own_master.restart()
    wait_until(lambda: pool.put(["new"], memory.buffers.take(slice(0, 1))) == [True], 60, "segment is back")
    assert pool.get(["a", "b"], Memory(2).buffers) == [False, False]
    assert pool.put(["a", "b"], memory.buffers) == [True, True]


@pytest.mark.parametrize("call", ["exists", "get"])
def test_calls_return_when_the_master_hangs(own_master, open_mooncake, call):
    """A master that does not answer costs rpc_timeout_s, not 30 s; afterwards the keys are still there."""
    pool, memory = open_mooncake(own_master), Memory(2).fill(4)
    assert pool.put(["a", "b"], memory.buffers) == [True, True]
    counted = Counted(pool)
    with frozen(own_master.pid):
        started = time.monotonic()
        answers = pool.exists(["a", "b"]) if call == "exists" else pool.get(["a", "b"], Memory(2).buffers)
        assert answers == [False, False]
        assert answers.trouble is not None
        assert len(counted.calls) == 1, "rpc_timeout_s once, not twice"
        assert 1 < time.monotonic() - started < 6, "and not 30 s"
    wait_until(lambda: pool.exists(["a", "b"]) == [True, True], 60, "the keys are back")


def test_get_is_false_after_exists_said_true_when_the_peer_was_killed(own_master, open_mooncake, run_child):
    """A dead process's keys exist until the master notices; getting them fails per key, ours stay good."""
    peer = run_child("peer", own_master.address, str(64 << 20), "8", "5")
    assert peer.hear() == {"stored": [True] * 8}
    pool, target = open_mooncake(own_master), Memory(8)
    own = Memory(1).fill(6)
    assert pool.put(["own"], own.buffers) == [True]
    assert pool.get(PEER_KEYS, target.buffers) == [True] * 8
    assert np.array_equal(target.bytes, Memory(8).fill(5).bytes)
    peer.end()
    assert pool.exists(PEER_KEYS) == [True] * 8
    started = time.monotonic()
    assert pool.get(["own", *PEER_KEYS[1:]], target.clear().buffers) == [True] + [False] * 7
    assert time.monotonic() - started < 5
    assert np.array_equal(target.bytes[0], own.bytes[0])
    wait_until(lambda: pool.exists(PEER_KEYS) == [False] * 8, 60, "the master forgets the dead process")
    assert pool.link.client.replacements == 0


@pytest.fixture
def asked(monkeypatch):
    """The peers of each question whether they live."""
    questions = []
    ask = mooncake_peers.ask
    monkeypatch.setattr(
        mooncake_peers, "ask", lambda peers, *more: (questions.append(set(peers)), ask(peers, *more))[1]
    )
    return questions


@pytest.mark.parametrize("met_before", [False, True])
def test_peer_that_hangs_costs_a_moment_once(own_master, open_mooncake, run_child, asked, monkeypatch, met_before):
    """Mooncake waits a second per key of a stopped process, at the first contact a minute; we ask first, and once."""
    monkeypatch.setattr(mooncake_peers, "SILENT_FOR_S", 12.0)  # no second question while this test is held up
    peer = run_child("peer", own_master.address, str(64 << 20), "32", "7")
    peer.hear()
    keys = [f"peer/{number}" for number in range(32)]
    pool, target, own = open_mooncake(own_master), Memory(32), Memory(32).fill(8)
    own_keys = _put_at_home(pool, own)
    if met_before:
        assert pool.get(keys, target.buffers) == [True] * 32
    time_of_last_contact = time.monotonic()
    freeze(peer.process.pid)
    try:
        wait_until(lambda: time.monotonic() - time_of_last_contact > mooncake_peers.ANSWERS_FOR_S, 60, "it is doubted")
        asked.clear()
        started = time.monotonic()
        assert pool.get([*keys[:16], *own_keys[:16]], target.buffers) == [False] * 16 + [True] * 16
        assert mooncake_peers.ANSWER_TIMEOUT_S <= time.monotonic() - started < 8, "a second for every key without us"
        assert np.array_equal(target.bytes[16:], own.bytes[:16])
        assert pool.get(keys, target.buffers) == [False] * 32
        assert len(asked) == 1, "the second get believes the first one's answer"
        assert pool.put(["late"], own.buffers.take(slice(0, 1))) == [False], "it might be placed with the peer"
    finally:
        peer.signal(signal.SIGCONT)
    assert pool.exists(["late"]) == [False]
    wait_until(lambda: pool.put(["later"], own.buffers.take(slice(0, 1))) == [True], 60, "the peer answers again")


@pytest.mark.parametrize("segment_bytes", [0, 16 << 20], ids=["no segment", "own segment"])
def test_peer_whose_blocks_arrive_is_not_asked_again(
    own_master, open_mooncake, run_child, asked, monkeypatch, segment_bytes
):
    """A busy service asks nobody: what arrived is answer enough, however long it goes on."""
    monkeypatch.setattr(mooncake_peers, "ANSWERS_FOR_S", 60.0)
    monkeypatch.setattr(mooncake_peers, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + later_s))
    later_s = 0.0
    peer = run_child("peer", own_master.address, str(64 << 20), "8", "7")
    peer.hear()
    pool, target = open_mooncake(own_master, segment_bytes), Memory(8)
    while later_s < 3 * mooncake_peers.ANSWERS_FOR_S:
        assert pool.get(PEER_KEYS, target.buffers) == [True] * 8
        later_s += 30.0
    assert len(asked) == 1


def test_peer_that_hangs_at_the_worst_moment_is_met_with_few_keys(own_master, open_mooncake, run_child, monkeypatch):
    """Stopped just after it was heard: a second or two for each of the first keys, not for all 32."""
    monkeypatch.setattr(mooncake_peers, "ANSWERS_FOR_S", 60.0)
    peer = run_child("peer", own_master.address, str(64 << 20), "32", "7")
    peer.hear()
    keys = [f"peer/{number}" for number in range(32)]
    pool, target = open_mooncake(own_master, 0, max_slices_in_flight=6), Memory(32)
    assert pool.get(keys, target.buffers) == [True] * 32
    freeze(peer.process.pid)
    try:
        pool.link.places.heard(pool.link.places.of(keys[:1]))
        started = time.monotonic()
        assert pool.get(keys, target.buffers) == [False] * 32
        assert 1 < time.monotonic() - started < 8
    finally:
        peer.signal(signal.SIGCONT)


@needs_told_system_calls
@pytest.mark.parametrize("segment_bytes", [0, 16 << 20], ids=["no segment", "own segment"])
def test_put_to_a_peer_that_hung_before_it_was_met_ends_soon(own_master, open_mooncake, run_child, segment_bytes):
    """Mooncake waits a minute for each key of it; the pool a moment for all, and then stores nothing for a while."""
    peer = run_child("peer", own_master.address, str(64 << 20), "0", "0")
    peer.hear()
    pool, source, target = open_mooncake(own_master, segment_bytes), Memory(24, 1, 1 << 20), Memory(24, 1, 1 << 20)
    source.fill(8)
    keys = [f"unmet/{number}" for number in range(24)]
    freeze(peer.process.pid)
    try:
        started = time.monotonic()
        stored = pool.put(keys, source.buffers)
        assert time.monotonic() - started < 10, "a minute for one key without us"
        assert pool.link.contacts.ended >= 1
        assert not all(stored)
        assert pool.put(["late"], source.buffers.take(slice(0, 1))) == [False], "it might be placed with the peer"
        assert pool.get(keys, target.buffers) == stored
        assert np.array_equal(target.bytes[stored], source.bytes[stored])
    finally:
        peer.signal(signal.SIGCONT)
    wait_until(lambda: pool.put(["later"], source.buffers.take(slice(0, 1))) == [True], 60, "the peer answers again")
    assert pool.get(["later"], target.buffers.take(slice(0, 1))) == [True]
    assert np.array_equal(target.bytes[0], source.bytes[0])


@needs_told_system_calls
def test_put_to_a_peer_that_takes_no_connection_ends_soon(own_master, open_mooncake, run_child, monkeypatch):
    """As when its machine is off: Mooncake waits five seconds for each key."""
    monkeypatch.setenv("MC_HANDSHAKE_LISTEN_BACKLOG", "1")
    peer = run_child("peer", own_master.address, str(64 << 20), "0", "0")
    peer.hear()
    (segment,) = Admin(HOST, own_master.metrics_port, 60.0).segments()
    pool = open_mooncake(own_master, 0)
    freeze(peer.process.pid)
    waiting = [socket.socket() for _ in range(4)]
    try:
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(split_hostname(segment.endpoint, "endpoint"))
        started = time.monotonic()
        assert pool.put([f"off/{number}" for number in range(24)], Memory(24).buffers) == [False] * 24
        assert time.monotonic() - started < 8, "two minutes without us"
        assert pool.link.contacts.ended >= 1
    finally:
        peer.signal(signal.SIGCONT)
        for each in waiting:
            each.close()


def _put_at_home(pool, memory):
    """Put blocks until as many lie in the pool's own segment: over loopback the master places them anywhere."""
    found = []
    rows = []
    keys = [f"home/{number}" for number in range(8 * len(memory.bytes))]
    for number, key in enumerate(keys):
        block = memory.buffers.take(slice(len(found), len(found) + 1))
        assert pool.put([key], block) == [True]
        found_at = pool.link.places.find([key])
        if set(found_at.peers) <= found_at.home:
            found.append(key)
            rows.append(number)
        if len(found) == len(memory.bytes):
            return found
    raise AssertionError(f"{len(found)} of {len(keys)} blocks lie at home")


def test_blocks_of_the_own_segment_and_those_elsewhere_are_told_apart(
    own_master, open_mooncake, run_child, unhurried, monkeypatch
):
    """Before a get and by it; the get does not ask again, and after a while it does."""
    after_a_while_s = mooncake_places.LATELY_S
    monkeypatch.setattr(mooncake_places, "LATELY_S", 60.0)
    run_child("peer", own_master.address, str(64 << 20), "8", "7").hear()
    pool, target = open_mooncake(own_master), Memory(12)
    assert pool.has_own_part
    home = _put_at_home(pool, Memory(4).fill(3))
    keys = [*home[:2], *PEER_KEYS, *home[2:]]
    in_peers_segment = [place not in pool.link.places.find(keys).home for place in pool.link.places.of(keys)]
    asked, of = [], pool.link.places.of
    pool.link.places.of = lambda names: asked.append(names) or of(names)
    assert pool.lie_elsewhere([*keys, home[0]]) == [*in_peers_segment, False]
    assert any(in_peers_segment)
    found = pool.get(keys, target.buffers)
    assert found == [True] * 12
    assert found.elsewhere.blocks == sum(in_peers_segment)
    assert found.elsewhere.seconds > 0
    assert len(asked) == 1
    monkeypatch.setattr(mooncake_places, "LATELY_S", after_a_while_s)
    wait_until(lambda: pool.get(keys, target.buffers) and len(asked) > 1, 60, "what was asked is too old")


def test_without_own_segment_no_place_is_another_than_the_pool(own_master, open_mooncake, run_child):
    """Nothing to tell apart: what a load takes is what the pool takes."""
    run_child("peer", own_master.address, str(64 << 20), "8", "7").hear()
    pool, target = open_mooncake(own_master, 0), Memory(8)
    assert not pool.has_own_part
    found = pool.get(PEER_KEYS, target.buffers)
    assert found == [True] * 8
    assert found.elsewhere == NOTHING


def test_own_segment_is_read_and_written_past_the_gate(own_master, open_mooncake):
    """Memory copies fill no queue: no turns, every byte right."""
    pool, source, target = open_mooncake(own_master, max_slices_in_flight=24), Memory(64).fill(3), Memory(64)
    assert pool.put(["first"], source.buffers.take(slice(0, 1))) == [True], "puts see that they stay at home"
    before = pool.link.client._current.gate.peak
    keys = [f"own/{number}" for number in range(64)]
    assert pool.put(keys, source.buffers) == [True] * 64
    assert pool.get(keys, target.buffers) == [True] * 64
    assert np.array_equal(target.bytes, source.bytes)
    assert pool.link.client._current.gate.peak == before == 3


@pytest.mark.parametrize("setting", ["0", "off"])
def test_own_segment_is_a_peer_like_others_when_memory_is_not_copied(setting, own_master, open_mooncake, monkeypatch):
    """With MC_STORE_MEMCPY off its slices go through sockets, so they pass the gate."""
    monkeypatch.setenv("MC_STORE_MEMCPY", setting)
    pool, source, target = open_mooncake(own_master, max_slices_in_flight=24), Memory(64).fill(3), Memory(64)
    keys = [f"own/{number}" for number in range(64)]
    assert pool.put(keys, source.buffers) == [True] * 64
    assert pool.get(keys, target.buffers) == [True] * 64
    assert np.array_equal(target.bytes, source.bytes)
    assert pool.link.client._current.gate.peak == 24


def test_get_fills_every_destination_when_a_key_comes_twice(shared_mooncake):
    """The bare client reports success and fills only the last one."""
    pool, source, target = shared_mooncake, Memory(2).fill(8), Memory(5)
    keys = ["twice/a", "twice/b"]
    assert pool.put(keys, source.buffers) == [True, True]
    repeated = [keys[0], keys[1], keys[0], keys[0], keys[1]]
    assert _raw_get(pool, repeated, target) == [source.buffers.block_bytes] * 5
    assert not target.bytes[0].any()
    assert pool.get(repeated, target.clear().buffers) == [True] * 5
    assert np.array_equal(target.bytes, source.bytes[[0, 1, 0, 0, 1]])


def test_codes_of_the_bare_client_are_what_we_normalise(shared_mooncake):
    """Get succeeds with the size; -600 too small; -800 too large; an existing key is put with 0."""
    pool, source = shared_mooncake, Memory(1).fill(9)
    assert pool.put(["codes"], source.buffers) == [True]
    assert _raw_get(pool, ["codes"], Memory(1)) == [source.buffers.block_bytes]
    assert _raw_get(pool, ["codes"], Memory(1, segments=2)) == [-600]
    assert _raw_get(pool, ["codes"], Memory(1, segments=4)) == [-800]
    other = Memory(1).fill(10).buffers
    assert _raw(
        pool,
        lambda s: s.batch_put_from_multi_buffers(["codes"], other.addresses.tolist(), [other.sizes.tolist()]),
    ) == [0]
    assert pool.get(["codes"], Memory(1, segments=4).buffers) == [False]


def test_lookup_of_an_alias_keeps_its_group_when_the_pool_overflows(own_master, open_mooncake):
    """Asking for an alias leases the data it stands for; ungrouped data put at the same time is evicted."""
    pool, size = open_mooncake(own_master, 32 << 20), 512 << 10
    own_master.restart()
    data = Memory(16, 1, size).fill(11)
    kept, lost = [f"kept/{i}" for i in range(8)], [f"lost/{i}" for i in range(8)]
    wait_until(lambda: pool.put(["first"], data.buffers.head(64).take(slice(0, 1))) == [True], 60, "segment is back")
    groups = [f"group/{i}" for i in range(8)]
    aliases = [f"alias/{i}" for i in range(8)]
    assert pool.put(lost, data.buffers.take(slice(8, 16))) == [True] * 8
    assert pool.put(kept, data.buffers.take(slice(0, 8)), groups) == [True] * 8
    assert pool.put(aliases, data.buffers.take(slice(0, 8)).head(64), groups) == [True] * 8
    flood = Memory(1, 1, size).fill(12)
    for number in range(160):
        assert pool.exists(aliases) == [True] * 8, "the lease is renewed long before it ends"
        pool.put([f"flood/{number}"], flood.buffers)
    assert sum(pool.get(lost, data.buffers.take(slice(8, 16)))) < 8
    target = Memory(8, 1, size)
    assert pool.get(kept, target.buffers) == [True] * 8
    assert np.array_equal(target.bytes, data.bytes[:8])


@pytest.fixture
def leasing_master():
    """One whose leases last longer than a busy machine holds a test up."""
    with MooncakeMaster("--default_kv_lease_ttl=8s", "--client_ttl=14") as running:
        yield running


def test_put_gives_up_soon_and_recovers_when_everything_is_leased(leasing_master, open_mooncake, monkeypatch):
    """-200 with all keys leased: a few retries, False, and True again when the lease has run out."""
    pool, size = open_mooncake(leasing_master, 16 << 20), 1 << 20
    block = Memory(1, 1, size).fill(13)
    stored = []
    tried = []
    move = Put.move
    monkeypatch.setattr(Put, "move", lambda put, rows: (tried.append("put"), move(put, rows))[1])
    while pool.put([f"full/{len(stored)}"], block.buffers) == [True]:
        stored.append(f"full/{len(stored)}")
        assert all(pool.exists(stored)), "every key is leased, none can be evicted"
        tried.clear()
    assert 10 < len(stored) <= 16
    assert len(tried) == 1 + mooncake.NO_SPACE_RETRIES
    wait_until(lambda: pool.put(["later"], block.buffers) == [True], 60, "the lease has run out")


def test_register_names_the_region_when_mooncake_refuses_it(master, open_mooncake):
    """An exact repeat is fine, an overlap is refused by Mooncake, too many by us."""
    pool, memory = open_mooncake(master, 0), Memory(4)
    whole = memory.region
    pool.register([whole, whole])
    pool.register([whole])
    with pytest.raises(PoolError, match=r"register \d+ bytes at 0x[0-9a-f]+: -600"):
        pool.register([Region(whole.address, 4096)])
    with pytest.raises(PoolError, match=r"257 memory regions .* register 256"):
        pool.register([Region(whole.address + i, 1) for i in range(256)])


def test_two_pools_of_one_process_have_names_of_their_own(master, open_mooncake):
    """local_hostname without a port gets a different free one for every client, held while it lives."""
    names = [open_mooncake(master, 0).link.client._current.name for _ in range(2)]
    assert names[0] != names[1]
    for name in names:
        host, port = name.split(":")
        with socket.socket() as probe, pytest.raises(OSError, match="in use"):
            probe.bind((HOST, int(port)))
        assert host == HOST
