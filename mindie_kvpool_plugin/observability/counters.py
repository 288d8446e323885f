"""What is counted, by plain additions where it happens; ``metrics`` says what each count is called and means.

Every field has one writer: a thread of its own, or whoever holds the lock named beside it.  Readers (the observer
thread, a scrape) take no lock: each number is whole, two of them may be a moment apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Upper bounds of times: a lookup takes tens of microseconds, a stuck transfer a minute."""

BLOCKS = tuple(2**power for power in range(14))
"""Upper bounds of blocks per prompt: 1 to 8192."""

CLOSED, HALF_OPEN, OPEN = range(3)
"""``breaker_state``: the pool is used, tried, left alone."""


class Histogram:
    """Values by size.

    Attributes:
        bounds: upper bounds, ascending.
        counts: values up to each bound and above the one before; the last entry counts those above all bounds.
        total: their sum.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


def _seconds() -> Histogram:
    return Histogram(SECONDS)


def _blocks() -> Histogram:
    return Histogram(BLOCKS)


@dataclass(slots=True)
class Counters:
    """Counts of one rank, or of one scheduler's lookups, since start.

    Reload, on the step thread: ``prompts`` to ``saved_seconds``; whoever measures the host's steps: the next one.
    Under the plugin's lock: ``unpooled_*`` to ``dropped_over_budget``.  By the thread that runs spills:
    ``kept_blocks`` to ``spill_seconds``.  Under the fence's condition: ``withdrawn_blocks`` to ``fence_seconds``; under
    the queue's: ``queued_*``; under the breaker's lock: ``breaker_*`` to ``pool_failures``.  By whoever opens the pool:
    ``pool_is_open``.  On the scheduler's thread: ``answered_*`` to ``lookup_seconds``; on a store's main thread:
    ``store_*``.
    """

    prompts: int = 0
    promised_blocks: int = 0
    promised_tokens: int = 0
    loaded_tokens: int = 0
    promised_depth: Histogram = field(default_factory=_blocks)
    loaded_depth: Histogram = field(default_factory=_blocks)
    reloaded_blocks: int = 0
    reloaded_bytes: int = 0
    failed_get_blocks: int = 0
    corrupt_blocks: int = 0
    recomputed_not_delivered: int = 0
    recomputed_other_rank: int = 0
    recomputed_pool_left_alone: int = 0
    recomputed_device_closed: int = 0
    recomputed_device_busy: int = 0
    recomputed_ranks_disagree: int = 0
    recomputed_cheaper: int = 0
    recomputed_over_budget: int = 0
    recomputed_error: int = 0
    ranks_agree: int = 1
    reload_seconds: Histogram = field(default_factory=_seconds)
    load_is_on: int = 1
    load_elsewhere_is_on: int = 1
    load_switches: int = 0
    load_probes: int = 0
    load_block_seconds: float = 0.0
    load_call_seconds: float = 0.0
    load_elsewhere_block_seconds: float = 0.0
    load_elsewhere_call_seconds: float = 0.0
    compute_block_seconds: float = 0.0
    reload_budget_seconds: float = 0.0
    declined_load_seconds: float = 0.0
    declined_compute_seconds: float = 0.0
    saved_seconds: float = 0.0
    prefill_token_seconds: float = 0.0

    unpooled_adapter: int = 0
    unpooled_unseen: int = 0
    unpooled_beams: int = 0
    hook_errors: int = 0

    freed_blocks: int = 0
    unclaimed_blocks: int = 0
    dropped_queue_full: int = 0
    dropped_pool_left_alone: int = 0
    dropped_device_closed: int = 0
    dropped_over_budget: int = 0
    kept_blocks: int = 0
    unadmitted_blocks: int = 0
    spilled_blocks: int = 0
    spilled_bytes: int = 0
    renewed_blocks: int = 0
    failed_put_blocks: int = 0
    spill_seconds: Histogram = field(default_factory=_seconds)
    withdrawn_blocks: int = 0
    fence_waits: int = 0
    fence_seconds: Histogram = field(default_factory=_seconds)
    queued_blocks: int = 0
    queued_bytes: int = 0

    breaker_state: int = CLOSED
    breaker_openings: int = 0
    refused_keys: int = 0
    exists_seconds: Histogram = field(default_factory=_seconds)
    get_seconds: Histogram = field(default_factory=_seconds)
    put_seconds: Histogram = field(default_factory=_seconds)
    pool_errors: dict[tuple[str, str], int] = field(default_factory=dict)
    pool_failures: dict[tuple[str, str], int] = field(default_factory=dict)
    pool_is_open: int = 1

    answered_all: int = 0
    answered_some: int = 0
    answered_none: int = 0
    remembered_questions: int = 0
    asked_keys: int = 0
    found_keys: int = 0
    lookup_errors: int = 0
    lookup_seconds: Histogram = field(default_factory=_seconds)

    store_memory_bytes: int = 0
    store_used_bytes: int = 0
    store_disk_bytes: int = 0
    store_disk_limit_bytes: int = 0
    store_master_answers: int = 0
    store_master_losses: int = 0

    @property
    def dropped_blocks(self) -> int:
        """Blocks that were not offered to the pool."""
        return (
            self.dropped_queue_full
            + self.dropped_pool_left_alone
            + self.dropped_device_closed
            + self.dropped_over_budget
        )

    @property
    def recomputed_blocks(self) -> int:
        """Promised blocks that were given back to the host to compute."""
        return (
            self.recomputed_not_delivered
            + self.recomputed_other_rank
            + self.recomputed_pool_left_alone
            + self.recomputed_device_closed
            + self.recomputed_device_busy
            + self.recomputed_ranks_disagree
            + self.recomputed_cheaper
            + self.recomputed_over_budget
            + self.recomputed_error
        )

    @property
    def net_seconds(self) -> float:
        """Prefill seconds saved, less those spent on reloads; below 0 where the pool costs more than it saves."""
        return self.saved_seconds - self.reload_seconds.total

    @property
    def questions(self) -> int:
        """Questions of the scheduler."""
        return self.answered_all + self.answered_some + self.answered_none
