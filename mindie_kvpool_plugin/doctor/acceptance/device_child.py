"""The child that touches a device or opens a pool as a rank does: one question, and each step told."""

from __future__ import annotations

import dataclasses
import importlib
import time
from functools import partial
from typing import Any

from mindie_kvpool_plugin.doctor.child import end, listen, tell
from mindie_kvpool_plugin.errors import KvPoolError
from mindie_kvpool_plugin.options.pool_file import read_pool_file
from mindie_kvpool_plugin.pools.base import PoolBackend, Role
from mindie_kvpool_plugin.pools.registry import BACKENDS, open_pool

WORK = "mindie_kvpool_plugin.doctor.acceptance.device_work"


def main() -> None:
    """Answer one question: {"work", "device", "shape", "block_size", "tp", "backend", "pool_file", "keys", ...}."""
    question = listen()
    pool = None
    try:
        pool = _lookups(question) if question["work"] == "lookup" else _with_torch(question)
    except KvPoolError as error:
        tell("refused", error=str(error))
    end(pool)


def _with_torch(question: dict[str, Any]) -> PoolBackend | None:
    """Importing torch imports torch_npu, which wants all of CANN's libraries."""
    try:
        work = importlib.import_module(WORK)
    except (ImportError, OSError, RuntimeError) as error:
        tell("unloaded", error=str(error.__cause__ or error).strip().splitlines()[0][:300])
        return None
    if question["work"] == "copies":
        work.copies(question)
        return None
    pool: PoolBackend = work.pool(question, partial(_open, question, "worker"))
    return pool


def _open(question: dict[str, Any], role: Role) -> tuple[PoolBackend, bool]:
    """The pool of a pool file, some of whose keys are changed; whether it reaches device memory."""
    found = read_pool_file(question["pool_file"])
    keys = {**found.backend_keys, **question["changes"]}
    changed = dataclasses.replace(found, backend_keys=keys, device_id=question["device"] or 0)
    backend = question["backend"]
    return open_pool(backend, changed, role), BACKENDS[backend].reaches_device(changed)


def _lookups(question: dict[str, Any]) -> PoolBackend:
    """What the scheduler waits for: one key, and as many as a long prompt has blocks."""
    pool, _ = _open(question, "scheduler")
    for count in question["counts"]:
        names = [f"{question['prefix']}/none/{at}" for at in range(count)]
        times, trouble = [], None
        for _ in range(question["times"]):
            began = time.perf_counter()
            answers = pool.exists(names)
            times.append(time.perf_counter() - began)
            trouble = trouble or getattr(answers, "trouble", None)
        tell("lookups", keys=count, seconds=times, trouble=trouble)
    return pool
