"""What happens on the device, seen from the pool: the traffic through the simulator's block manager, without KV bytes.

What the device holds depends on the requests alone: a block that comes from the pool takes the place of one that is
computed.  So the device is replayed once, and its log of events meets a pool of every size (``pool_side``).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from mindie_kvpool_plugin.planning.asked import Asked, Traffic
from mindie_kvpool_plugin.simulator.block_manager import NO_HASH, BlockManager, BlockTable

Event = tuple[Sequence[int], int, int]


@dataclass(slots=True)
class DeviceLog:
    """What the pool is asked and given, in order.

    Attributes:
        events: (names, computed, group): a prompt's names of which ``computed`` leading ones are on the device, and are
            not asked for; or (names, -1, group): a request ended and leaves these; or (names, -2, group): these were
            overwritten.
        prompt_tokens: of all prompts.
        device_hits: units found on the device.
        num_requests: served requests.
        too_long: requests that do not fit the device at all; they are left out.
    """

    events: list[Event] = field(default_factory=list)
    prompt_tokens: int = 0
    device_hits: int = 0
    num_requests: int = 0
    too_long: int = 0


ENDED, OVERWRITTEN = -1, -2


def replay(traffic: Traffic, device_units: int, *, concurrency: int = 1, groups: int = 1) -> DeviceLog:
    """Send the traffic through devices of so many units.

    What no request can ever take is left out: units beyond those of all requests, and groups beyond their number.

    Args:
        traffic: the requests.
        device_units: units of one group's device.
        concurrency: requests in each group at once.
        groups: data-parallel groups and instances; requests go round.
    """
    log = DeviceLog()
    groups = max(1, min(groups, len(traffic.requests)))
    device_units = min(device_units, max(1, sum(_wanted(request, traffic.unit_tokens) for request in traffic.requests)))
    all_groups = [_Group(device_units, traffic.unit_tokens, concurrency, log, group) for group in range(groups)]
    for index, request in enumerate(traffic.requests):
        all_groups[index % groups].serve(request)
    for group in all_groups:
        group.finish()
    return log


def _wanted(request: Asked, unit_tokens: int) -> int:
    """Units that a request and its answer take."""
    return -(-(request.tokens + request.answer_tokens) // unit_tokens)


@dataclass(slots=True)
class _Running:
    request: Asked
    table: BlockTable


class _Group:
    """One scheduler and its device.  A turn decodes all running requests by one token, and prefills pause it."""

    def __init__(self, device_units: int, unit_tokens: int, concurrency: int, log: DeviceLog, group: int) -> None:
        self._manager = BlockManager(device_units, unit_tokens)
        self._manager.on_evict = self._overwritten
        self._unit_tokens, self._concurrency, self._log, self._group = unit_tokens, concurrency, log, group
        self._running: list[tuple[int, int, _Running]] = []  # (decode turn of its last token, order, request)
        self._turn = self._order = 0
        self._lost: list[int] = []

    def serve(self, request: Asked) -> None:
        """Admit a request as soon as there is a place for it."""
        wanted = _wanted(request, self._unit_tokens)
        if wanted > self._manager.num_blocks:
            self._log.too_long += 1
            return
        while self._running and (len(self._running) >= self._concurrency or wanted > self._manager.num_free):
            self._end_next()
        self._begin(request, wanted)

    def finish(self) -> None:
        """End all requests."""
        while self._running:
            self._end_next()

    def _begin(self, request: Asked, wanted: int) -> None:
        manager = self._manager
        table = BlockTable([manager.place(name) for name in request.names], list(request.names))
        computed = manager.num_computed(table)
        rest = [*request.stored[len(request.names) :]]
        rest += [NO_HASH] * (wanted - len(table.block_ids) - len(rest))
        table.block_ids += [manager.place(name) for name in rest]
        table.hashes += rest
        manager.mark_computed()
        self._tell_overwritten()
        self._log.events.append((request.names, computed, self._group))
        self._log.device_hits += computed
        self._log.prompt_tokens += request.tokens
        self._log.num_requests += 1
        self._order += 1
        heapq.heappush(self._running, (self._turn + request.answer_tokens, self._order, _Running(request, table)))

    def _end_next(self) -> None:
        self._turn, _, ended = heapq.heappop(self._running)
        self._manager.free(ended.table, float(self._turn))
        self._log.events.append((ended.request.stored, ENDED, self._group))

    def _overwritten(self, name: int) -> None:
        self._lost.append(name)

    def _tell_overwritten(self) -> None:
        if self._lost:
            self._log.events.append((self._lost, OVERWRITTEN, self._group))
            self._lost = []
