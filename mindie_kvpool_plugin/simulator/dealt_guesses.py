"""Speculation where the blocks of one sequence are dealt out to ranks.

Scheduler side.  As the host does it (block_table.cpp, AppendNewTokens with lookahead): blocks are dealt out in turn for
the placeholders, too, but only known tokens are put into them.  The workers are told whose every new block is, and of a
prompt's blocks how many each rank has, rank by rank (scheduler.cpp, prefillBlockRankId_).
"""

from __future__ import annotations

from mindie_kvpool_plugin.simulator.block_manager import UNKNOWN_TOKEN
from mindie_kvpool_plugin.simulator.dealt_out import DealtScheduler
from mindie_kvpool_plugin.simulator.requests import Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler
from mindie_kvpool_plugin.simulator.speculation import SpeculativeScheduler


class DealtSpeculativeScheduler(DealtScheduler, SpeculativeScheduler):
    """Placeholders have blocks, and are not in them."""

    def _append(self, request: Request) -> None:
        tokens = request.tokens[request.blocks.filled :]
        self.manager.reserve(request.blocks, len(tokens))
        request.blocks.filled += sum(token != UNKNOWN_TOKEN for token in tokens)

    def _can_append(self, request: Request) -> bool:
        # there is room when the ranks whose turn it is have some, as without guesses
        return Scheduler._can_append(self, request)
