"""mindie-kvpool store: memory, and an SSD, that stay when engines go, on a real master."""

import re
import signal
import socket
import time
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from mindie_kvpool_plugin.cli.main import main
from mindie_kvpool_plugin.observability.questions import ask_all
from mindie_kvpool_plugin.options.pool_file import read_pool_file
from mindie_kvpool_plugin.pools.mooncake.admin import Admin
from mindie_kvpool_plugin.pools.registry import open_pool
from mindie_kvpool_plugin.simulator.mooncake_master import HOST, MooncakeMaster
from tests.commands import START_S, pool_file
from tests.conftest import Memory, free_port, wait_until

MIB = 1 << 20
SMALL = {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": str(64 * MIB)}
BLOCKS, SEGMENTS, SEGMENT_BYTES = 16, 1, MIB


def run(*args, lang="en"):
    return CliRunner().invoke(main, ["store", "--lang", lang, *map(str, args)], prog_name="mindie-kvpool")


@pytest.fixture
def start(begin):
    """A store in a process of its own."""
    return partial(begin, "store")


def engine_file(folder, master):
    """The pool file that store and engines share: engines give nothing."""
    return pool_file(folder, master.address, global_segment_size=0, local_buffer_size=0)


@pytest.fixture
def engine():
    """Opens the pool as a worker without memory of its own does."""
    opened = []

    def open_it(path):
        opened.append(open_pool("mooncake", read_pool_file(str(path)), "worker"))
        return opened[-1]

    yield open_it
    for pool in opened:
        pool.close()


def segments(master):
    return Admin(HOST, master.metrics_port, START_S).segments()


def keys(count, name="key"):
    return [f"{name}-{number}" for number in range(count)]


def put_each(pool, names, memory, timeout_s=60):
    """Put one after the other until each is in: a full pool needs its time to write to disk."""
    deadline = time.monotonic() + timeout_s
    for row, name in enumerate(names):
        while not pool.put([name], memory.buffers.take(slice(row, row + 1)))[0]:
            assert time.monotonic() < deadline, f"puts of {name} are refused"


def test_store_is_part_of_the_pool_until_it_is_told_to_end(tmp_path, start, own_master, engine):
    """Ready when its memory is mounted; engines without memory store there; afterwards the master has nothing of it."""
    path = engine_file(tmp_path, own_master)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(START_S)
        store = start(path, "--size", "32MB", "--drain", "1", NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert systemd.recv(1024).startswith(b"READY=1\n")
        assert "0.03 GiB are part of the pool" in store.line()
        assert [each.size_bytes for each in segments(own_master)] == [32 * MIB]
        memory = Memory(BLOCKS, SEGMENTS, SEGMENT_BYTES).fill(1)
        assert all(engine(path).put(keys(BLOCKS), memory.buffers))
        assert segments(own_master)[0].used_bytes == BLOCKS * MIB
        status, errors = store.end(signal.SIGTERM)
        assert status == 0, errors
        assert systemd.recv(1024) == b"STOPPING=1"
    assert segments(own_master) == []


def test_blocks_outlive_the_engine_that_stored_them(tmp_path, start, own_master, engine):
    """The engine closes, another one opens: every byte is there."""
    path = engine_file(tmp_path, own_master)
    start(path, "--size", "32MB").line()
    first, memory = engine(path), Memory(BLOCKS, SEGMENTS, SEGMENT_BYTES).fill(2)
    assert all(first.put(keys(BLOCKS), memory.buffers))
    first.close()
    back = Memory(BLOCKS, SEGMENTS, SEGMENT_BYTES)
    assert all(engine(path).get(keys(BLOCKS), back.buffers))
    assert (back.bytes == memory.bytes).all()


def test_ending_store_takes_no_blocks_and_still_gives_them(tmp_path, start, own_master, engine):
    """During the time of grace what it holds can be read and nothing is put there; a second signal ends it at once."""
    path = engine_file(tmp_path, own_master)
    store = start(path, "--size", "32MB", "--drain", "30")
    store.line()
    pool, memory = engine(path), Memory(4, SEGMENTS, SEGMENT_BYTES).fill(3)
    assert all(pool.put(keys(4), memory.buffers))
    store.tell(signal.SIGTERM)
    store.hear("leaving the pool")
    wait_until(lambda: segments(own_master)[0].status != "OK", START_S, "the master knows")
    assert [each.status for each in segments(own_master)] == ["GRACEFULLY_UNMOUNTING"]
    back = Memory(4, SEGMENTS, SEGMENT_BYTES)
    assert all(pool.get(keys(4), back.buffers))
    assert (back.bytes == memory.bytes).all()
    assert not any(pool.put(keys(4, "later"), memory.buffers))
    assert store.process.poll() is None
    store.tell(signal.SIGTERM)
    assert store.end()[0] == 128 + signal.SIGTERM


def test_store_mounts_again_after_a_restart_of_the_master(tmp_path, start, own_master, engine):
    """By itself, under its name, empty; both are said in the log."""
    path = engine_file(tmp_path, own_master)
    store = start(path, "--size", "32MB", "--drain", "0", "--metrics-port", own_master.metrics_port)
    store.line()
    before = segments(own_master)
    own_master.kill()
    assert own_master.address in store.hear("does not answer")
    own_master.start()
    store.hear("answers again")
    wait_until(lambda: segments(own_master) == before, START_S, "the memory is mounted again")
    memory = Memory(4, SEGMENTS, SEGMENT_BYTES).fill(4)
    put_each(engine(path), keys(4), memory)
    assert store.end(signal.SIGTERM)[0] == 0


def test_store_ends_in_time_without_its_master(tmp_path, start, own_master):
    """Nobody is there to be told."""
    store = start(engine_file(tmp_path, own_master), "--size", "16MB", "--drain", "0")
    store.line()
    own_master.kill()
    store.hear("does not answer")
    began = time.monotonic()
    store.tell(signal.SIGTERM)
    store.hear("leaving without the master")
    assert store.end()[0] == 0
    assert time.monotonic() - began < 30


def test_memory_is_warm_when_that_is_asked_for(tmp_path, start, own_master):
    """All of it is in memory before anybody has written to it."""
    cold = start(engine_file(tmp_path, own_master), "--size", "256MB", "--drain", "0")
    warm = start(engine_file(tmp_path, own_master), "--size", "256MB", "--drain", "0", "--warm")
    cold.line()
    warm.line()
    assert re.search(r"warmed \d\.\d GiB in \d+\.\d s", warm.hear("warmed"))
    assert resident(warm.pid) > resident(cold.pid) + 200 * MIB


def resident(pid):
    fields = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(fields[1]) * 1024


@pytest.fixture
def ssd_master():
    """One for stores with an SSD tier, as ``master --ssd`` starts it; it forgets a dead store soon."""
    flags = ("--enable_offload=true", "--offload_on_evict=true", "--eviction_high_watermark_ratio=0.95")
    with MooncakeMaster("--client_ttl=3", "--default_kv_lease_ttl=5s", "--eviction_ratio=0.02", *flags) as running:
        yield running


def count_readable(pool, names, memory):
    back = Memory(len(names), SEGMENTS, SEGMENT_BYTES)
    good = pool.get(names, back.buffers)
    wrong = [row for row, is_good in enumerate(good) if is_good and (back.bytes[row] != memory.bytes[row]).any()]
    assert wrong == []
    return sum(good)


def on_disk(folder):
    return sum(path.stat().st_size for path in folder.rglob("*.bucket"))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_disk_of_a_store_is_there_again_after_a_restart(tmp_path, start, ssd_master, engine, how):
    """More blocks than memory, none lost; what was on disk is read back by a store that follows, proper end or not."""
    path, folder, count = engine_file(tmp_path, ssd_master), tmp_path / "ssd", 64
    arguments = (path, "--size", "32MB", "--ssd", folder, "--ssd-size", "128MB", "--drain", "0")
    arguments += ("--metrics-port", ssd_master.metrics_port)
    store = start(*arguments, **SMALL)
    store.line()
    pool, memory = engine(path), Memory(count, SEGMENTS, SEGMENT_BYTES).fill(5)
    put_each(pool, keys(count), memory)
    assert count_readable(pool, keys(count), memory) == count
    kept = on_disk(folder) // MIB
    assert kept >= 16
    store.end(how)
    follower = start(*arguments, **SMALL)
    if how == signal.SIGKILL:
        follower.hear("waiting up to")
    follower.line()
    wait_until(lambda: sum(pool.exists(keys(count))) >= kept, START_S, "the keys on disk are known again")
    assert count_readable(pool, keys(count), memory) >= kept
    # a master that forgot the dead store late would take the keys away again now
    still = time.monotonic() + 5
    wait_until(lambda: time.monotonic() > still or sum(pool.exists(keys(count))) < kept, 60, "time passes")
    assert sum(pool.exists(keys(count))) >= kept


def test_disk_keeps_to_its_size(tmp_path, start, ssd_master, engine):
    """Four times as much as it may take: the least recently used leave, and puts go on."""
    path, folder, count = engine_file(tmp_path, ssd_master), tmp_path / "ssd", 160
    start(path, "--size", "32MB", "--ssd", folder, "--ssd-size", "40MB", **SMALL).line()
    pool, memory = engine(path), Memory(count, SEGMENTS, SEGMENT_BYTES).fill(6)
    put_each(pool, keys(count), memory)
    assert 8 * MIB < on_disk(folder) <= 40 * MIB
    assert 32 <= count_readable(pool, keys(count), memory) < count


def test_ssd_needs_a_master_that_knows_of_it(tmp_path, start, own_master):
    """It would stay empty without a word."""
    path = engine_file(tmp_path, own_master)
    store = start(path, "--size", "32MB", "--ssd", tmp_path / "ssd", "--ssd-size", "64MB", **SMALL)
    status, errors = store.end()
    assert status == 2
    assert "runs without --enable_offload" in errors
    assert "master CONFIG --ssd" in errors


def test_two_stores_do_not_share_a_folder(tmp_path, start, ssd_master):
    """The second is told so."""
    path = engine_file(tmp_path, ssd_master)
    arguments = (path, "--size", "32MB", "--ssd", tmp_path / "ssd", "--ssd-size", "64MB")
    start(*arguments, **SMALL).line()
    status, errors = start(*arguments, **SMALL).end()
    assert status == 2
    assert "another store has it" in errors


def test_figures_of_a_store_are_there_for_whoever_asks(tmp_path, start, ssd_master, engine):
    """Memory, what is used of it, the disk and the master; nothing is left when it ended."""
    path = engine_file(tmp_path, ssd_master)
    arguments = ("--ssd", tmp_path / "ssd", "--ssd-size", "64MB", "--drain", "0")
    store = start(path, "--size", "32MB", *arguments, "--metrics-port", ssd_master.metrics_port, **SMALL)
    store.line()
    memory = Memory(40, SEGMENTS, SEGMENT_BYTES).fill(7)
    put_each(engine(path), keys(40), memory)
    wait_until(lambda: figures(store.pid)["store_disk_bytes"] >= 4 * MIB, START_S, "the disk's figure")
    now = figures(store.pid)
    assert (now["store_memory_bytes"], now["store_disk_limit_bytes"]) == (32 * MIB, 64 * MIB)
    assert 8 * MIB <= now["store_used_bytes"] <= 32 * MIB
    assert (now["store_master_answers"], now["store_master_losses_total"]) == (1, 0)
    ssd_master.kill()
    wait_until(lambda: figures(store.pid)["store_master_answers"] == 0, START_S, "the lost master shows")
    assert figures(store.pid)["store_master_losses_total"] == 1
    assert store.end(signal.SIGTERM)[0] == 0
    assert not [reply for reply in ask_all({"ask": "stats"}) if str(store.pid) in reply.socket]
    assert list((tmp_path / "run").iterdir()) == []


def figures(pid):
    """Of the store with this process id, by names without the prefix."""
    answers = [reply.answer for reply in ask_all({"ask": "stats"}) if reply.answer and reply.answer["pid"] == pid]
    (part,) = answers[0]["parts"]
    assert (part["role"], part["backend"]) == ("store", "mooncake")
    return {name.removeprefix("mindie_kvpool_"): value for name, value in part["metrics"].items()}


def test_size_of_the_pool_file_is_the_default(tmp_path, start, own_master):
    """And it is said that engines of this file give as much, which is lost with them."""
    store = start(pool_file(tmp_path, own_master.address, global_segment_size="16MB"), "--drain", "0")
    store.line()
    assert [each.size_bytes for each in segments(own_master)] == [16 * MIB]
    assert "global_segment_size" in store.hear("note:")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "add --size"),
        (("--size", "1MB"), "below 16MB"),
        (("--size", "many"), "many is no size"),
        (("--size", "900TB"), "GiB available"),
        (("--size", "32MB", "--ssd", "ssd"), "belong together"),
        (("--size", "32MB", "--ssd-size", "1GB"), "belong together"),
        (("--size", "32MB", "--ssd", "/proc/none", "--ssd-size", "1GB"), "has room for 0"),
        (("--size", "32MB", "--ssd", "/dev/null/ssd", "--ssd-size", "1GB"), "cannot be used: Not a directory"),
        (("--size", "32MB", "--host", "192.0.2.1:x"), '--host is "192.0.2.1:x"'),
        (("--size", "32MB"), "cannot reach mooncake_master"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, begin, arguments, expected):
    """Exit status 2, the thing and its fix; nothing is listening where the master should be."""
    path = pool_file(tmp_path, f"{HOST}:{free_port()}", global_segment_size=0)
    status, errors = begin("store", path, *arguments).end()
    assert status == 2
    assert expected in errors
    assert "Traceback" not in errors


def test_a_store_without_a_master_leaves_no_folder(tmp_path, begin):
    """A mistyped address leaves nothing behind."""
    path = pool_file(tmp_path, f"{HOST}:{free_port()}", global_segment_size=0)
    before = sorted(tmp_path.iterdir())
    arguments = ("--size", "32MB", "--ssd", tmp_path / "new" / "ssd", "--ssd-size", "64MB")
    status, errors = begin("store", path, *arguments, **SMALL).end()
    assert status == 2
    assert "cannot reach mooncake_master" in errors
    assert sorted(tmp_path.iterdir()) == before


def test_a_pool_of_memcache_is_refused():
    """It has services of its own."""
    examples = Path(__file__).parents[3] / "conf_examples"
    result = run(examples / "memcache_one_server" / "config.json", "--size", "16MB")
    assert result.exit_code == 2
    assert "MemCache has its own" in result.stderr


def test_master_and_store_of_one_pool_file_fit_each_other(tmp_path, begin, engine):
    """Both commands with an SSD, as the units start them: blocks go in and come back."""
    path, admin_port = pool_file(tmp_path, global_segment_size=0, local_buffer_size=0), free_port()
    master = begin("master", path, "--ssd", "--metrics-port", admin_port)
    master.line()
    arguments = ("--ssd", tmp_path / "ssd", "--ssd-size", "64MB", "--drain", "0", "--metrics-port", admin_port)
    store = begin("store", path, "--size", "32MB", *arguments, **SMALL)
    assert "part of the pool" in store.line()
    assert str(tmp_path / "ssd") in store.line()
    pool, memory = engine(path), Memory(48, SEGMENTS, SEGMENT_BYTES).fill(8)
    put_each(pool, keys(48), memory)
    assert count_readable(pool, keys(48), memory) == 48
    assert store.end(signal.SIGTERM)[0] == 0
    assert master.end(signal.SIGTERM)[0] == 0


def test_a_master_that_hangs_is_among_what_may_be_wrong(tmp_path):
    """It accepts connections, for its kernel does, and answers none."""
    with socket.create_server((HOST, 0)) as silent:
        path = pool_file(tmp_path, f"{HOST}:{silent.getsockname()[1]}", global_segment_size="64MB")
        result = run(path)
    assert result.exit_code == 2
    assert "does not answer as mooncake_master (it hangs, or is another service, or the metrics port)" in result.stderr
