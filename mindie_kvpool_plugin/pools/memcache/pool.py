"""MemCache behind the pool contract.

Each call is one call of the binding, whose codes become one ``bool`` per key: a get that succeeded is 0 here,
not a size; of a client that is not open the result list is empty; and one key of a wrong length fails a whole
call, so such keys are kept out of it.

Device and host memory are copied in different directions, and a wrong one fails the call: so the regions say
what they are.  MemCache could infer the direction (9), but asks the driver about every address then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final

from mindie_kvpool_plugin.blocks import Buffers, Region
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.observability.log import RateLimited
from mindie_kvpool_plugin.options.pool_file import PoolFile
from mindie_kvpool_plugin.options.records import MemcacheOptions
from mindie_kvpool_plugin.pools.base import Answers, PoolBackend, Role
from mindie_kvpool_plugin.pools.memcache import codes, start
from mindie_kvpool_plugin.pools.memcache.client import Setup, Share, Store, shared

L2G: Final = 0  # device memory to the pool
G2L: Final = 1
G2H: Final = 2
H2G: Final = 3  # host memory to the pool
MAX_KEY_BYTES: Final = 256

_log = RateLimited()


def open_pool(options: MemcacheOptions, pool_file: PoolFile, role: Role) -> MemcachePool:
    """Connect to the configured MemCache.

    Raises:
        ConfigError: MemCache's own configuration cannot be read.
        PoolError: the library is missing, the meta service cannot be reached, or the client cannot be initialised.
    """
    place = str(pool_file.path)
    path, config = start.config_file(options, place)
    library = start.load_library(path)
    # a client that only asks what exists needs no NPU
    setup = Setup(path, pool_file.device_id, moves_bytes=role == "worker")
    return MemcachePool(
        shared.open(setup, lambda: start.connect(library, setup, config, options.open_timeout_s, place))
    )


class MemcachePool(PoolBackend):
    """One share of this process's client."""

    # no lease comes with a put; this long, offering the block again costs more than the rare loss
    put_proof_s = 10.0
    # a waiting request is looked up at every step
    answer_proof_s = 1.0

    def __init__(self, share: Share) -> None:
        self._share = share
        self._registered: set[Region] = set()
        self._device = _Places()

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Ask the meta service in one call."""
        return self._answer("exists", keys, 1, lambda store, rows: store.batch_is_exist([keys[row] for row in rows]))

    def put(self, keys: Sequence[str], buffers: Buffers, groups: Sequence[str] | None = None) -> list[bool]:
        """Write where the meta service says; a full pool evicts within the call.  MemCache knows no groups."""
        del groups
        direction = L2G if self._is_on_device(buffers) else H2G
        return self._answer(
            "put",
            keys,
            codes.OK,
            lambda store, rows: store.batch_put_from_layers(*_layers(keys, buffers, rows), direction),
        )

    def get(self, keys: Sequence[str], buffers: Buffers) -> list[bool]:
        """Read into the buffers; True only if the object has exactly the buffers' size."""
        direction = G2L if self._is_on_device(buffers) else G2H
        return self._answer(
            "get",
            keys,
            codes.OK,
            lambda store, rows: store.batch_get_into_layers(*_layers(keys, buffers, rows), direction),
        )

    def register(self, regions: Sequence[Region]) -> None:
        """Register each region once; call before the first put or get."""
        for region in regions:
            if region in self._registered:
                continue
            with self._share.lent() as store:
                if store is None:
                    raise PoolError("cannot register memory with the MemCache pool: it is not open")
                code = store.register_buffer(region.address, region.size_bytes)
            if code != 0:
                raise PoolError(
                    f"MemCache refused to register {region.size_bytes} bytes at {region.address:#x}: "
                    f"{codes.meaning(code)}; MemCache's own lines on standard error say why"
                )
            self._registered.add(region)
            if region.is_device:
                self._device = self._device.with_(region)

    def close(self) -> None:
        """Give the share back; with the last one the client is closed, for 3 s with every Python thread stopped.

        Without a meta service these are 9 s.  Calls in flight are waited for; idempotent.
        """
        self._share.close()

    def _is_on_device(self, buffers: Buffers) -> bool:
        """A block lies in one kind of memory: its first byte tells."""
        return len(buffers) > 0 and self._device.holds(int(buffers.addresses[0, 0]))

    def _answer(
        self, what: str, keys: Sequence[str], good: int, call: Callable[[Store, list[int]], Sequence[int]]
    ) -> list[bool]:
        rows = [row for row, key in enumerate(keys) if _is_key(key)]
        found: Sequence[int] = []
        if rows:
            with self._share.lent() as store:
                found = [codes.NOT_OPEN] * len(rows) if store is None else call(store, rows)
        answers = [codes.BAD_KEY] * len(keys)
        for row, code in zip(rows, codes.one_per_key(found, len(rows)), strict=True):
            answers[row] = code
        if answers.count(good) < len(answers):
            _note(what, answers, good)
        failed = [codes.label(code) for code in answers if code != good and (code < 0 or what != "exists")]
        return Answers([code == good for code in answers], codes.trouble(answers, good), failed)


class _Places:
    """Which addresses are device memory.  Replaced as a whole, so that calls in flight need no lock."""

    def __init__(self, regions: Sequence[Region] = ()) -> None:
        self._regions = sorted(regions, key=lambda region: region.address)
        self._starts = [region.address for region in self._regions]

    def with_(self, region: Region) -> _Places:
        """One more."""
        return _Places([*self._regions, region])

    def holds(self, address: int) -> bool:
        """Whether a registered region of device memory has this byte."""
        at = bisect_right(self._starts, address) - 1
        return at >= 0 and address < self._starts[at] + self._regions[at].size_bytes


def _is_key(key: str) -> bool:
    return 0 < len(key) <= MAX_KEY_BYTES and (key.isascii() or len(key.encode()) <= MAX_KEY_BYTES)


def _layers(
    keys: Sequence[str], buffers: Buffers, rows: list[int]
) -> tuple[list[str], list[list[int]], list[list[int]]]:
    """Keys, addresses and sizes of these rows as the binding takes them."""
    sizes: list[int] = buffers.sizes.tolist()
    return [keys[row] for row in rows], buffers.addresses[rows].tolist(), [sizes] * len(rows)


def _note(what: str, answers: list[int], good: int) -> None:
    unusual = [code for code in answers if code not in (good, *codes.EVERYDAY) and (code < 0 or what != "exists")]
    if unusual:
        kinds = ", ".join(codes.meaning(code) for code in sorted(set(unusual), reverse=True))
        _log.warning(f"pool {what}: %d keys failed: %s", len(unusual), kinds)
