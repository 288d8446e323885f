"""Memory leaves the pool when its process does: real processes, a real master that would list it for a minute more."""

import signal

import pytest

from chaos.engine import ChaosConfig
from chaos.processes import frozen
from chaos.stage import EngineProcess
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import leftovers, peers, segments
from mindie_kvpool_plugin.pools.mooncake.admin import Admin
from mindie_kvpool_plugin.simulator.mooncake_master import HOST, MooncakeMaster
from mindie_kvpool_plugin.simulator.mooncake_master import write_pool_file as write_engines_pool_file
from tests.conftest import Memory, free_port, wait_until

SEGMENT_BYTES = 32 << 20
NUM_KEYS = 8
SOON_S = 20.0  # a busy machine; the master itself would wait three times as long
PATIENT_S = 60.0


@pytest.fixture(scope="module")
def patient_master():
    """A master that lists a silent client for a minute."""
    with MooncakeMaster("--default_kv_lease_ttl=500ms", "--client_ttl=60") as running:
        yield running


@pytest.fixture
def admin(patient_master):
    return Admin(HOST, patient_master.metrics_port, PATIENT_S)


@pytest.fixture
def leaver(run_child, patient_master):
    """A process with a segment of its own that holds some keys; (child, what it said)."""
    child = run_child("leaver", patient_master.address, str(SEGMENT_BYTES), str(NUM_KEYS), "7")
    said = child.hear()
    assert said["stored"] == [True] * NUM_KEYS
    return child, said


def go_on(child):
    child.process.stdin.write("\n")
    child.process.stdin.flush()


def names(admin):
    return {segment.name for segment in admin.segments()}


def test_a_process_that_leaves_is_forgotten_at_once(leaver, admin, patient_master, open_mooncake):
    """Its keys exist no more and its segment is gone, long before the master would miss it."""
    child, said = leaver
    other = open_mooncake(patient_master, segment_bytes=0)
    assert said["name"] in names(admin)
    assert other.exists(said["keys"]) == [True] * NUM_KEYS
    go_on(child)
    left = child.hear()
    go_on(child)
    assert child.wait() == 1
    wait_until(lambda: said["name"] not in names(admin), SOON_S, "the master forgets the segment")
    assert other.exists(said["keys"]) == [False] * NUM_KEYS
    assert left["again"] == [True] * NUM_KEYS  # until then its own calls went on as ever
    assert left["is_right"]


def test_a_process_that_does_not_leave_is_listed_on(leaver, admin, patient_master, open_mooncake):
    """The loss this is about: the same process, killed, and its keys still exist."""
    child, said = leaver
    other = open_mooncake(patient_master, segment_bytes=0)
    child.signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert said["name"] in names(admin)
    assert other.exists(said["keys"]) == [True] * NUM_KEYS
    assert other.get(said["keys"], Memory(NUM_KEYS).buffers) == [False] * NUM_KEYS


def test_who_reads_while_the_memory_leaves_reads_right_bytes_or_none(leaver, admin, patient_master, open_mooncake):
    """From before it leaves until it is forgotten, the process alive: what arrives is what was put."""
    child, said = leaver
    other, memory = open_mooncake(patient_master, segment_bytes=0), Memory(NUM_KEYS)
    expected = Memory(NUM_KEYS).fill(7).bytes
    assert other.get(said["keys"], memory.buffers) == [True] * NUM_KEYS
    go_on(child)
    while True:
        is_over = said["name"] not in names(admin)
        arrived = other.get(said["keys"], memory.clear().buffers)
        for number, is_there in enumerate(arrived):
            assert not is_there or (memory.bytes[number] == expected[number]).all()
        if is_over:
            break
    assert arrived == [False] * NUM_KEYS


def test_nothing_is_put_where_memory_leaves(patient_master, open_mooncake, admin):
    """From the moment it left its own puts go elsewhere, or nowhere."""
    pool, memory = open_mooncake(patient_master, SEGMENT_BYTES), Memory(1).fill(1)
    name = pool.link.client._current.name
    elsewhere = len([segment for segment in admin.segments() if segment.status == "OK"]) - 1
    pool.leave()
    (own,) = [segment for segment in admin.segments() if segment.name == name] or [None]
    assert own is None or own.status != "OK"
    used = own.used_bytes if own is not None else 0
    stored = pool.put(["late"], memory.buffers)
    assert elsewhere or stored == [False]
    after = [segment.used_bytes for segment in admin.segments() if segment.name == name]
    assert after in ([], [used])
    pool.leave()  # a second time there is nothing left to say
    assert pool.exists(["never"]) == [False]


