"""The child of the MemCache probe: a client that only asks, as the scheduler's; it needs no NPU and leaves nothing."""

from __future__ import annotations

import statistics
import time

from mindie_kvpool_plugin.doctor.child import end, listen, tell
from mindie_kvpool_plugin.errors import KvPoolError
from mindie_kvpool_plugin.options.records import MemcacheOptions
from mindie_kvpool_plugin.pools.memcache import start
from mindie_kvpool_plugin.pools.memcache.client import Setup


def main() -> None:
    """Answer one question: {"config_path", "place", "pings", "budget_s"}."""
    question = listen()
    store = None
    try:
        options = MemcacheOptions(question["config_path"])
        path, local = start.config_file(options, question["place"])
        library = start.load_library(path)
        store = start.connect(library, Setup(path, 0, False), local, question["budget_s"], question["place"])
        times, answers = [], []
        for _ in range(question["pings"]):
            began = time.monotonic()
            answers += list(store.batch_is_exist([start.PROBE_KEY]))
            times.append(time.monotonic() - began)
        tell("pinged", seconds=statistics.median(times), code=min(answers))
    except KvPoolError as error:
        tell("refused", error=str(error))
    end(store)
