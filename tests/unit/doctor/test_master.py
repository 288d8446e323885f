"""The doctor beside real masters: there, elsewhere, restarted, full, or something else behind the port."""

import http.server
import socket
import threading
import time
import types

import pytest

from chaos.processes import frozen
from mindie_kvpool_plugin.doctor import transfer as transfer_probes
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.admin import Admin
from mindie_kvpool_plugin.pools.registry import open_pool
from mindie_kvpool_plugin.simulator.mooncake_master import MooncakeMaster
from tests.conftest import HOST, Memory, free_port, mooncake_keys, wait_until, write_pool_file
from tests.unit.doctor.conftest import LIVE, SETTLED_FLAGS, UP_TO_CLIENT, case_of, is_answered, state_of, told, troubles
from tests.unit.pools.mooncake.conftest import Child

MIB = 1 << 20
QUICK = {"rpc_timeout_s": 0.5}


@pytest.fixture(scope="module")
def settled():
    """A master with the advised flags, and a pool whose memory it has."""
    with MooncakeMaster(*SETTLED_FLAGS) as running:
        yield running


@pytest.fixture(scope="module")
def holder(settled):
    """Somebody who gives memory, with four blocks in it."""
    child = Child("peer", settled.address, str(32 * MIB), "4", "7")
    assert child.hear() == {"stored": [True] * 4}
    yield child
    leave(child)


def leave(child):
    """Close its client properly, so that its memory is gone at once."""
    child.process.stdin.close()
    child.process.stdin = None
    assert child.hear() == {"closed": True}
    child.end()


def test_everything_is_good_beside_a_healthy_pool(settled, holder, pool_path_of):
    """No trouble, no warning; an object went to the holder and back, and the pool is as it was."""
    before = state_of(settled)
    lines = told(case_of(pool_path_of(settled)), *LIVE)
    assert is_answered(lines)
    assert {line.verdict for line in lines.values() if line.id != "client.slow"} == {"good", "note"}
    assert {"address.connected", "admin.answers", "flags.version", "flags.right"} <= lines.keys()
    assert lines["capacity.has_room"].params["total"] == "32"
    assert lines["transfer.verified"].params["holder"] == before[1][0]
    assert state_of(settled) == before
    assert before[0] == 4


def test_memory_in_stores_is_told_from_memory_in_ranks(settled, holder, pool_path_of):
    """Each with what a restart loses."""
    lines = told(case_of(pool_path_of(settled, global_segment_size=0)), *LIVE)
    assert "capacity.in_stores" in lines
    assert "capacity.in_ranks" not in lines


def test_objects_go_to_every_holder(settled, holder, run_child, pool_path_of):
    """Each by its name, and each at its own place."""
    other = run_child("peer", settled.address, str(16 * MIB), "0", "7")
    other.hear()
    before = state_of(settled)
    assert len(before[1]) == 2
    case = case_of(pool_path_of(settled))
    lines = [line for line in all_lines(case) if line.id == "transfer.verified"]
    assert sorted(line.params["holder"] for line in lines) == before[1]
    assert len({line.params["at"] for line in lines}) == 2
    assert state_of(settled) == before
    leave(other)


def all_lines(case):
    from mindie_kvpool_plugin.doctor.examine import examine
    from mindie_kvpool_plugin.doctor.table import PROBES

    return [line for _, lines in examine(case, [each for each in PROBES if each.name in LIVE]) for line in lines]


def test_a_pool_without_memory_is_lent_some(own_master, pool_path_of):
    """It is tried all the same, and the doctor's memory is gone afterwards."""
    assert state_of(own_master) == (0, [])
    lines = told(case_of(pool_path_of(own_master)), *LIVE)
    assert {"capacity.in_ranks", "capacity.empty", "transfer.own_memory", "transfer.verified"} <= lines.keys()
    assert troubles(lines) == []
    assert state_of(own_master) == (0, [])


def test_no_master(own_master, only_masters, pool_path_of):
    """Told with the command that starts one; what needs it is not tried."""
    path = pool_path_of(own_master)
    own_master.stop()
    only_masters()
    lines = told(case_of(path), *LIVE)
    assert troubles(lines) == ["address.refused"]
    assert f"--rpc_port={own_master.port}" in lines["address.refused"].fix("en")
    assert {f"{name}.not_tried" for name in LIVE[2:]} <= lines.keys()


def test_wrong_port_where_a_master_serves_another_one(settled, only_masters, pool_path):
    """The port it serves is named."""
    only_masters(settled)
    wrong = f"{HOST}:{free_port()}"
    lines = told(case_of(pool_path({**mooncake_keys(settled), "master_server_address": wrong})), *UP_TO_CLIENT)
    assert troubles(lines) == ["address.other_port"]
    assert lines["address.other_port"].params["other"] == settled.port
    assert settled.address in lines["address.other_port"].fix("en")


def test_a_name_that_nobody_knows(settled, pool_path):
    """The reserved domain never resolves."""
    keys = {**mooncake_keys(settled), "master_server_address": "master.invalid:50051"}
    assert troubles(told(case_of(pool_path(keys)), *UP_TO_CLIENT)) == ["address.unresolved"]


