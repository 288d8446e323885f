"""Memory of this machine that the master still lists although its process is gone, told once at start.

A process that could say good-bye has left no such memory (``host.leaving``).  One that was killed is listed until the
master has missed it for ``--client_ttl``: what it held is promised and recomputed meanwhile.  Only the master's HTTP
server lists memory, and the pool file does not name its port: where it is not ``admin.DEFAULT_PORT``, or lets nobody
in, nothing is told.
"""

from __future__ import annotations

import threading
import time

from mindie_kvpool_plugin.errors import KvPoolError
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.options.mooncake import master_addresses, split_hostname
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake.address import is_here
from mindie_kvpool_plugin.pools.mooncake.admin import Admin, Segment
from mindie_kvpool_plugin.pools.mooncake.peers import ANSWER_TIMEOUT_S, ask

POLL_S = 1.0
WATCHED_FOR_S = 120.0  # a master that lists them longer was given a long client_ttl


def watch(options: MooncakeOptions) -> None:
    """Look and tell, in a thread of its own: the master's HTTP server may be slow, and nobody waits for the answer."""
    threading.Thread(target=_watch, args=(options,), name="kvpool-leftovers", daemon=True).start()


def find(admin: Admin) -> list[Segment]:
    """Memory of processes of this machine at whose places nobody listens any more.

    Raises:
        PoolError: the master's HTTP server cannot be asked.
        OSError: no file descriptor is left to ask the places.
    """
    here = [each for each in admin.segments() if is_here(split_hostname(each.name, "segment")[0])]
    verdicts = ask({each.endpoint for each in here}, ANSWER_TIMEOUT_S)
    return [each for each in here if verdicts[each.endpoint] == "gone"]


def tell(admin: Admin) -> None:
    """One line if there is such memory, and one when the master has forgotten it.

    Raises:
        PoolError, OSError: as ``find``.
    """
    began, dead = time.monotonic(), find(admin)
    if not dead:
        return
    logger.warning(
        "%d bytes of the pool were memory of processes of this machine that are gone (%s): the master lists them until "
        "its --client_ttl (10 s unless it was told otherwise) is over, and what they held is recomputed",
        sum(each.size_bytes for each in dead),
        ", ".join(sorted({each.name for each in dead})),
    )
    names = {each.name for each in dead}
    while names & {each.name for each in admin.segments()}:
        if time.monotonic() > began + WATCHED_FOR_S:
            return
        time.sleep(POLL_S)
    logger.info(
        "the master has forgotten the memory of processes that are gone, %.0f s later", time.monotonic() - began
    )


def _watch(options: MooncakeOptions) -> None:
    try:
        host, _ = master_addresses(options.master_server_address, "master_server_address")[0]
        tell(Admin(host))
    except (KvPoolError, OSError, RuntimeError) as error:
        logger.debug("it is not known whether processes of this machine left memory in the pool: %s", error)
