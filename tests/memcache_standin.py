"""A stand-in for the package memcache_hybrid 1.3.0 and its meta service, in one process.

Names, signatures and result codes are the wheel's, as it was seen to behave over ``host_shm``: one client per
process behind all store objects, the configuration's place read when the module is loaded, one code per
key, none at all when the client is not open.  ``tests/contract`` runs the same suite over the wheel itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
import threading
import types
from collections import OrderedDict
from importlib.machinery import ModuleSpec
from pathlib import Path

from mindie_kvpool_plugin.options.memcache import META_URL, STORE_URL, key_value_lines, local_config

HOST = "127.0.0.1"
OK, FAILED, WRONG_DIRECTION, INVALID, NOT_FOUND, WRONG_SIZE, NO_LINK, NO_CLIENT = (
    0,
    -1,
    -2,
    -3000,
    -3007,
    -3012,
    -3014,
    -3019,
)
L2G, G2L, G2H, H2G, AUTO = 0, 1, 2, 3, 9
MAX_KEY_BYTES = 256


class MetaService:
    """Two ports, and the objects of all clients."""

    def __init__(self, capacity_bytes):
        self.capacity_bytes = capacity_bytes
        self.objects = OrderedDict()
        self.lock = threading.Lock()
        self.sockets = [socket.create_server((HOST, 0)) for _ in range(2)]
        self.ports = [each.getsockname()[1] for each in self.sockets]
        self.is_alive = True

    def config(self, folder):
        """A client's configuration."""
        path = folder / "mmc-local.conf"
        urls = zip((META_URL, STORE_URL), self.ports, strict=True)
        lines = [f"{key} = tcp://{HOST}:{port}" for key, port in urls]
        size = f"ock.mmc.local_service.dram.size = {self.capacity_bytes}"
        path.write_text("\n".join(["## made by a test", *lines, size, ""]), encoding="utf-8")
        return path

    def kill(self):
        """Nobody answers any more."""
        self.is_alive = False
        for each in self.sockets:
            each.close()

    def make_room(self, size):
        """Evict the oldest until ``size`` bytes fit."""
        if size > self.capacity_bytes:
            return False
        while sum(map(len, self.objects.values())) + size > self.capacity_bytes:
            self.objects.popitem(last=False)
        return True


class Library:
    """One loaded library: its view of the environment and the process's only client.

    Attributes:
        device: addresses (first, end) that count as device memory.
        calls: (name, direction) of every copy.
        init_code: what the next ``init`` answers; None: what it should.
        hangs: ``init`` waits for this.
    """

    def __init__(self, services):
        self.services = services
        self.config_path = os.environ.get("MMC_LOCAL_CONFIG_PATH", "")
        self.client = None
        self.moves_bytes = False
        self.device = []
        self.calls = []
        self.inits = []
        self.closes = 0
        self.init_code = None
        self.hangs = None

    def module(self):
        """What ``import memcache_hybrid`` gives."""
        library = self

        class DistributedObjectStore(Store):
            def __init__(self):
                super().__init__(library)

        module = types.ModuleType("memcache_hybrid")
        for name, value in {"L2G": L2G, "G2L": G2L, "G2H": G2H, "H2G": H2G, "AUTO": AUTO}.items():
            setattr(module, name, value)
        module.DistributedObjectStore = DistributedObjectStore
        return module

    def connect(self, moves_bytes):
        """The code of an ``init``."""
        if self.hangs is not None:
            self.hangs.wait()
        if self.init_code is not None:
            return self.init_code
        if self.client is not None:
            return OK
        if not self.config_path:
            return INVALID
        text = Path(self.config_path).read_text(encoding="utf-8")
        assert key_value_lines(text)
        port = local_config(text, "").services[0][2]
        self.client = next(each for each in self.services if port in each.ports)
        self.moves_bytes = moves_bytes
        return OK if self.client.is_alive else FAILED

    def is_direction_right(self, address, direct, *, is_put):
        """Device memory L2G and G2L, host memory H2G and G2H; AUTO infers."""
        on_device = any(first <= address < end for first, end in self.device)
        wanted = (L2G if on_device else H2G) if is_put else (G2L if on_device else G2H)
        return direct in (wanted, AUTO)


