"""A store: a process that does nothing but own memory of the pool, so that the pool outlives the engines.

It is a client of Mooncake's in a Python process, not Mooncake's own ``mooncake_client``: that one opens one more
unauthenticated port, and has no readiness, no time of grace when it ends, and no word about a lost master.
What moves bytes are the library's threads either way; Python only waits here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.observability.counters import Counters
from mindie_kvpool_plugin.observability.identity import Identity, Settings
from mindie_kvpool_plugin.observability.log import logger
from mindie_kvpool_plugin.observability.observer import observe
from mindie_kvpool_plugin.observability.part import Part
from mindie_kvpool_plugin.options.mooncake import SMALLEST_SEGMENT_BYTES
from mindie_kvpool_plugin.options.records import GIB, MooncakeOptions
from mindie_kvpool_plugin.pools.mooncake import npu, start
from mindie_kvpool_plugin.pools.mooncake.admin import Admin, Segment
from mindie_kvpool_plugin.pools.mooncake.codes import meaning
from mindie_kvpool_plugin.pools.mooncake.disk import DiskTier, Tenancy
from mindie_kvpool_plugin.pools.mooncake.memory import PoolMemory, expect_pool, mount
from mindie_kvpool_plugin.services.notify import notify
from mindie_kvpool_plugin.services.stopping import Stopping
from mindie_kvpool_plugin.services.warm import Range, added, private_memory, warm

BEAT_S = 1.0
ASK_S = 5.0  # between questions to the master's admin server
LOST_S = 30.0  # a client mounts its memory again within 2 s of the master's return; after this it will not any more
PREDECESSOR_POLL_S = 0.5
FINISH_S = 1.0  # for a get that began in the last moment of the time of grace: a piece takes milliseconds
LOST = 1
"""Exit status when memory is no part of the pool any more: whoever supervises starts anew."""


@dataclass(frozen=True, slots=True)
class StoreWish:
    """What a store shall be.

    Attributes:
        options: how the pool is reached, and this machine from others; its sizes are not looked at.
        place: the pool file, for messages.
        size_bytes: of the memory.
        tier: the SSD tier; None: none.
        warms: page-fault the memory when it serves.
        drain_s: how long its blocks can be read when it ends; whole seconds.
        device: NPU with protocol ascend.
        admin: where the master's admin server would be; it may be closed to this machine.
        namespace: of the pool file, for whoever asks.
        settings: how it is observed.
    """

    options: MooncakeOptions
    place: str
    size_bytes: int
    tier: DiskTier | None
    warms: bool
    drain_s: int
    device: int
    admin: Admin
    namespace: str = ""
    settings: Settings | None = None


def run(wish: StoreWish, announce: Callable[[PoolMemory], None]) -> int:
    """Give memory to the pool until a signal says to end; the exit status: 0, or LOST.

    Args:
        wish: what it shall be.
        announce: called once it is part of the pool.

    The process has to end afterwards, by ``os._exit``: Mooncake's own end of an SSD tier is broken.

    Raises:
        PoolError: it cannot be part of the pool.
    """
    stopping = Stopping()
    _prepare(wish)
    tenancy = _take_folder(wish, wish.tier, stopping) if wish.tier is not None else None
    if stopping.number:
        return 0
    before = private_memory()
    folder = str(wish.tier.blocks) if wish.tier is not None else ""
    memory = mount(wish.options, wish.size_bytes, folder, wish.place)
    # not the stacks of its threads
    ranges = [each for each in added(before, private_memory()) if each[1] - each[0] >= SMALLEST_SEGMENT_BYTES]
    if tenancy is not None:
        tenancy.enter(memory.name)
    part = _observed(wish)
    notify(READY=1, STATUS=f"{wish.size_bytes / GIB:.1f} GiB of the pool at {memory.name}")
    announce(memory)
    if wish.warms and not stopping.number:
        _warm(ranges)
    status = Watch(wish, memory, tenancy, part.counters).until(stopping)
    notify(STOPPING=1)
    _drain(wish, memory, tenancy)
    part.forget()
    return status


def _observed(wish: StoreWish) -> Part:
    """Figures for whoever asks."""
    counters = Counters(store_memory_bytes=wish.size_bytes, store_master_answers=1)
    counters.store_disk_limit_bytes = wish.tier.size_bytes if wish.tier is not None else 0
    identity = Identity("store", backend="mooncake", namespace=wish.namespace, pool_file=wish.place)
    return observe(identity, counters, wish.settings)


def _prepare(wish: StoreWish) -> None:
    """Judge what can be judged by now, and set what Mooncake reads when it is loaded; nothing is made."""
    own = replace(wish.options, global_segment_size=wish.size_bytes, local_buffer_size=0)
    start.check_options(own, wish.place, "worker")
    start.set_environment(wish.options)
    if wish.options.protocol == "ascend":
        npu.set_device(wish.device)
    if wish.tier is not None:
        wish.tier.set_environment()


def _take_folder(wish: StoreWish, tier: DiskTier, stopping: Stopping) -> Tenancy:
    """Have the folder for ourselves, and its last owner forgotten by the master; without a master no folder is made."""
    expect_pool(wish.options, wish.place)
    tenancy = Tenancy(tier)
    end = time.monotonic() + tenancy.forgotten_in_s()
    if tenancy.predecessor and time.monotonic() < end:
        logger.info(
            "the last store in %s, %s, did not end properly: waiting up to %.0f s until the master has forgotten it",
            tier.folder,
            tenancy.predecessor,
            end - time.monotonic(),
        )
    while time.monotonic() < end and not stopping.wait(PREDECESSOR_POLL_S):
        if _segments(wish.admin, tenancy.predecessor) == []:
            break
    return tenancy


def _segments(admin: Admin, name: str) -> list[Segment] | None:
    """What the master has of one client; None when it cannot be asked from here."""
    try:
        return [each for each in admin.segments() if each.name == name]
    except PoolError:
        return None


def _warm(ranges: list[Range]) -> None:
    began = time.monotonic()
    try:
        size = warm(ranges)
    except OSError as error:
        logger.warning("the memory stays cold, so that each of its pages is slow once: %s", error)
        return
    took = time.monotonic() - began
    logger.info("warmed %.1f GiB in %.1f s (%.1f GB/s)", size / GIB, took, size / 1e9 / max(took, 1e-9))


def _drain(wish: StoreWish, memory: PoolMemory, tenancy: Tenancy | None) -> None:
    """Leave the pool: nothing is put here any more, and what is here can be read for a while."""
    logger.info("leaving the pool; its blocks can be read for %d s", wish.drain_s)
    code = memory.unmount(wish.drain_s)
    if code != 0:
        logger.warning("leaving without the master, which forgets this store by itself: %s", meaning(code))
    elif tenancy is not None:
        tenancy.leave()
    # a signal during this ends the process at once
    time.sleep(wish.drain_s + FINISH_S if code == 0 else 0)


class Watch:
    """Looks after mounted memory, on the main thread: says when the master is gone, and when it is back.

    Mooncake's client mounts by itself what a restarted master has forgotten; this only makes sure of it.
    """

    def __init__(self, wish: StoreWish, memory: PoolMemory, tenancy: Tenancy | None, counters: Counters) -> None:
        self._wish, self._memory, self._tenancy, self._counters = wish, memory, tenancy, counters
        self._gone_since: float | None = None
        self._missing_since: float | None = None
        self._next_question = time.monotonic()

    def until(self, stopping: Stopping) -> int:
        """Watch until a signal comes or the memory is lost; the exit status."""
        while not stopping.wait(BEAT_S):
            if self._tenancy is not None:
                self._tenancy.beat()
            health = self._memory.health()
            if health == "closed" or self._is_lost():
                logger.error("this memory is no part of the pool any more (%s); ending", health)
                return LOST
            self._tell(is_there=health == "good")
        return 0

    def _tell(self, *, is_there: bool) -> None:
        now, address = time.monotonic(), self._wish.options.master_server_address
        self._counters.store_master_answers = int(is_there)
        if not is_there and self._gone_since is None:
            self._gone_since = now
            self._counters.store_master_losses += 1
            logger.warning("mooncake_master at %s does not answer; the memory waits and is mounted again then", address)
            notify(STATUS="waits for mooncake_master")
        elif is_there and self._gone_since is not None:
            logger.info("mooncake_master at %s answers again after %.0f s", address, now - self._gone_since)
            self._gone_since, self._next_question = None, now
        if is_there and now >= self._next_question:
            self._next_question = now + ASK_S
            self._ask(now)

    def _ask(self, now: float) -> None:
        """Whether the master has our memory; says so when that changes."""
        found = _segments(self._wish.admin, self._memory.name)
        if self._wish.tier is not None:
            self._counters.store_disk_bytes = self._wish.tier.used_bytes()
        if found:
            self._missing_since = None
            used, size = sum(each.used_bytes for each in found), sum(each.size_bytes for each in found)
            self._counters.store_used_bytes = used
            notify(STATUS=f"{used / GIB:.1f} of {size / GIB:.1f} GiB in use at {self._memory.name}")
        elif found is not None and self._missing_since is None:
            self._missing_since, self._next_question = now, now + BEAT_S
            logger.warning("the master does not have this memory; it should mount again within seconds")
        elif found is not None:
            self._next_question = now + BEAT_S

    def _is_lost(self) -> bool:
        return self._missing_since is not None and time.monotonic() > self._missing_since + LOST_S
