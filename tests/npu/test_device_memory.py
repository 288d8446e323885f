"""The device layer under the real torch_npu: layouts, two devices, threads, full memory, the end of a process."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from mindie_kvpool_plugin.errors import DeviceError, HostCompatError
from mindie_kvpool_plugin.host.device_memory import CacheLayout, DirectMemory, StagedMemory, record_event
from mindie_kvpool_plugin.host.in_flight import InFlight
from tests.npu.conftest import BLOCKS, DELAY_US, Cache, put, staged

pytestmark = pytest.mark.npu
ROOT = Path(__file__).parents[2]


def plain(torch, device):
    """Keys and values; a quantised layer with an index; a layer with a placeholder."""

    def zeros(*shape, dtype=torch.float16):
        return torch.zeros(BLOCKS, *shape, dtype=dtype, device=device)

    index = zeros(8, 1, 4, dtype=torch.float32)
    return [
        *((zeros(8, 2, 16), zeros(8, 2, 16)) for _ in range(3)),
        (zeros(8, 2, 16, dtype=torch.int8), zeros(8, 2, 16, dtype=torch.bfloat16), index),
        (zeros(8, 2, 16), torch.zeros(1, device=device)),
    ]


def sliced(torch, device):
    """Segments that are parts of a wider tensor: strides say where a block is."""
    wide = torch.zeros(BLOCKS, 2, 8, 16, dtype=torch.float16, device=device)
    return [(wide[:, 0], wide[:, 1])]


def fractal(torch, device):
    """The NZ layout, as the host allocates it."""
    torch.npu.config.allow_internal_format = True
    torch_npu = sys.modules["torch_npu"]
    shape = (BLOCKS, 2, 128, 16)
    made = [torch_npu.empty_with_format(shape, dtype=torch.float16, device=device, acl_format=29) for _ in range(2)]
    assert [int(torch_npu.get_npu_format(tensor)) for tensor in made] == [29, 29]
    return [tuple(made)]


@pytest.fixture(params=[plain, sliced, fractal])
def cache(request, torch, device):
    """A filled cache of each layout on each device."""
    return filled(torch, request.param(torch, device))


def filled(torch, npu_cache):
    layout = CacheLayout(npu_cache)
    torch.npu.synchronize()  # the zeros it was made of
    return Cache(layout)


def memory_of(cache, blocks=5):
    index = cache.layout.device.index
    return StagedMemory(cache.layout, index, 2 * blocks * int(cache.layout.sizes.sum()))


def read(memory, ids):
    with memory.read(np.array(ids, dtype=np.int64)) as buffers:
        return [staged(buffers, row) for row in range(len(ids))]


def write(memory, cache, ids, version):
    with memory.write(np.array(ids, dtype=np.int64)) as buffers:
        for row, block in enumerate(ids):
            put(buffers, row, cache.expected(block, version))


def in_thread(work, memory=None):
    """What the function returns on a thread of its own, bound to the memory's device if there is one."""
    box = []

    def run():
        try:
            if memory is not None:
                memory.bind_thread()
            box.append((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            box.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    ((value, error),) = box
    if error is not None:
        raise error
    return value


def test_blocks_come_and_go_whole_and_leave_the_others_alone(cache):
    """Repeated, unordered, and more often than the staging buffer is long."""
    memory = memory_of(cache)
    for ids in ([0], [47, 3, 3, 9], [1, 2, 3, 4, 5]):
        assert read(memory, ids) == [cache.expected(block, 0) for block in ids]
    for version in (1, 2, 3):
        write(memory, cache, [9, 30, 2], version)
        assert all(cache.holds(block, version) for block in (9, 30, 2))
    assert all(cache.holds(block, 0) for block in (8, 10, 29, 31, 1, 3))
    assert read(memory, [30, 9]) == [cache.expected(30, 3), cache.expected(9, 3)]


def test_a_write_keeps_what_others_write_meanwhile(cache):
    """A reload of three blocks beside compute in the block between them, NZ or not: nothing of either is undone."""
    memory = memory_of(cache)
    done, lost, rounds = threading.Event(), [], 0

    def reloads():
        memory.bind_thread()
        for version in range(1, 6):
            write(memory, cache, [9, 2, 4], version)
        done.set()

    thread = threading.Thread(target=reloads)
    thread.start()
    while not done.is_set():
        rounds += 1
        cache.compute(3, rounds)
        if not cache.holds(3, rounds):
            lost.append(rounds)
    thread.join()
    assert rounds > 1
    assert lost == []
    assert all(cache.holds(block, 5) for block in (9, 2, 4))


def test_threads_of_another_device_or_none_read_what_is_there(cache, torch):
    """The cache's device decides, not the thread's: not even the block before shows."""
    memory = memory_of(cache)
    assert read(memory, [7]) == [cache.expected(7, 0)]
    assert in_thread(lambda: read(memory, [4])) == [cache.expected(4, 0)]

    def elsewhere():
        torch.npu.set_device(1 - cache.layout.device.index)
        found = read(memory, [11])
        return found, torch.npu.current_device()

    if torch.npu.device_count() > 1:
        assert in_thread(elsewhere) == ([cache.expected(11, 0)], 1 - cache.layout.device.index)


@pytest.mark.parametrize("is_bound", [True, False])
def test_an_event_is_reached_when_the_cache_s_device_is(torch, device, emulator, is_bound):
    """Also when it is recorded by a thread whose device is another one."""
    layout = CacheLayout(plain(torch, device))
    memory = StagedMemory(layout, device.index, 1 << 20)
    if emulator is None:
        pytest.skip("only the emulator can be told to be slow")

    def forward():
        stream = torch.npu.current_stream(device)
        emulator.fakecann_set_stream_delay_us(stream.npu_stream, 200_000)
        try:
            layout.segments[0][4].fill_(1)
            event = record_event(device)
            was_reached = event.query()
            event.synchronize()
            return was_reached, read(memory, [4])[0][0]
        finally:
            emulator.fakecann_set_stream_delay_us(stream.npu_stream, -1)

    was_reached, first = in_thread(forward, memory if is_bound else None)
    assert not was_reached
    assert first == torch.ones(8, 2, 16, dtype=torch.float16).numpy().tobytes()


def test_a_reload_waits_for_the_batch_in_flight(torch, device, emulator):
    """The batch before still writes the block that the reload fills."""
    cache, flight, batch = filled(torch, plain(torch, device)), InFlight(), object()
    memory = memory_of(cache)
    forward = torch.npu.Stream(device=device)
    if emulator is not None:
        emulator.fakecann_set_stream_delay_us(forward.npu_stream, 30_000)
    launched = threading.Event()

    def compute():
        torch.npu.set_device(device)
        with torch.npu.stream(forward):
            for segment in cache.layout.segments:
                segment[20].fill_(0)
            flight.meet(batch)
            flight.land(record_event(device))
        launched.set()

    flight.launch(batch)
    thread = threading.Thread(target=compute)
    thread.start()
    assert launched.wait(60)
    assert flight.wait(60)
    write(memory, cache, [20], 9)
    thread.join()
    torch.npu.synchronize()
    assert cache.holds(20, 9)


def test_spills_and_reloads_beside_compute(cache):
    """Three threads, three sets of blocks, one cache."""
    memory = memory_of(cache)
    stop, wrong = threading.Event(), []

    def spills():
        memory.bind_thread()
        random = np.random.default_rng(1)
        for _ in range(12):
            ids = random.choice(np.arange(16, 32), 5, replace=False).tolist()
            if read(memory, ids) != [cache.expected(block, 0) for block in ids]:
                wrong.append(ids)
        stop.set()

    thread = threading.Thread(target=spills)
    thread.start()
    version = 0
    while not stop.is_set():
        version += 1
        cache.compute(version % 16, version)
        ids = [32 + (version + step) % 16 for step in range(4)]
        write(memory, cache, ids, version)
        assert all(cache.holds(block, version) for block in ids)
        assert cache.holds(version % 16, version)
    thread.join()
    assert version > 1
    assert wrong == []


def test_copies_go_on_after_the_host_has_stopped_and_restarted_the_device(cache, torch):
    """A repair, as the host makes it: our streams and page-locked memory outlive it."""
    memory, index = memory_of(cache), cache.layout.device.index
    write(memory, cache, [9, 30], 1)
    assert torch.npu.stop_device(index) == 0
    torch.npu.restart_device(index)
    assert read(memory, [30]) == [cache.expected(30, 1)]
    write(memory, cache, [9], 2)
    assert cache.holds(9, 2)


def test_copies_work_when_device_memory_is_full(torch, device):
    """The host sized its cache to take all there is: nothing is allocated for a copy."""
    cache = filled(torch, plain(torch, device))
    memory = memory_of(cache)
    hoard, size = [], 1 << 30
    while size >= 1 << 12:
        try:
            hoard.append(torch.empty(size, dtype=torch.uint8, device=device))
        except RuntimeError:
            size //= 2
    assert hoard
    before = torch.npu.memory_allocated(device)
    torch.npu.reset_peak_memory_stats(device)
    write(memory, cache, [9, 30], 1)
    assert cache.holds(9, 1)
    assert read(memory, [30]) == [cache.expected(30, 1)]
    assert torch.npu.max_memory_allocated(device) == before
    hoard.clear()
    torch.npu.empty_cache()


def test_page_locked_memory_is_what_was_asked_for(torch, device, emulator):
    """Not the next power of two, however odd the block."""
    if emulator is None:
        pytest.skip("only the emulator counts page-locked bytes")
    layout = CacheLayout(plain(torch, device))
    before = emulator.fakecann_counter(b"pinned_bytes")
    asked = 2 * 33 * int(layout.sizes.sum()) + 5
    memory = StagedMemory(layout, device.index, asked)
    page = 4096
    assert emulator.fakecann_counter(b"pinned_bytes") - before <= asked + 2 * page
    assert [region.size_bytes for region in memory.regions] == [33 * int(layout.sizes.sum())] * 2


def test_a_start_without_room_for_staging_ends_with_the_figure(torch, device):
    """Before the first spill could fail."""
    layout = CacheLayout(plain(torch, device))
    with pytest.raises(DeviceError, match=r"\d{15} bytes of page-locked host memory.*kv_pool\.staging_bytes"):
        StagedMemory(layout, device.index, 1 << 50)


def test_padded_fractals_are_refused(torch, device):
    """A block of 10 tokens takes 16 rows: its bytes are not where the shape says."""
    torch.npu.config.allow_internal_format = True
    make = sys.modules["torch_npu"].empty_with_format
    tensor = make((BLOCKS, 2, 10, 16), dtype=torch.float16, device=device, acl_format=29)
    with pytest.raises(HostCompatError, match=r"padded.*multiple of 16"):
        CacheLayout([(tensor,)])


def test_direct_memory_names_addresses_of_the_device(cache):
    """For transports that reach it by themselves."""
    memory = DirectMemory(cache.layout, cache.layout.device.index)
    with memory.read(np.array([7, 3])) as buffers:
        assert buffers.addresses[1].tolist() == cache.places(3)
    assert all(region.is_device for region in memory.regions)


ENDING = """
import threading
import numpy as np, torch, torch_npu
from mindie_kvpool_plugin.host.device_memory import CacheLayout, StagedMemory
torch.npu.set_device(0)
layout = CacheLayout([(torch.zeros(48, 8, 2, 16, dtype=torch.float16, device="npu:0"),)])
memory, copied = StagedMemory(layout, 0, 1 << 20), threading.Event()
def spills():
    memory.bind_thread()
    while True:
        with memory.read(np.arange(40)):
            copied.set()
threading.Thread(target=spills, daemon=True).start()
assert copied.wait(60)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_process_ends_while_a_spill_is_copied(torch, emulator, attempt):
    """Without an abort: what the operator sees is an exit status of 0."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, "terminate called" in done.stderr) == (0, False), done.stderr[-2000:]


def test_the_emulator_would_show_a_missing_wait(torch, device, emulator):
    """Control: without the event a spill reads what was there before."""
    if emulator is None or not DELAY_US:
        pytest.skip("only the emulator can be told to be slow")
    cache = filled(torch, plain(torch, device))
    memory = memory_of(cache)
    stream = torch.npu.current_stream(device)
    emulator.fakecann_set_stream_delay_us(stream.npu_stream, 200_000)
    try:
        cache.layout.segments[0][4].fill_(1)
        seen = in_thread(lambda: read(memory, [4])[0][0], memory)
    finally:
        emulator.fakecann_set_stream_delay_us(stream.npu_stream, -1)
    assert seen == cache.expected(4, 0)[0]
