"""What the child does with tensors: copies of each layout, and blocks through the pool as a rank's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mindie_kvpool_plugin.doctor.child import tell
from mindie_kvpool_plugin.host import device_trial
from mindie_kvpool_plugin.host.device_trial import BLOCKS, TrialCache
from mindie_kvpool_plugin.kv_shape import KvShape
from mindie_kvpool_plugin.pools.base import PoolBackend

HALF = BLOCKS // 2
Open = Callable[[], tuple[PoolBackend, bool]]
"""Opens the pool, and says whether it reaches device memory."""


def copies(question: dict[str, Any]) -> None:
    """Every layout on one device, and how fast its copies are.

    Raises:
        DeviceError, HostCompatError: the device cannot be used, or not with such a cache.
    """
    device_id = question["device"]
    device = device_trial.open_device(device_id)
    tell("device", free=device_trial.free_bytes(device))
    cache = TrialCache(_of_model(question, device), device_id)
    _told_layout("model", cache)
    for name, made in device_trial.layouts(device):
        _told_layout(name, TrialCache(made, device_id))
    tell("speeds", **device_trial.copy_speeds(cache))


def _told_layout(name: str, cache: TrialCache) -> None:
    wrong = device_trial.verify(cache)
    tell("layout", name=name, bytes=cache.block_bytes, segments=len(cache.layout.sizes), wrong=wrong)


def _of_model(question: dict[str, Any], device: Any) -> Any:
    return device_trial.of_model(KvShape(**question["shape"]), question["block_size"], question["tp"], device)


def pool(question: dict[str, Any], open_it: Open) -> PoolBackend:
    """Blocks from the cache to the pool and back into other blocks, as spills and reloads do."""
    device_id = question["device"]
    is_npu = device_id is not None
    device: Any = device_trial.open_device(device_id) if is_npu else device_trial.host()
    made = _of_model(question, device)
    free = [device_trial.free_bytes(device)]
    opened, direct = open_it()
    try:
        cache = TrialCache(made, device_id or 0, direct=direct and is_npu)
        opened.register(cache.memory.regions)
        free.append(device_trial.free_bytes(device))
        tell("opened", block_bytes=cache.block_bytes)
        rounds = question["rounds"]
        for at in range(rounds):
            _move(opened, cache, question["keys"][at * HALF : (at + 1) * HALF], at)
        free.append(device_trial.free_bytes(device))
        tell("memory", free=free)
    finally:
        opened.close()
    tell("closed")
    return opened


def _move(pool: PoolBackend, cache: TrialCache, keys: list[str], version: int) -> None:
    """One round: the first half of the blocks there, and back into the second half."""
    cache.fill(range(HALF), version)
    cache.fill(range(HALF, BLOCKS), version + 100)
    began = time.perf_counter()
    with cache.memory.read(np.arange(HALF)) as buffers:
        stored = pool.put(keys, buffers)
    put_s = time.perf_counter() - began
    began = time.perf_counter()
    with cache.memory.write(np.arange(HALF, BLOCKS)) as buffers:
        got = pool.get(keys, buffers)
    get_s = time.perf_counter() - began
    expected = {at: (at, version) for at in range(HALF)} | {at: (at - HALF, version) for at in range(HALF, BLOCKS)}
    wrong = [at for at in cache.wrong_blocks(expected) if at < HALF or got[at - HALF]]
    tell(
        "moved",
        put_s=put_s,
        get_s=get_s,
        stored=sum(stored),
        got=sum(got),
        wrong=wrong,
        trouble=getattr(stored, "trouble", None) or getattr(got, "trouble", None),
        codes=[*getattr(stored, "codes", ()), *getattr(got, "codes", ())][:4],
    )
