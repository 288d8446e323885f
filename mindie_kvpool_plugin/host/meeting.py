"""Which ranks need each other's lengths, and their meeting at start.

Right after the warm-up, on the step thread: until everybody is here nobody starts serving.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin.core.load_gate import NUM_FIGURES, LoadGate
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.host.agreement import Agreement, Alone, Carrying, Lengths, is_daemons_child
from mindie_kvpool_plugin.host.deployment import Deployment
from mindie_kvpool_plugin.host.told_lengths import LATE_RANK_TIMEOUT_S, ToldLengths
from mindie_kvpool_plugin.options.pool_file import no_meeting_place


@dataclass(frozen=True, slots=True)
class Meeting:
    """The ranks that have met.

    Attributes:
        agreement: of the lengths.
        exchange: the agreement, by which load gates hear of each other.
        told: what ranks that run other batches were told, where there are such; None elsewhere.
    """

    agreement: Agreement | Alone
    exchange: Carrying
    told: ToldLengths | None

    def can_agree(self) -> bool:
        """Whether the ranks may agree on anything but zeros."""
        return not self.agreement.broken

    def agree(self, lengths: Lengths, has_device_failed: Callable[[], bool]) -> Lengths:
        """The smallest of every hit's length over the ranks (``Agreement``, or ``ToldLengths.minimum``).

        Args:
            lengths: int64 [hits], leading blocks of each hit that arrived here.
            has_device_failed: whether this rank can use nothing; it waits for nobody then.
        """
        if self.told is not None:
            return self.told.minimum(lengths)
        return self.exchange.give_up(len(lengths)) if has_device_failed() else self.exchange.minimum(lengths)


def meet(deployment: Deployment, load_gate: LoadGate | None) -> Meeting:
    """Wait for the ranks whose lengths this one needs.

    Args:
        deployment: whose ranks.
        load_gate: hears of the other ranks' figures; where one rank has none, the others' count.

    Raises:
        ConfigError: no pool file of theirs says where they could meet.
        HostCompatError: they did not.
    """
    mapping, active = deployment.mapping, deployment.active
    rank, size, name = who_agrees(mapping, active)
    agreement = Alone() if size == 1 else _open(rank, size, name, deployment)
    if load_gate is None:
        exchange = Carrying(agreement, NUM_FIGURES)
    else:
        exchange = Carrying(agreement, NUM_FIGURES, load_gate.tells, load_gate.hears)
    if size == 1 or not _are_told(active):
        return Meeting(agreement, exchange, None)
    num_groups = int(mapping.attn_dp.group_size)
    return Meeting(agreement, exchange, ToldLengths(exchange, deployment.dp_rank, num_groups, deployment.block_size))


def who_agrees(mapping: Any, active: Collection[str]) -> tuple[int, int, str]:
    """This rank's place among the ranks that need each other's lengths, and a name for them.

    One scheduler sends one batch to all data-parallel ranks, and each derives the others' lengths from it; on a
    prefill node with a scheduler per data-parallel rank they are told.  Elsewhere with such schedulers only the
    tensor-parallel ranks share a batch.  Decode nodes have no pool hits.
    """
    tp, dp = mapping.attn_tp, mapping.attn_dp
    if "pd_decode" in active:
        return 0, 1, "alone"
    if "dp_servers" in active and not _are_told(active):
        return int(tp.rank), int(tp.group_size), f"dp {dp.rank}, {tp.group_size} ranks"
    cp = mapping.attn_cp
    per_dp = int(tp.group_size) * int(cp.group_size)
    rank = int(dp.rank) * per_dp + int(cp.rank) * int(tp.group_size) + int(tp.rank)
    size = per_dp * int(dp.group_size)
    return rank, size, f"all {size} ranks"


def _open(rank: int, size: int, name: str, deployment: Deployment) -> Agreement:
    options = deployment.options
    if not _are_told(deployment.active):
        return Agreement(rank, size, options.agreement, name, options.agreement_timeout_s)
    if options.agreement == "auto" and is_daemons_child():
        raise ConfigError(f"{deployment.pool_file.path}: {no_meeting_place(options.agreement).told}")
    timeout_s = max(LATE_RANK_TIMEOUT_S, options.agreement_timeout_s)
    return Agreement(rank, size, options.agreement, name, timeout_s, ends_service=True)


def _are_told(active: Collection[str]) -> bool:
    """Whether ranks that run batches of their own are told what the others compute."""
    return {"dp_servers", "pd_prefill"} <= set(active)
