"""The child of the Mooncake probes: load the library, open a client, ask, and try objects.

Every object it puts it removes; the keys are its parent's, who removes them if this process dies in between.
A client without a segment leaves nothing with the master, so it is not closed, which would take a second.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from mindie_kvpool_plugin.doctor.child import end, listen, tell
from mindie_kvpool_plugin.errors import KvPoolError
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import codes, npu, start
from mindie_kvpool_plugin.pools.mooncake.client import Connection, close_connection
from mindie_kvpool_plugin.pools.mooncake.places import endpoint

NO_SPACE_TRIES = 4  # as the pool itself: eviction runs every 10 ms
NO_SPACE_PAUSE_S = 0.0075
NO_KEY = "mindie-kvpool/doctor/none"


def main() -> None:
    """Answer one question: {"options", "place", "role", "pings", "size", "keys", "holders", "remove", "ask", "sweep"}.

    ``options`` alone open a client; ``keys`` are tried with each of ``holders``, ``ask`` looked up, ``sweep`` removed.
    """
    question = listen()
    began = time.monotonic()
    connection = None
    try:
        options = MooncakeOptions(**question["options"]) if "options" in question else None
        if options is not None:
            start.set_environment(options)  # before the import, which reads the log level
        library = start.load_library()
        tell("loaded")
        if options is not None:
            connection = _with_client(library, options, question)
    except KvPoolError as error:
        tell("refused", error=str(error), seconds=time.monotonic() - began)
    end(connection)


def _with_client(library: Any, options: MooncakeOptions, question: dict[str, Any]) -> Connection:
    if "device" in question:
        npu.set_device(question["device"])
    began = time.monotonic()
    connection = start.connect(library, options, question["role"], question["place"], is_replacement=True)
    tell("connected", seconds=time.monotonic() - began)
    _ping(connection, question.get("pings", 0))
    for key in question.get("remove", ()):
        tell("removed", code=connection.store.remove(key, True))
    if question.get("ask"):
        answers = codes.one_per_key(connection.store.batch_is_exist(question["ask"]), len(question["ask"]))
        tell("asked", found=[code == 1 for code in answers])
    if question.get("sweep"):
        _sweep(connection, question["sweep"])
    if question.get("keys"):
        _try_objects(library, connection, question)
    if options.global_segment_size:
        close_connection(connection)
        tell("closed")
    return connection


def _ping(connection: Connection, count: int) -> None:
    """Ask for a key that nobody has: an answer of the master, and no lease."""
    times, answers = [], []
    for _ in range(count):
        began = time.monotonic()
        answers += list(connection.store.batch_is_exist([NO_KEY]))
        times.append(time.monotonic() - began)
    if times:
        tell("pinged", seconds=statistics.median(times), code=min(answers))


def _sweep(connection: Connection, keys: list[str]) -> None:
    """Remove many, also leased ones; told once."""
    codes_by_key = {key: connection.store.remove(key, True) for key in keys}
    left = [key for key, code in codes_by_key.items() if code not in codes.GONE]
    tell("swept", removed=sum(code == 0 for code in codes_by_key.values()), left=len(left), some=left[:4])


def _try_objects(library: Any, connection: Connection, question: dict[str, Any]) -> None:
    size = question["size"]
    sent = np.random.default_rng().integers(0, 256, size, dtype=np.uint8)
    back = np.zeros(size, dtype=np.uint8)
    for buffer in (sent, back):
        code = connection.store.register_buffer(buffer.ctypes.data, size)
        if code != 0:
            tell("unregistered", code=code)
            return
    for key, holder in zip(question["keys"], question["holders"], strict=True):
        back[:] = 0
        tell("object", holder=holder, **_one(library, connection.store, key, holder, sent, back))


def _one(library: Any, store: Any, key: str, holder: str, sent: Any, back: Any) -> dict[str, Any]:
    """Put, get, compare and remove one object."""
    config = library.ReplicateConfig()
    config.preferred_segment = holder
    found: dict[str, Any] = {}
    began = time.monotonic()
    found["put"] = _put(store, key, sent, config)
    found["put_s"] = time.monotonic() - began
    if found["put"] == 0:
        began = time.monotonic()
        answers = store.batch_get_into_multi_buffers([key], [[back.ctypes.data]], [[back.nbytes]], False)
        found["get"] = codes.one_per_key(answers, 1)[0]
        found["get_s"] = time.monotonic() - began
        found["is_same"] = bool((sent == back).all())
        found["at"] = endpoint(store.batch_get_replica_desc([key]).get(key, ()))
    # also after a put that failed: another writer's object it cannot be
    found["removed"] = store.remove(key, True)
    return found


def _put(store: Any, key: str, sent: Any, config: Any) -> int:
    code = codes.NO_SPACE
    for attempt in range(NO_SPACE_TRIES):
        time.sleep(NO_SPACE_PAUSE_S if attempt else 0)
        answers = store.batch_put_from_multi_buffers([key], [[sent.ctypes.data]], [[sent.nbytes]], config)
        code = codes.one_per_key(answers, 1)[0]
        if code != codes.NO_SPACE:
            break
    return code
