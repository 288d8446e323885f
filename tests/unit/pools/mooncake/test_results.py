"""What becomes of the binding's answers, with a binding that says what the test wants."""

import inspect
import threading
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.blocks import Region
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.guards.breaker import BreakerPolicy, GuardedPool
from mindie_kvpool_plugin.pools.mooncake import MooncakePool, transfer
from mindie_kvpool_plugin.pools.mooncake import client as mooncake_client
from mindie_kvpool_plugin.pools.mooncake import peers as mooncake_peers
from mindie_kvpool_plugin.pools.mooncake.client import Connection, MooncakeClient
from mindie_kvpool_plugin.pools.mooncake.gate import SliceGate
from mindie_kvpool_plugin.pools.mooncake.wedge import WedgeWatch
from tests.conftest import Memory, wait_until


class ScriptedStore:
    """Answers with the next of its answers, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.calls = []
        self.closed = 0
        self.registered = []

    def _next(self, *arguments):
        assert not self.closed, "a closed client was called"
        self.calls.append(arguments)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(*arguments) if callable(answer) else answer

    batch_is_exist = batch_get_into_multi_buffers = batch_put_from_multi_buffers = _next

    def batch_get_replica_desc(self, keys):
        return {}

    def register_buffer(self, address, size_bytes):
        self.registered.append(address)
        return 0

    def close(self):
        assert not self.closed
        self.closed += 1
        return 0


def _pool(*stores, limit=448, protocol="tcp"):
    waiting = list(stores)

    def connect(is_replacement):
        if not waiting:
            raise PoolError("no more clients")
        return Connection(waiting.pop(0), "host:1", SliceGate(limit))

    options = MooncakeOptions("host", "master:1", protocol=protocol, max_slices_in_flight=limit)
    return MooncakePool(MooncakeClient(connect), options, SimpleNamespace)


def _guarded(store):
    """As the walks see it: what the binding raises ends at the breaker."""
    return GuardedPool(_pool(store), "mooncake", BreakerPolicy(), Counters())


@pytest.mark.parametrize("answer", [[], [1], [1, 1, 1], RuntimeError("binding"), [-900, -1], [2, 0]])
def test_exists_is_false_unless_the_answer_is_one_per_key(answer):
    """Empty and wrongly long lists, exceptions and negative codes are not hits."""
    assert _guarded(ScriptedStore(answer)).exists(["a", "b"]) == [False, False]


@pytest.mark.parametrize("answer", [[], [0], [0, 0, 0], RuntimeError("binding"), [-600, -1], [5, 1]])
def test_put_is_false_unless_the_answer_is_zero_per_key(answer):
    """An empty list, which an unopened client gives, is not success."""
    assert _guarded(ScriptedStore(answer)).put(["a", "b"], Memory(2).buffers) == [False, False]


@pytest.mark.parametrize("answer", [[], [12288], RuntimeError("binding"), [-704, -800], [12287, 0], [1, 1]])
def test_get_is_false_unless_the_answer_is_the_size(answer):
    """Anything but the expected number of bytes is a miss."""
    memory = Memory(2)
    assert memory.buffers.block_bytes == 12288
    assert _guarded(ScriptedStore(answer)).get(["a", "b"], memory.buffers) == [False, False]


def test_put_retries_only_the_keys_without_space_and_then_drops_them():
    """Three retries for those keys; the others keep their result."""
    store = ScriptedStore([0, -200, -600, -200], [0, -200], [-200], [-200], AssertionError("too many"))
    assert _pool(store).put(list("abcd"), Memory(4).buffers) == [True, True, False, False]
    assert [call[0] for call in store.calls] == [list("abcd"), ["b", "d"], ["d"], ["d"]]


def test_put_does_not_come_back_for_space_after_the_master_is_gone():
    """One block found no space, then the master died: asking again would wait for it again."""
    store = ScriptedStore([-200, 0], [-900, -900], AssertionError("asked again"))
    assert _pool(store, limit=6).put(list("abcd"), Memory(4).buffers) == [False, True, False, False]
    assert len(store.calls) == 2


def test_many_silent_peers_are_asked_about_twice_at_most(monkeypatch):
    """However many they are and however late a call meets them: each question takes its time limit."""
    asked = []

    def ask(peers, timeout_s):
        asked.append(sorted(peers))
        return dict.fromkeys(peers, "silent")

    monkeypatch.setattr(mooncake_peers, "ask", ask)
    store = ScriptedStore(AssertionError("a silent peer was read from"))

    def descriptors(keys):
        found = {}
        for key in keys:
            place = SimpleNamespace(transport_endpoint=f"127.0.0.1:{9000 + int(key) // 20}")
            memory = SimpleNamespace(buffer_descriptor=place)
            found[key] = [SimpleNamespace(is_memory_replica=lambda: True, get_memory_descriptor=lambda m=memory: m)]
        return found

    monkeypatch.setattr(store, "batch_get_replica_desc", descriptors, raising=False)
    keys = [str(number) for number in range(600)]
    assert _pool(store).get(keys, Memory(600).buffers) == [False] * 600
    assert [len(peers) for peers in asked] == [13, 17]
    assert store.calls == []


def test_put_sends_groups_and_the_own_segment_with_each_piece():
    """Group ids stay with their keys when a call is split."""
    store = ScriptedStore(lambda keys, *_: [0] * len(keys))
    pool = _pool(store, limit=6)
    assert pool.put(list("abc"), Memory(3).buffers, ["ga", "gb", "gc"]) == [True] * 3
    assert [(call[0], call[3].group_ids) for call in store.calls] == [(["a", "b"], ["ga", "gb"]), (["c"], ["gc"])]
    assert {call[3].preferred_segment for call in store.calls} == {"host:1"}


@pytest.mark.parametrize(("protocol", "one_transfer"), [("tcp", False), ("rdma", False), ("ascend", True)])
def test_get_moves_each_key_by_itself_unless_the_protocol_is_ascend(protocol, one_transfer):
    """The fourth argument of the get: True checks no lease and fails keys together."""
    store = ScriptedStore([12288])
    assert _pool(store, protocol=protocol).get(["a"], Memory(1).buffers) == [True]
    assert store.calls[0][3] is one_transfer


@pytest.mark.parametrize(("protocol", "is_believed"), [("tcp", True), ("rdma", True), ("ascend", False)])
def test_a_get_that_outlasts_its_lease_brought_nothing_where_nobody_looks_again(protocol, is_believed, monkeypatch):
    """With one transfer per peer Mooncake answers sizes for whatever lay there in the end."""
    monkeypatch.setattr(transfer, "LEASE_S", -1.0)
    memory = Memory(1)
    pool = _pool(ScriptedStore([12288]), protocol=protocol)
    assert pool.get(["a"], memory.buffers) == [is_believed]
    assert _pool(ScriptedStore([0]), protocol=protocol).put(["a"], memory.buffers) == [True], "who puts needs no lease"


@pytest.mark.parametrize("code", [-900, -901])
def test_get_gives_up_after_the_first_piece_when_the_master_is_gone(code):
    """Each piece would cost seconds."""
    store = ScriptedStore(lambda keys, *_: [code] * len(keys))
    assert _pool(store, limit=3).get(list("abcd"), Memory(4).buffers) == [False] * 4
    assert len(store.calls) == 1


def test_lost_peer_leads_to_one_replacement_with_the_same_regions():
    """The old client is closed when idle, the new one knows the regions; a second loss soon after waits."""
    old, new = ScriptedStore([-800]), ScriptedStore([-800])
    pool, memory = _pool(old, new), Memory(1)
    pool.link.watch = WedgeWatch(span_s=0)
    pool.register([Region(64, 8)])
    for _ in range(3):
        assert pool.put(["a"], memory.buffers) == [False]
    wait_until(lambda: pool.link.client.replacements == 1, 60, "the client is replaced")
    assert (old.closed, old.registered, new.registered) == (1, [64], [64])
    for _ in range(6):
        assert pool.put(["a"], memory.buffers) == [False]
    assert pool.link.client.replacements == 1
    pool.close()
    assert (old.closed, new.closed) == (1, 1)


def test_replacement_is_tried_again_when_the_master_is_away(monkeypatch):
    """Until a new client is there calls answer False; close ends the attempts."""
    monkeypatch.setattr(mooncake_client, "REPLACE_INTERVAL_S", 0.01)
    pool = _pool(ScriptedStore([-800]))
    pool.link.client.replace("test")
    wait_until(lambda: pool.exists(["a"]) == [False], 60, "closed for now")
    pool.close()
    assert pool.link.client.replacements == 0


def test_a_client_that_no_thread_can_replace_is_kept(monkeypatch):
    """It still reaches all peers but the one it lost."""
    pool = _pool(ScriptedStore([1]))
    refused = RuntimeError("can't start new thread")
    with monkeypatch.context() as out_of_threads:
        out_of_threads.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(refused))
        pool.link.client.replace("test")
    assert pool.exists(["a"]) == [True]
    pool.close()


def test_stuck_call_keeps_its_client_until_it_returns():
    """A replaced client is closed by the call that returns last, and close waits for it."""
    entered, leave = threading.Event(), threading.Event()

    def stuck(keys):
        entered.set()
        leave.wait(30)
        return [1] * len(keys)

    old, new = ScriptedStore(stuck), ScriptedStore([1])
    pool = _pool(old, new)
    answers = []
    caller = threading.Thread(target=lambda: answers.append(pool.exists(["a"])))
    caller.start()
    assert entered.wait(60)
    pool.link.client.replace("test")
    wait_until(lambda: pool.exists(["b"]) == [True], 60, "the new client answers")
    assert old.closed == 0
    closer = threading.Thread(target=pool.close)
    closer.start()
    wait_until(lambda: new.closed == 1, 60, "the idle client is closed")
    assert closer.is_alive()
    assert pool.exists(["c"]) == [False]
    leave.set()
    closer.join(10)
    caller.join(10)
    assert answers == [[True]]
    assert old.closed == 1


def test_call_that_finds_no_turn_is_false(monkeypatch):
    """When a stuck transfer holds all slices, other calls answer False in time."""
    monkeypatch.setattr(transfer, "GATE_TIMEOUT_S", 0.05)
    store = ScriptedStore([0])
    pool = _pool(store, limit=3)
    with pool.link.client._current.gate.passing(3, 1):
        assert pool.put(["a", "b"], Memory(2).buffers) == [False, False]
    assert store.calls == []
    assert pool.put(["a"], Memory(1).buffers) == [True]


def test_from_get_to_the_binding_are_four_calls():
    """The path that is read most often stays readable: ARCHITECTURE.md tells it call by call."""
    seen = []

    def look(keys, *_):
        frame = inspect.currentframe()
        while frame is not None and frame.f_code.co_name != "get":
            seen.append(frame.f_code.co_name)
            frame = frame.f_back
        return [12288] * len(keys)

    assert _pool(ScriptedStore(look)).get(["a"], Memory(1).buffers) == [True]
    expected = ["look", "_next", "_in_turn", "_move_all", "_find_and_move", "move"]
    assert seen == expected, "the first two are the test's binding"
