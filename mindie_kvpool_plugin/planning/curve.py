"""Hit rate over the size of the pool, and the size from which more memory buys little."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mindie_kvpool_plugin.planning import admitted, device_side, pool_side
from mindie_kvpool_plugin.planning.asked import Traffic
from mindie_kvpool_plugin.planning.device_side import DeviceLog, Event
from mindie_kvpool_plugin.planning.pool_side import PoolRules

NUM_SIZES = 12
SMALLEST_SHARE = 1 / 64
"""The smallest pool of a curve, as a part of all blocks there are."""

MOST = 0.9
"""From the size on that answers so much of what the largest does, more memory buys little."""


@dataclass(frozen=True, slots=True)
class Point:
    """A pool of one size.

    Attributes:
        blocks: of its memory.
        device, memory, disk: shares of the prompt tokens found on the device, in the pool's memory, on its disk.
        writes: blocks that were put into it.
    """

    blocks: int
    device: float
    memory: float
    disk: float = 0.0
    writes: int = 0

    @property
    def gain(self) -> float:
        """Share that the pool answers and the device alone does not."""
        return self.memory + self.disk

    @property
    def hits(self) -> float:
        """Share of the prompt tokens that nobody computes."""
        return self.device + self.gain


@dataclass(frozen=True, slots=True)
class Curve:
    """All sizes for one traffic.

    Attributes:
        points: by size.
        disk_blocks: blocks of the disk below each.
        repeated: share of the prompt tokens that a pool which forgets nothing would answer.
        distinct: blocks it would hold.
        requests: that were served.
        too_long: that do not fit the device.
        prompt_tokens: of the served ones.
        second_use: as ``points``, with ``kv_pool.admission`` second_use.
    """

    points: tuple[Point, ...]
    disk_blocks: int
    repeated: float
    distinct: int
    requests: int
    too_long: int
    prompt_tokens: int
    second_use: tuple[Point, ...] = ()

    @property
    def knee(self) -> Point:
        """The smallest point that answers most of what the best one does beside the device."""
        best = max(point.gain for point in self.points)
        return next(point for point in self.points if point.gain >= MOST * best)

    def at(self, blocks: int) -> Point:
        """The point of a size that was asked for."""
        return next(point for point in self.points if point.blocks == blocks)


def ladder(distinct: int, wanted: Sequence[int] = (), count: int = NUM_SIZES) -> list[int]:
    """Sizes worth looking at, ``wanted`` among them: each the same factor above the one before, up to all blocks."""
    steps = max(2, count - len(set(wanted)))
    factor: float = SMALLEST_SHARE ** (1 / (steps - 1))
    found = {_rounded(distinct * factor**step) for step in range(steps)} | set(wanted)
    return sorted(size for size in found if size > 0)


def _rounded(size: float) -> int:
    """Two digits that count, upwards: people remember them."""
    unit = int("1" + "0" * max(0, len(str(int(size))) - 2))
    return -(-int(size) // unit) * unit


def curve(
    traffic: Traffic,
    device_blocks: int,
    sizes: Iterable[int],
    *,
    block_size: int,
    disk_blocks: int = 0,
    concurrency: int = 1,
    groups: int = 1,
    rules: PoolRules | None = None,
) -> Curve:
    """Replay the traffic for every size.

    Args:
        traffic: the requests.
        device_blocks: blocks of sequences each group's device holds.
        sizes: blocks of the pools.
        block_size: tokens of a block; a unit of the traffic stands for ``unit_tokens / block_size`` of them.
        disk_blocks: blocks of the disk below.
        concurrency: requests in each group at once.
        groups: schedulers with a device of their own that share the pool.
        rules: how the pool makes room.
    """
    ratio = block_size / traffic.unit_tokens
    log = device_side.replay(traffic, max(1, int(device_blocks * ratio)), concurrency=concurrency, groups=groups)
    rules = rules or PoolRules()
    ordered = sorted(sizes)

    def points(events: list[Event]) -> tuple[Point, ...]:
        return tuple(_point(log, events, blocks, disk_blocks, ratio, traffic.unit_tokens, rules) for blocks in ordered)

    return Curve(
        points(log.events),
        disk_blocks,
        traffic.repeated_tokens / max(1, traffic.prompt_tokens),
        int(traffic.distinct / ratio),
        log.num_requests,
        log.too_long,
        log.prompt_tokens,
        points(admitted.second_use(log, rules.stored_at, ratio)),
    )


def _point(
    log: DeviceLog, events: list[Event], blocks: int, disk_blocks: int, ratio: float, unit_tokens: int, rules: PoolRules
) -> Point:
    hits = pool_side.replay(events, max(1, int(blocks * ratio)), int(disk_blocks * ratio), rules)
    share = unit_tokens / max(1, log.prompt_tokens)
    return Point(blocks, log.device_hits * share, hits.memory * share, hits.disk * share, int(hits.writes / ratio))