def test_the_metrics_port_is_no_master(settled, holder, pool_path):
    """Known by its pages, within the time of one call."""
    before = state_of(settled)
    keys = {**mooncake_keys(settled, **QUICK), "master_server_address": f"{HOST}:{settled.metrics_port}"}
    assert troubles(told(case_of(pool_path(keys)), *LIVE)) == ["client.metrics_port"]
    assert state_of(settled) == before


def test_another_http_server_is_no_master(settled, pool_path):
    """Whatever it serves."""
    with http.server.HTTPServer((HOST, 0), QuietHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        keys = {**mooncake_keys(settled, **QUICK), "master_server_address": f"{HOST}:{server.server_port}"}
        assert troubles(told(case_of(pool_path(keys)), *UP_TO_CLIENT)) == ["client.http"]
        server.shutdown()


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Knows no page."""

    def do_GET(self):
        self.send_error(404)

    def log_message(self, *_):
        pass


def test_a_port_that_accepts_and_says_nothing(settled, pool_path):
    """Given up in the time of one call to a master, where Mooncake itself waits 30 s."""
    with socket.create_server((HOST, 0)) as silent:
        keys = {**mooncake_keys(settled, **QUICK), "master_server_address": f"{HOST}:{silent.getsockname()[1]}"}
        assert troubles(told(case_of(pool_path(keys)), *UP_TO_CLIENT)) == ["client.silent"]


def test_a_master_that_hangs(own_master, pool_path_of):
    """It accepts connections, and a frozen process answers nobody."""
    path = pool_path_of(own_master, **QUICK)
    with frozen(own_master.pid):
        assert troubles(told(case_of(path), *UP_TO_CLIENT)) == ["client.silent"]


def test_a_restarted_master(own_master, pool_path_of, tmp_path):
    """Its memory came back without having been mounted: it was given to the one before."""
    pool = open_pool("mooncake", write_pool_file(tmp_path, **mooncake_keys(own_master, 32 * MIB)), "worker")
    memory = Memory(2).fill(1)
    assert pool.put(["a", "b"], memory.buffers) == [True, True]
    own_master.restart()
    wait_until(lambda: own_master.metric("master_remount_segment_requests_total") >= 1, 60, "mounted again")
    before = state_of(own_master)
    lines = told(case_of(pool_path_of(own_master)), *LIVE)
    assert lines["history.restarted"].verdict == "warning"
    assert lines["history.restarted"].params["keys"] == 0
    assert "transfer.verified" in lines
    assert state_of(own_master) == before
    pool.close()


def test_owners_that_were_forgotten_are_no_restart(forgetful_master, pool_path_of, run_child):
    """A process that stood still for longer than client_ttl comes back to the same master."""
    child = run_child("peer", forgetful_master.address, str(16 * MIB), "0", "1")
    child.hear()
    # with its first ping an owner mounts what it has mounted; before that a second mount would not be told from it
    wait_until(lambda: forgetful_master.metric("master_remount_segment_requests_total") == 1, 60, "its first ping")
    with frozen(child.process.pid):
        wait_until(lambda: state_of(forgetful_master)[1] == [], 60, "forgotten")
    wait_until(lambda: state_of(forgetful_master)[1] != [], 60, "back")
    assert "history.remounted" in told(case_of(pool_path_of(forgetful_master)), *LIVE)


@pytest.fixture
def full(tmp_path):
    """A master, and the pool file and keys of a pool all of whose memory is leased: nothing can be evicted."""
    with MooncakeMaster("--default_kv_lease_ttl=60s", "--eviction_high_watermark_ratio=1") as running:
        file = write_pool_file(tmp_path, **mooncake_keys(running, 16 * MIB))
        pool = open_pool("mooncake", file, "worker")
        memory, keys = Memory(1, 1, MIB).fill(3), []
        while pool.put([f"key{len(keys)}"], memory.buffers) == [True]:
            keys.append(f"key{len(keys)}")
            assert pool.exists(keys[-1:]) == [True]
        assert len(keys) > 10
        yield running, file, pool, keys
        pool.close()


def test_a_full_pool(full, pool_path_of):
    """-200, and nothing is left or lost."""
    running, _, pool, keys = full
    before = state_of(running)
    assert before[0] == len(keys)
    lines = told(case_of(pool_path_of(running)), *LIVE)
    assert troubles(lines) == ["transfer.no_space"]
    assert "capacity.full" in lines
    assert state_of(running) == before
    assert pool.exists(keys) == [True] * len(keys)


def test_a_holder_without_space_is_told(full, pool_path_of):
    """The object goes to the other one, and back out of it."""
    running, file, pool, keys = full
    name = state_of(running)[1][0]
    other = open_pool("mooncake", file, "worker")
    before = state_of(running)
    lines = told(case_of(pool_path_of(running)), *LIVE)
    assert troubles(lines) == []
    assert lines["transfer.elsewhere"].params["holder"] == name
    assert state_of(running) == before
    assert pool.exists(keys) == [True] * len(keys)
    other.close()


def test_a_holder_that_hangs_is_named_and_not_touched(settled, holder, pool_path_of):
    """A put that the master places there would have no end."""
    before = state_of(settled)
    with frozen(holder.process.pid):
        lines = told(case_of(pool_path_of(settled)), *LIVE)
    assert troubles(lines) == ["capacity.dead"]
    assert lines["capacity.dead"].params["segment"] == before[1][0]
    assert "transfer.not_tried" in lines
    wait_until(lambda: state_of(settled)[1] == before[1], 60, "back")


def test_a_transfer_that_hangs_is_killed_and_told(pool_path_of, run_child, monkeypatch, hurried):
    """The holder stands still after it was asked: Mooncake's own wait has no end, the doctor's time has."""
    monkeypatch.setattr(transfer_probes, "not_answering", lambda case: [])
    with MooncakeMaster("--client_ttl=60") as running:
        child = run_child("peer", running.address, str(32 * MIB), "0", "7")
        child.hear()
        segments = state_of(running)[1]
        case, hanging = case_of(pool_path_of(running), timeout_s=600.0), []

        def has_begun_to_put(process):
            if not hanging and state_of(running)[0] == 1:
                hanging.append(process)
            return process in hanging

        limits = hurried(has_begun_to_put)
        with frozen(child.process.pid):
            lines = told(case, *LIVE)
        assert all(limit is None or limit < case.timeout_s for limit in limits)
        assert lines["transfer.died"].params["ending"] == "killed"
        # what was begun and not finished the master alone can discard; it is told by its name
        assert lines["transfer.left"].params["keys"].startswith("default/doctor/")
        assert state_of(running) == (1, segments)


def test_flags_that_cost_something(pool_path_of):
    """Each is named, with what to write instead."""
    flags = (
        "--eviction_high_watermark_ratio=0.8",
        "--eviction_ratio=0.05",
        "--enable_kv_events",
        "--default_kv_lease_ttl=500ms",
        "--client_ttl=300",
    )
    with MooncakeMaster(*flags) as running:
        path = pool_path_of(running)
        case = case_of(path)
        found = [line for line in all_lines(case) if line.verdict == "warning" and line.id != "client.slow"]
    assert {line.id for line in found} == {
        "flags.advised",
        "flags.kv_events",
        "flags.short_lease",
        "flags.client_ttl",
        "capacity.empty",
    }
    advised = [line.fix("en") for line in found if line.id == "flags.advised"]
    assert any("--eviction_high_watermark_ratio=0.95" in fix for fix in advised)
    assert any("--eviction_ratio=0.02" in fix for fix in advised)


@pytest.mark.parametrize("changes", [{}, {"rpc_address": "0.0.0.0", "metrics_host": "8.8.8.8"}])
def test_a_master_open_to_strangers(changes):
    """By default it is; a stand-in for its flags, since a test binds loopback alone."""
    from mindie_kvpool_plugin.doctor.flags import flags
    from mindie_kvpool_plugin.doctor.processes import MasterProcess

    process = MasterProcess(1, {"client_ttl": "10", **changes}, frozenset(), 1000.0, "")
    case = types.SimpleNamespace(process=process, mooncake=MooncakeOptions(HOST, f"{HOST}:1"))
    found = [line for line in flags(case) if line.id == "flags.public"]
    assert {line.params["flag"] for line in found} == {"rpc_address", "metrics_host"}


def test_left_objects_are_removed_by_a_second_child(own_master, pool_path_of, tmp_path):
    """The first died after its put: of its object the parent knows the key."""
    from mindie_kvpool_plugin.doctor.child import Told
    from mindie_kvpool_plugin.doctor.transfer import _left_behind

    pool = open_pool("mooncake", write_pool_file(tmp_path, **mooncake_keys(own_master, 16 * MIB)), "worker")
    assert pool.put(["mine"], Memory(1).fill(1).buffers) == [True]
    assert pool.exists(["mine"]) == [True]  # leased
    case = case_of(pool_path_of(own_master))
    told(case, "pool_file")
    assert list(_left_behind(Told([{"step": "connected"}], "killed"), ["mine"], case)) == []
    assert Admin(HOST, own_master.metrics_port).metrics()["master_key_count"] == 0
    pool.close()


def test_the_whole_examination_ends_in_its_time(settled, pool_path):
    """A port that says nothing, and less time than one call to it takes."""
    with socket.create_server((HOST, 0)) as silent:
        keys = {**mooncake_keys(settled), "master_server_address": f"{HOST}:{silent.getsockname()[1]}"}
        case, began = case_of(pool_path(keys)), []

        def hurry(probe):
            if probe.name == "client":
                began.append(time.monotonic())
                case.timeout_s = began[0] - case.began_s + 1.0

        lines = told(case, *LIVE, began=hurry)
    assert time.monotonic() - began[0] < 5
    assert [name.partition(".")[0] for name in troubles(lines)] == ["client"]
    assert "transfer.not_tried" in lines