def test_memory_that_setup_mounts_differently_stays_with_it(patient_master, open_mooncake, monkeypatch):
    """Huge pages come with setup only: then there is nothing to take out but the client, and leaving says nothing."""
    assert not segments.can_mount(object(), SEGMENT_BYTES, "tcp")  # a library without the calls
    monkeypatch.setenv("ASCEND_ENABLE_USE_FABRIC_MEM", "1")
    by_setup = open_mooncake(patient_master, SEGMENT_BYTES)
    connection = by_setup.link.client._current
    assert connection.segment_ids == ()
    assert not segments.can_mount(connection.store, SEGMENT_BYTES, "ascend")
    monkeypatch.delenv("ASCEND_ENABLE_USE_FABRIC_MEM")
    assert segments.can_mount(connection.store, SEGMENT_BYTES, "ascend")
    assert not segments.can_mount(connection.store, SEGMENT_BYTES, "rdma")
    assert by_setup.put(["of setup"], Memory(1).fill(3).buffers) == [True]
    by_setup.leave()
    assert by_setup.exists(["of setup"]) == [True]


@pytest.mark.parametrize("size_bytes", [32 << 20, (17 << 20) + 4096])
def test_no_more_memory_is_given_than_the_pool_file_says(patient_master, open_mooncake, admin, size_bytes):
    """What is mounted apart is rounded up; a size that would be stays with setup."""
    before = names(admin)
    open_mooncake(patient_master, size_bytes)
    assert [segment.size_bytes for segment in admin.segments() if segment.name not in before] == [size_bytes]


@pytest.fixture
def engine(tmp_path, patient_master):
    """A simulated engine whose process listens as the host's workers do."""
    path = tmp_path / "pool.json"
    write_engines_pool_file(path, patient_master.address, SEGMENT_BYTES)
    process = EngineProcess(ChaosConfig(pool_file=str(path)), tmp_path / "engine.log")
    process.wait_for("ready")
    yield process
    process.end()


def test_an_engine_that_is_told_to_stop_leaves_the_pool(engine, admin, tmp_path):
    """SIGTERM: the host closes its channels, a core thread exits with status 1, and the master has heard before."""
    before = names(admin)
    assert engine.ask(requests=8)["spilled_blocks"] > 0
    assert engine.terminate() == 1
    log = (tmp_path / "engine.log").read_text()
    assert "leaves the pool" in log
    (name,) = [name for name in before if name in log]
    wait_until(lambda: name not in names(admin), SOON_S, "the master forgets the engine's segment")


def test_an_engine_ends_in_time_also_beside_a_master_that_hangs(engine, patient_master, tmp_path):
    """It ends as it would without a pool: nobody waits for an answer that does not come."""
    with frozen(patient_master.pid):
        assert engine.terminate() == 1
    assert "leaves the pool" not in (tmp_path / "engine.log").read_text()


def test_what_a_killed_process_held_is_promised_once_and_can_be_stored_again(leaver, patient_master, open_mooncake):
    """The get that does not find it takes it out of the pool; else nobody could store it before the master forgets."""
    child, said = leaver
    other, memory = open_mooncake(patient_master, SEGMENT_BYTES), Memory(NUM_KEYS).fill(9)
    alive = ["of the living"]
    assert other.put(alive, memory.buffers.take(slice(0, 1))) == [True]
    child.signal(signal.SIGKILL)
    child.wait()
    assert other.exists(said["keys"]) == [True] * NUM_KEYS  # with a lease on each

    def is_taken_out():  # at once, unless this process was held up between a question and the removal
        assert other.get(said["keys"], Memory(NUM_KEYS).buffers) == [False] * NUM_KEYS
        return other.exists(said["keys"] + alive) == [False] * NUM_KEYS + [True]

    wait_until(is_taken_out, SOON_S, "what it held is gone")
    assert other.put(said["keys"], memory.buffers) == [True] * NUM_KEYS
    back = Memory(NUM_KEYS)
    assert other.get(said["keys"], back.buffers) == [True] * NUM_KEYS
    assert (back.bytes == memory.bytes).all()


