"""A worker's last words: the pool hears that this process ends before the host ends it.

The host ends a worker with ``os._exit``, at a SIGTERM as after an exception, so that ``atexit`` rarely runs; and
whoever has not heard is sent to memory that is gone, until the pool's service misses the process.  So it is told
when the host begins to stop and again where it exits (``patches``): in a thread, which the host waits for
no longer than ``WAIT_S``.

Called on whatever thread the host ends on, and inside its signal handler: nothing here holds a lock.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from typing import TYPE_CHECKING

from mindie_kvpool_plugin.observability.log import logger

if TYPE_CHECKING:
    from mindie_kvpool_plugin.host.worker import PoolWorker
    from mindie_kvpool_plugin.pools.base import PoolBackend

WAIT_S = 0.3  # the host gives a worker 0.5 s between SIGTERM and the next thing it does (executor.cpp)

_open: weakref.WeakSet[PoolWorker] = weakref.WeakSet()
_told: weakref.WeakSet[PoolWorker] = weakref.WeakSet()
_departures: list[tuple[threading.Event, float]] = []  # when each was heard, and until when it is waited for


def opened(worker: PoolWorker) -> None:
    """This worker has an open pool."""
    _open.add(worker)


def closed(worker: PoolWorker) -> None:
    """It has none any more."""
    _open.discard(worker)


def leave() -> None:
    """Tell every open pool that this process ends; returns when all have heard, at the latest after ``WAIT_S``.

    Raises nothing: the host is about to end, and must.
    """
    try:
        for worker in set(_open) - set(_told):
            _told.add(worker)
            heard = threading.Event()
            _departures.append((heard, time.monotonic() + WAIT_S))  # first: who comes now waits for it, too
            threading.Thread(target=_leave, args=(worker.walks.pool, heard), name="kvpool-leave", daemon=True).start()
        for heard, deadline in tuple(_departures):
            heard.wait(max(0.0, deadline - time.monotonic()))
    except Exception:  # noqa: BLE001 - out of threads, or an interpreter that is going already
        logger.warning("nobody could be told that this process leaves the pool", exc_info=True)


def _leave(pool: PoolBackend, heard: threading.Event) -> None:
    try:
        pool.leave()
    except Exception:  # noqa: BLE001 - whatever a backend's library raises
        logger.warning("leaving the pool failed: others are told late that this process is gone", exc_info=True)
    finally:
        heard.set()


@atexit.register
def close_all() -> None:
    """Tell the pools good-bye properly, where an interpreter ends as interpreters should."""
    for worker in list(_open):
        worker.close()
