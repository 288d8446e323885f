"""Copies by address through a CANN runtime: batched, piece by piece, in C and in Python; nothing is left in flight."""

import ctypes
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from mindie_kvpool_plugin import native
from mindie_kvpool_plugin.blocks import Buffers
from mindie_kvpool_plugin.errors import DeviceError
from mindie_kvpool_plugin.host import device_copies
from mindie_kvpool_plugin.host.device_copies import MAX_BATCH, AclCopies

COMPILER = shutil.which("cc") or shutil.which("gcc")
SOURCE = Path(__file__).with_name("acl_standin.c")
DEVICE = 1
SIZES = np.array([48, 7, 130], dtype=np.int64)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no compiler here")


class Runtime:
    """One copy of the stand-in, with its own counts."""

    def __init__(self, path):
        self.path = path
        self._library = ctypes.CDLL(path)

    def __getattr__(self, name):
        return ctypes.c_int.in_dll(self._library, name).value

    def set(self, name, value, kind=ctypes.c_int):
        kind.in_dll(self._library, name).value = value


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """The runtime of this test alone: another file is another library."""
    path = tmp_path / "libascendcl.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", path, SOURCE], check=True)
    monkeypatch.setattr(device_copies, "ACL_LIBRARY", str(path))
    return Runtime(path)


class Cache:
    """Blocks of three segments on a "device", and host room for them."""

    def __init__(self, copies, blocks, room):
        self.copies = copies
        self.segments = [
            np.random.default_rng(i).integers(0, 256, (blocks, size), dtype=np.uint8) for i, size in enumerate(SIZES)
        ]
        self.size = int(SIZES.sum())
        self.start = copies.allocate(room * self.size)

    def starts(self, count):
        return np.arange(count, dtype=np.int64) * self.size + self.start

    def buffers(self, ids):
        columns = [segment.ctypes.data + ids * segment.strides[0] for segment in self.segments]
        return Buffers(np.stack(columns, axis=1).astype(np.int64), SIZES)

    def block(self, index):
        return b"".join(segment[index].tobytes() for segment in self.segments)

    def on_host(self, row):
        return ctypes.string_at(self.start + row * self.size, self.size)


@pytest.fixture(params=["batched", "refused by the driver", "C loop", "Python loop"])
def way(request, runtime, monkeypatch):
    """Each way a copy can take."""
    runtime.set("batch_supported", int(request.param == "batched"))
    if request.param == "Python loop":
        monkeypatch.setattr(device_copies, "native", None)
    elif native.native is None and request.param == "C loop":
        pytest.skip("built without a compiler")
    copies = AclCopies(DEVICE)
    if request.param.endswith("loop"):
        copies._batch = None
    return copies


def test_blocks_go_out_and_come_back_whole(runtime, way):
    """In any order, every segment, and no other block changes."""
    cache = Cache(way, blocks=9, room=4)
    ids = np.array([7, 0, 3], dtype=np.int64)
    way.copy(cache.starts(3), cache.buffers(ids), to_host=True)
    assert [cache.on_host(row) for row in range(3)] == [cache.block(index) for index in ids]
    before = [cache.block(index) for index in range(9)]
    way.copy(cache.starts(3), cache.buffers(np.array([4, 5, 6], dtype=np.int64)), to_host=False)
    moved = {4: before[7], 5: before[0], 6: before[3]}
    assert [cache.block(index) for index in range(9)] == [moved.get(index, before[index]) for index in range(9)]
    assert runtime.num_pending == 0
    assert runtime.wrong_attributes == 0


def test_batches_are_as_long_as_the_runtime_takes_them(runtime):
    """4,500 pieces are two calls."""
    copies = AclCopies(DEVICE)
    cache = Cache(copies, blocks=1500, room=1500)
    copies.copy(cache.starts(1500), cache.buffers(np.arange(1500)), to_host=True)
    assert runtime.batch_calls == -(-1500 * len(SIZES) // MAX_BATCH) == 2
    assert runtime.async_calls == 0
    assert [cache.on_host(row) for row in (0, 1499)] == [cache.block(0), cache.block(1499)]


def test_a_runtime_without_batches_is_asked_once(runtime):
    """Its answer holds for the life of the process."""
    runtime.set("batch_supported", 0)
    copies = AclCopies(DEVICE)
    cache = Cache(copies, blocks=4, room=4)
    for _ in range(3):
        copies.copy(cache.starts(4), cache.buffers(np.arange(4)), to_host=True)
    assert (runtime.batch_calls, runtime.async_calls) == (1, 3 * 4 * len(SIZES))


def test_a_copy_that_fails_half_way_leaves_nothing_running(runtime):
    """What was launched before is waited for, so that buffers may change hands; the error names function and code."""
    runtime.set("batch_supported", 0)
    copies = AclCopies(DEVICE)
    cache = Cache(copies, blocks=4, room=4)
    runtime.set("refuse_at", 5)
    with pytest.raises(DeviceError, match=r"device 1: aclrtMemcpyAsync failed with error 207001"):
        copies.copy(cache.starts(4), cache.buffers(np.arange(4)), to_host=True)
    assert runtime.async_calls == 6  # five launched, one refused, none after it
    assert runtime.num_pending == 0
    assert cache.on_host(0) == cache.block(0)


def test_the_cache_s_device_is_current_inside_and_the_threads_own_afterwards(runtime):
    """A thread that was bound to another device, or to none, copies from the right one."""
    runtime.set("batch_supported", 0)
    copies = AclCopies(DEVICE)
    cache = Cache(copies, blocks=2, room=2)
    library = ctypes.CDLL(runtime.path)
    seen = []

    def elsewhere():
        library.aclrtSetDevice(3)
        copies.copy(cache.starts(2), cache.buffers(np.arange(2)), to_host=True)
        now = ctypes.c_int()
        library.aclrtGetDevice(ctypes.byref(now))
        seen.append(now.value)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [3]
    assert cache.on_host(1) == cache.block(1)


def test_memory_that_cannot_be_had_ends_the_start_with_the_figure(runtime):
    """Not the first spill."""
    copies = AclCopies(DEVICE)
    runtime.set("host_limit", 1000, ctypes.c_size_t)
    with pytest.raises(DeviceError, match=r"4096 bytes of page-locked host memory.*lower kv_pool.staging_bytes"):
        copies.allocate(4096)


def test_a_machine_without_the_runtime_is_told(monkeypatch):
    """And not with a traceback of ctypes."""
    monkeypatch.setattr(device_copies, "ACL_LIBRARY", "libnothing-of-cann.so")
    with pytest.raises(DeviceError, match=r"CANN runtime cannot be called.*set_env\.sh"):
        AclCopies(0)
