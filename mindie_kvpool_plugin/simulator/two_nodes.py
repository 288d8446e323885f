"""How two nodes work together, and what each of them is told: the settings of ``simulator.disaggregated``."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Literal

from mindie_kvpool_plugin.simulator.engine_config import EngineConfig
from mindie_kvpool_plugin.simulator.pulls import PullFaults

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class TwoNodes:
    """How the two nodes work together.

    Attributes:
        roles: "separate": a prefill and a decode node; "flex": two in role flex.
        decode_plugins: ``plugin_type`` of the decode node, which the host forbids ``prefix_cache``; empty: it has no
            pool either.
        decode_blocks: its device blocks; 0: as many as the prefill node's ranks have for a sequence.
        switch_every: flex nodes have fixed roles and swap them after so many requests; 0: they have not.
        faults: of pulls.
        overlaps_flex: pulls of flex nodes run beside prefills.  The host takes the blocks for computed at once and lets
            prompts hit them (scheduler.cpp, MarkBlocksAsComputed): then it serves wrong blocks by itself.
    """

    roles: Literal["separate", "flex"] = "separate"
    decode_plugins: str = "kv_pool"
    decode_blocks: int = 0
    switch_every: int = 0
    faults: PullFaults = field(default_factory=PullFaults)
    overlaps_flex: bool = False

    def __post_init__(self) -> None:
        if self.switch_every and self.roles != "flex":
            raise ValueError('switch_every needs roles "flex": the others are told theirs once')

    def judge(self, config: EngineConfig) -> None:
        """Refuse what two nodes are not simulated with.

        Raises:
            ValueError: says what.
        """
        if config.dp > 1:
            raise ValueError("two nodes are simulated without dp")
        if config.num_shares > 1 and self.roles == "flex":
            raise ValueError("cp and sp are for prefill nodes: the host pulls from their ranks by turns, to no others")
        if config.speculation and not config.speculation.draft_layers:
            raise ValueError(f"{config.speculation.plugin} guesses from the prompts of its own node")
        if self.roles == "flex" and config.chunk_tokens:
            raise ValueError("chunk_tokens goes not with flex nodes: the host drops what they answer")
        if self.roles == "flex" and config.async_scheduling:
            raise ValueError("asynchronous scheduling is for decode nodes: a flex node also prefills")

    def configurations(self, config: EngineConfig) -> tuple[EngineConfig, EngineConfig]:
        """What the nodes differ in, each with a number of its own."""
        first, second = (replace(config, role=self.roles, node=next(_numbers)) for _ in range(2))
        return (first, second) if self.roles == "flex" else (self._prefiller(first), self._decoder(second))

    def _prefiller(self, config: EngineConfig) -> EngineConfig:
        return replace(config, role="prefill", async_scheduling=False, max_preempt_count=0)

    def _decoder(self, config: EngineConfig) -> EngineConfig:
        blocks = self.decode_blocks or config.hbm_blocks * config.num_shares
        config = replace(config, role="decoder", hbm_blocks=blocks, chunk_tokens=0, cp=1, sp=1)
        if self.decode_plugins and config.backend:
            return replace(config, plugins=self.decode_plugins)
        return replace(config, plugins="", backend="", pool_file="")
