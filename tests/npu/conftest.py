"""A cache on an NPU, or on an emulator of the CANN runtime under the real torch_npu (`make npu-test`).

`MINDIE_KVPOOL_NPU_DELAY_US` makes every copy and kernel of the emulator start that much later.
"""

import ctypes
import importlib
import os

import numpy as np
import pytest

from mindie_kvpool_plugin.host.device_copies import ACL_LIBRARY

DELAY_US = int(os.environ.get("MINDIE_KVPOOL_NPU_DELAY_US", "300"))
BLOCKS = 48


@pytest.fixture(scope="session")
def torch():
    """torch with its NPU part, or a skip that says what is missing."""
    try:
        module = importlib.import_module("torch")
        importlib.import_module("torch_npu")
    except (ImportError, OSError) as error:
        pytest.skip(f"needs an NPU or an emulator of CANN (make npu-test): {error}")
    if not module.npu.is_available():
        pytest.skip("needs an NPU or an emulator of CANN (make npu-test): torch_npu sees no device")
    return module


@pytest.fixture(scope="session")
def emulator():
    """The emulator's own functions; None on a real NPU."""
    try:
        library = ctypes.CDLL("libfakecann.so")
    except OSError:
        return None
    library.fakecann_counter.restype = ctypes.c_uint64
    library.fakecann_set_delay_us.argtypes = [ctypes.c_long]
    library.fakecann_set_stream_delay_us.argtypes = [ctypes.c_void_p, ctypes.c_long]
    return library


@pytest.fixture(params=[0, 1])
def device(request, torch, emulator):
    """Each of two devices, current on the test's thread; the emulator slow while the test runs."""
    if request.param >= torch.npu.device_count():
        pytest.skip("there is one NPU here")
    torch.npu.set_device(request.param)
    if emulator is not None:
        emulator.fakecann_set_delay_us(DELAY_US)
    yield torch.device("npu", request.param)
    if emulator is not None:
        emulator.fakecann_set_delay_us(0)
    torch.npu.synchronize()


class Raw:
    """Device memory as it is, past torch and past the code under test."""

    def __init__(self):
        self._acl = ctypes.CDLL(ACL_LIBRARY)

    def read(self, address, size):
        data = ctypes.create_string_buffer(size)
        self._copy(ctypes.addressof(data), address, size, 2)
        return data.raw

    def write(self, address, data):
        held = ctypes.create_string_buffer(data, len(data))
        self._copy(address, ctypes.addressof(held), len(data), 1)

    def _copy(self, to, source, size, kind):
        room = ctypes.c_size_t(size)
        code = self._acl.aclrtMemcpy(ctypes.c_void_p(to), room, ctypes.c_void_p(source), room, kind)
        assert code == 0, code


class Cache:
    """A cache whose every byte tells its block, segment and version."""

    def __init__(self, layout):
        self.layout = layout
        self.raw = Raw()
        for block in range(layout.num_blocks):
            self.compute(block, 0)

    def expected(self, block, version):
        seeds = [(block * 31 + segment * 7 + version * 101) % 251 for segment in range(len(self.layout.sizes))]
        return [
            ((seed + np.arange(size)) % 251).astype(np.uint8).tobytes()
            for seed, size in zip(seeds, self.layout.sizes, strict=True)
        ]

    def places(self, block):
        return self.layout.buffers(np.array([block])).addresses[0].tolist()

    def compute(self, block, version):
        """What a kernel would do: write the block on the device."""
        for address, data in zip(self.places(block), self.expected(block, version), strict=True):
            self.raw.write(address, data)

    def found(self, block):
        sizes = self.layout.sizes.tolist()
        return [self.raw.read(address, size) for address, size in zip(self.places(block), sizes, strict=True)]

    def holds(self, block, version):
        return self.found(block) == self.expected(block, version)


def staged(buffers, row):
    """What lies in host memory for one block, segment by segment."""
    return [
        ctypes.string_at(at, size)
        for at, size in zip(buffers.addresses[row].tolist(), buffers.sizes.tolist(), strict=True)
    ]


def put(buffers, row, segments):
    for address, data in zip(buffers.addresses[row].tolist(), segments, strict=True):
        ctypes.memmove(address, data, len(data))