@pytest.mark.parametrize("when", ["asked", "answered"])
def test_what_was_stored_anew_meanwhile_stays(run_child, forgetful_master, open_mooncake, monkeypatch, when):
    """The master forgets the dead process just then, and another one stores the same key: it is not taken from it."""
    child = run_child("leaver", forgetful_master.address, str(SEGMENT_BYTES), str(NUM_KEYS), "7")
    said, admin = child.hear(), Admin(HOST, forgetful_master.metrics_port, PATIENT_S)
    other, third = open_mooncake(forgetful_master, SEGMENT_BYTES), open_mooncake(forgetful_master, SEGMENT_BYTES)
    memory, real, stored = Memory(NUM_KEYS).fill(9), peers.Peers.dead, []

    def store_anew():
        wait_until(lambda: said["name"] not in names(admin), PATIENT_S, "the master forgets the segment")
        stored.append(third.put(said["keys"], memory.buffers))

    def dead(self, asked):
        if when == "asked" and not stored:
            store_anew()
        found = real(self, asked)
        if when == "answered" and not stored:
            store_anew()
        return found

    monkeypatch.setattr(peers.Peers, "dead", dead)
    child.signal(signal.SIGKILL)
    child.wait()
    other.get(said["keys"], Memory(NUM_KEYS).buffers)
    assert stored == [[True] * NUM_KEYS]
    back = Memory(NUM_KEYS)
    assert third.get(said["keys"], back.buffers) == [True] * NUM_KEYS
    assert (back.bytes == memory.bytes).all()


def test_what_lies_with_another_machine_is_left_alone(leaver, patient_master, open_mooncake, monkeypatch):
    """It refuses us and may let others in: its blocks are theirs to keep."""
    child, said = leaver
    other = open_mooncake(patient_master, segment_bytes=0)
    monkeypatch.setattr(peers, "is_here", lambda host: False)
    child.signal(signal.SIGKILL)
    child.wait()
    assert other.get(said["keys"], Memory(NUM_KEYS).buffers) == [False] * NUM_KEYS
    assert other.exists(said["keys"]) == [True] * NUM_KEYS


def test_a_start_tells_of_memory_whose_process_is_gone(forgetful_master, run_child, open_mooncake, caplog, monkeypatch):
    """How much, whose, and for how long; and a line when it is over.  What lives is not named."""
    monkeypatch.setattr(leftovers.logger, "propagate", True)
    monkeypatch.setattr(leftovers, "POLL_S", 0.02)
    caplog.set_level("INFO")
    own_admin = Admin(HOST, forgetful_master.metrics_port, PATIENT_S)
    living = open_mooncake(forgetful_master, SEGMENT_BYTES)
    leftovers.tell(own_admin)
    assert caplog.text == ""
    child = run_child("leaver", forgetful_master.address, str(SEGMENT_BYTES), str(NUM_KEYS), "7")
    name = child.hear()["name"]
    child.signal(signal.SIGKILL)
    child.wait()
    leftovers.tell(own_admin)
    first, *_, last = [record.getMessage() for record in caplog.records if "gone" in record.getMessage()]
    assert f"{SEGMENT_BYTES} bytes" in first
    assert name in first
    assert "client_ttl" in first
    assert living.link.client._current.name not in first
    assert "has forgotten" in last
    assert name not in names(own_admin)


def test_a_start_asks_where_the_master_tells_and_is_silent_where_it_does_not(own_master, monkeypatch, caplog):
    """The scheduler's client looks; a port on which nobody tells is no trouble."""
    monkeypatch.setattr(leftovers.logger, "propagate", True)
    asked = []
    monkeypatch.setattr(leftovers, "Admin", lambda host: asked.append(host) or Admin(host, free_port(), timeout_s=0.5))
    leftovers._watch(MooncakeOptions(HOST, f"{HOST}:{own_master.port}"))
    assert asked == [HOST]
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []
