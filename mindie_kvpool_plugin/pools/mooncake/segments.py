"""This process's memory in the pool, mounted apart from ``setup``: only then are its segments known by their ids.

What is known by its id can leave the pool: nothing is put there any more, and after a time of grace the master forgets
it with all it holds, whether the process still lives or not.  Until then it can be read, and the process frees nothing
of it while somebody may: Mooncake waits another ten seconds before it does.  ``setup`` mounts memory, too, and
takes it back only with ``close``, which ends threads first, for seconds, with every Python thread stopped.
"""

from __future__ import annotations

import os
from typing import Any

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.records import MooncakeOptions
from mindie_kvpool_plugin.pools.attempt import Failed, attempt
from mindie_kvpool_plugin.pools.mooncake import codes

CALLS = ("allocate_and_mount_segment", "unmount_and_free_segment")
ANYWHERE = "*"  # Mooncake's kWildcardLocation, which setup gives as well
WHOLE = 16 << 20  # bytes; what is mounted apart is rounded up to a multiple: more memory than was given
# with these setup allocates otherwise, or deals the memory out over NUMA nodes (protocol rdma): what is mounted apart
# would be worse memory
SETUP_ONLY = ("MC_STORE_USE_HUGEPAGE", "ASCEND_ENABLE_USE_FABRIC_MEM")


def can_mount(store: Any, size_bytes: int, protocol: str) -> bool:
    """Whether memory mounted apart is the same as what ``setup`` would mount."""
    if size_bytes % WHOLE or protocol == "rdma" or any(name in os.environ for name in SETUP_ONLY):
        return False
    return all(hasattr(store, name) for name in CALLS)


def mount(store: Any, name: str, size_bytes: int, options: MooncakeOptions, place: str) -> tuple[str, ...]:
    """Give memory to the pool; the master's ids of it.

    Args:
        store: after a ``setup`` that gave none.
        name: of the client, for messages.
        size_bytes: of the memory.
        options: as in ``setup``.
        place: the pool file, for messages.

    Raises:
        PoolError: Mooncake refused, or the master did not answer in time: Mooncake has one code for both.
    """
    answer = attempt(lambda: store.allocate_and_mount_segment(size_bytes, options.protocol, ANYWHERE))
    if isinstance(answer, Failed) or answer.get("ret") != 0:
        why = repr(answer.error) if isinstance(answer, Failed) else codes.meaning(int(answer.get("ret", -1)))
        raise PoolError(
            f"{place}: Mooncake could not mount {size_bytes} bytes (global_segment_size) as {name}: {why}; is there as "
            f"much free memory, and does {options.master_server_address} (master_server_address) answer within "
            f"{options.rpc_timeout_s:g} s (rpc_timeout_s)? MC_LOG_LEVEL=INFO shows Mooncake's own log"
        )
    return tuple(answer["segment_ids"])


def unmount(store: Any, segment_ids: tuple[str, ...], grace_s: int) -> int:
    """Take memory out of the pool: nothing is put there any more.  0, or Mooncake's code.

    Args:
        store: that mounted it.
        segment_ids: of the memory.
        grace_s: how long what it holds can still be looked up and read; whole seconds, at least 1.

    One question to the master, 0.2 ms, or about ``rpc_timeout_s`` and a second if it does not answer.
    """
    return int(store.unmount_and_free_segment(list(segment_ids), grace_s))