class Store:
    """``DistributedObjectStore``."""

    def __init__(self, library):
        self._library = library

    def init(self, device_id, init_bm=True):
        self._library.inits.append((int(device_id), init_bm))
        return self._library.connect(init_bm)

    def close(self):
        library = self._library
        library.closes += 1
        if library.client is not None and library.moves_bytes:
            with library.client.lock:
                library.client.objects.clear()  # they lay in this process
        library.client = None
        return OK

    def register_buffer(self, buffer_ptr, size):
        return OK if self._library.client is not None and buffer_ptr and size > 0 else INVALID

    def batch_is_exist(self, keys):
        service = self._library.client
        if service is None:
            return [NO_CLIENT] * len(keys)
        if not service.is_alive:
            return [NO_LINK] * len(keys)
        with service.lock:
            return [int(key in service.objects) if _is_key(key) else INVALID for key in keys]

    def batch_put_from_layers(
        self,
        keys,
        buffer_ptrs,
        sizes,
        direct=H2G,
        replicateConfig=None,  # noqa: N803 - the wheel's name
    ):
        del replicateConfig
        refused = self._refused("put", keys, buffer_ptrs, sizes, direct)
        if refused is not None:
            return refused
        return [self._put(*each) for each in zip(keys, buffer_ptrs, sizes, strict=True)]

    def batch_get_into_layers(self, keys, buffer_ptrs, sizes, direct=G2H):
        refused = self._refused("get", keys, buffer_ptrs, sizes, direct)
        if refused is not None:
            return refused
        return [self._get(*each) for each in zip(keys, buffer_ptrs, sizes, strict=True)]

    def _refused(self, what, keys, buffer_ptrs, sizes, direct):
        library = self._library
        if library.client is None:
            return []
        assert all(type(key) is str for key in keys)
        assert all(type(number) is int for rows in (buffer_ptrs, sizes) for row in rows for number in row)
        library.calls.append((what, direct))
        is_good = library.client.is_alive and library.moves_bytes and all(map(_is_key, keys))
        if not is_good or not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID] * len(keys)
        if not all(library.is_direction_right(row[0], direct, is_put=what == "put") for row in buffer_ptrs):
            return [WRONG_DIRECTION] * len(keys)
        return None

    def _put(self, key, addresses, sizes):
        service = self._library.client
        assert service is not None
        data = b"".join(ctypes.string_at(at, size) for at, size in zip(addresses, sizes, strict=True))
        with service.lock:
            if key in service.objects:
                return OK
            if not service.make_room(len(data)):
                return FAILED
            service.objects[key] = data
            return OK

    def _get(self, key, addresses, sizes):
        service = self._library.client
        assert service is not None
        with service.lock:
            data = service.objects.get(key)
        if data is None:
            return NOT_FOUND
        if len(data) != sum(sizes):
            return WRONG_SIZE
        at = 0
        for address, size in zip(addresses, sizes, strict=True):
            ctypes.memmove(address, data[at : at + size], size)
            at += size
        return OK


def _is_key(key):
    return 0 < len(key.encode()) <= MAX_KEY_BYTES


@contextlib.contextmanager
def standing_in(capacity_bytes, folder):
    """A meta service, its clients' configuration, and ``import memcache_hybrid`` giving the stand-in."""
    service = MetaService(capacity_bytes)
    path = service.config(folder)
    before = {name: os.environ.get(name) for name in ("MMC_LOCAL_CONFIG_PATH",)}
    module_before = sys.modules.pop("memcache_hybrid", None)
    finder = _Finder([service])
    sys.meta_path.insert(0, finder)
    try:
        yield service, path
    finally:
        sys.meta_path.remove(finder)
        service.kill()
        sys.modules.pop("memcache_hybrid", None)
        if module_before is not None:
            sys.modules["memcache_hybrid"] = module_before
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def loaded():
    """The library that was imported last."""
    assert _Finder.library is not None
    return _Finder.library


class _Finder:
    """Makes the module when it is imported: not before, because it reads the environment then."""

    library: Library | None = None

    def __init__(self, services):
        self._services = services

    def find_spec(self, name, path=None, target=None):
        del path, target
        if name != "memcache_hybrid":
            return None

        return ModuleSpec(name, self)

    def create_module(self, spec):
        del spec
        _Finder.library = Library(self._services)
        return _Finder.library.module()

    def exec_module(self, module):
        del module
