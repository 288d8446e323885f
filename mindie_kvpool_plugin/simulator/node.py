"""One node of a deployment whose prompts and answers are computed on two: a host, and the transfers of its ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.flex_scheduler import FlexScheduler
from mindie_kvpool_plugin.simulator.metadata import batch_metadata, shares_of
from mindie_kvpool_plugin.simulator.node_schedulers import ChunkedPrefillScheduler, DecodeScheduler, PrefillScheduler
from mindie_kvpool_plugin.simulator.oracle import Oracle
from mindie_kvpool_plugin.simulator.pulls import Pull, PullFaults, Source, Transfers
from mindie_kvpool_plugin.simulator.requests import Batch, Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler
from mindie_kvpool_plugin.simulator.speculative_nodes import decode_scheduler, prefill_scheduler


@dataclass(eq=False)
class Attempt(Request):
    """What one node does for a client's request.

    Attributes:
        front: the client's request.
        node: whose work it is.
        prefill: of a decode, the prefill whose blocks it pulls.
        home: of a prefill, once its first token is known, its blocks, by the name of the rank to pull them from.
        pulled_with: of a decode, requests that were pulled together.
    """

    front: Request = field(default_factory=lambda: Request(0, [], 0))
    node: int = 0
    prefill: Attempt | None = None
    home: dict[int, list[int]] = field(default_factory=dict)
    pulled_with: int = 1


class Node(Engine):
    """A host in role prefill, decoder or flex.

    Args:
        config: of the host.
        oracle: of the deployment.
        overlaps: pulls run beside the next round's batches; else the scheduler waits for them at once.
        faults: of pulls.
        seed: of a flex node's choices.

    Attributes:
        on_pulled: called with a decode, and whether its blocks came, once they do not have to be kept any longer.
    """

    on_pulled: Callable[[Attempt, bool], None]

    def __init__(
        self, config: EngineConfig, oracle: Oracle | None, *, overlaps: bool, faults: PullFaults, seed: int
    ) -> None:
        self._transfers: Transfers | None = None
        self._pull: Pull | None = None
        self._overlaps, self._seed = overlaps, seed
        super().__init__(config, oracle)
        self.transfers = self._transfers = Transfers(self.workers, faults)

    @property
    def prefills(self) -> PrefillScheduler | None:
        """Schedules prompts for the other node."""
        scheduler = self.scheduler
        if isinstance(scheduler, FlexScheduler):
            return scheduler.prefill
        return scheduler if isinstance(scheduler, PrefillScheduler) else None

    @property
    def decodes(self) -> DecodeScheduler | None:
        """Schedules what comes from the other node."""
        scheduler = self.scheduler
        if isinstance(scheduler, FlexScheduler):
            return scheduler.decode
        return scheduler if isinstance(scheduler, DecodeScheduler) else None

    @property
    def is_pulling(self) -> bool:
        """Whether blocks are on the way."""
        return self._pull is not None

    def step(self) -> bool:
        """One turn of the scheduler: transfers first, then a batch."""
        scheduler = self.scheduler
        if isinstance(scheduler, FlexScheduler):
            scheduler.begin_round()
        moved = self._transfer(may_pull=not isinstance(scheduler, FlexScheduler) or scheduler.part == "decode")
        return super().step() or moved

    def published(self) -> list[Attempt]:
        """Prompts whose first token was sampled since somebody asked, with their blocks."""
        if self.prefills is None:
            return []
        kept = [attempt for attempt in self.prefills.kept.values() if isinstance(attempt, Attempt)]
        fresh = [attempt for attempt in kept if attempt.answer and not attempt.is_over and not attempt.home]
        for attempt in fresh:
            shares = shares_of(attempt.blocks, self.config.num_shares)
            attempt.home = {self.config.cluster(share): blocks for share, blocks in enumerate(shares)}
        return fresh

    def recomputed(self) -> list[Attempt]:
        """Decodes that had to make room since somebody asked."""
        if self.decodes is None:
            return []
        dropped, self.decodes.recomputed = self.decodes.recomputed, []
        return [attempt for attempt in dropped if isinstance(attempt, Attempt)]

    def close(self) -> None:
        """End all threads."""
        self.on_pulled = lambda attempt, is_fine: None  # whoever listens may hold this node
        if self._transfers is not None:
            self._transfers.close()
        super().close()

    def _scheduler_kind(self) -> Callable[..., Scheduler]:
        config, gamma = self.config, self.config.gamma
        if config.role == "prefill" and config.chunk_tokens:
            return partial(ChunkedPrefillScheduler, chunk_tokens=config.chunk_tokens)
        kinds: dict[str, Callable[..., Scheduler]] = {
            "prefill": prefill_scheduler(gamma, is_dealt_out=config.num_shares > 1),
            "decoder": decode_scheduler(gamma),
            "flex": partial(FlexScheduler, seed=self._seed, gamma=gamma),
        }
        return kinds[config.role]

    def _transfer(self, *, may_pull: bool) -> bool:
        """End the pull under way and begin the next; whether something moved."""
        decodes = self.decodes
        if decodes is None or not may_pull:
            return False
        moved = self._settle(decodes)
        requests = [attempt for attempt in decodes.next_pull() if isinstance(attempt, Attempt)]
        if requests:
            self._pull = self.transfers.order([*requests], self._sources(requests), lambda: self._metadata(requests))
            decodes.ordered([*requests])
            if not self._overlaps:
                self._settle(decodes)
        return moved or bool(requests)

    def _end_transfers(self) -> None:
        """What was on the way arrives on a device that lost the rest; nobody asks for it any more."""
        pull, self._pull = self._pull, None
        if pull is not None:
            pull.outcome()

    def _settle(self, decodes: DecodeScheduler) -> bool:
        pull, self._pull = self._pull, None
        if pull is None:
            return False
        is_fine = pull.outcome()
        for attempt in pull.requests:
            if isinstance(attempt, Attempt):
                attempt.pulled_with = len(pull.requests)
                self.on_pulled(attempt, is_fine)
            if is_fine:
                decodes.arrived(attempt)
            else:
                decodes.lost(attempt)
        return True

    def _sources(self, requests: list[Attempt]) -> list[Source]:
        """Per rank that has blocks, into ours as they come: not by turns, where they were dealt out (router_impl.py).

        The block of the first token is not among them: it has no KV yet.
        """
        sources: dict[int, Source] = {}
        for attempt in requests:
            if attempt.prefill is None or attempt.table is None:
                raise RuntimeError(f"request {attempt.sequence_id} has nothing to pull")
            begin = 0
            for cluster, blocks in attempt.prefill.home.items():
                _, theirs, own = sources.setdefault(cluster, (cluster, [], []))
                theirs.extend(blocks)
                own.extend(attempt.table.block_ids[begin : begin + len(blocks)])
                begin += len(blocks)
        return [source for source in sources.values() if source[1]]

    def _metadata(self, requests: list[Attempt]) -> object:
        zeros = [0] * len(requests)
        batch = Batch(is_prefill=True, requests=[*requests], computed=zeros, promised=zeros)
        config = self.config
        return batch_metadata(batch, config.num_npu_blocks, config.block_size, config.max_table_tokens)
