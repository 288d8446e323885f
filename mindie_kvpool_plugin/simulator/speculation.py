"""Speculation: how several tokens per sequence come out of one step, as the scheduler sees it.

As the host does it: the scheduler holds places for tokens it does not know (scheduler.cpp, CalculatePlaceHolderNum and
AddNextTokenPlaceHolder), puts them into the block table as they are, and asks for ``gamma`` places more behind them
(policy_helper.cpp, AppendTokenIds; block_table.cpp, GetNumRelatedBlocks).  Placeholders in blocks are never replaced,
so a block with one at its end gets no name: answers are hardly ever found on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from mindie_kvpool_plugin.simulator.block_manager import UNKNOWN_TOKEN
from mindie_kvpool_plugin.simulator.requests import Request
from mindie_kvpool_plugin.simulator.scheduler import Scheduler

ACCEPT_RATE = 0.6
"""Default share of guesses that are right: rejected ones are as frequent as it takes to see them."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """One of the host's plugins that guess.

    Attributes:
        plugin: its name in ``plugin_type``.
        params: what it adds to ``plugin_params``.
        gamma: ``speculationGamma``, guesses per sequence and step at most.
        accept_rate: share of the guesses that are right, each counted while those before it are.
        draft_layers: layers of a draft model in the cache, behind the model's own.
    """

    plugin: str
    params: dict[str, int] = field(default_factory=dict)
    gamma: int = 0
    accept_rate: float = ACCEPT_RATE
    draft_layers: int = 0

    def max_ahead(self, asynchronous: bool) -> int:
        """Places behind the known tokens that a sequence may have blocks for."""
        return _most_placeholders(self.gamma, asynchronous) + self.gamma


def mtp(tokens: int, accept_rate: float = ACCEPT_RATE) -> Speculation:
    """Multi-token prediction: a draft layer guesses so many tokens (model_deploy_config.cpp, GammaUpdate)."""
    gamma = max(tokens, 2 * tokens - 2)
    return Speculation("mtp", {"num_speculative_tokens": tokens}, gamma, accept_rate, draft_layers=1)


def la(level: int, window: int, guess_set_size: int, accept_rate: float = ACCEPT_RATE) -> Speculation:
    """Lookahead: several guesses of ``level`` - 1 tokens next to each other, of which one may be right."""
    params = {"level": level, "window": window, "guess_set_size": guess_set_size}
    return Speculation("la", params, (level - 1) * (window + guess_set_size), accept_rate)


def memory_decoding(decoding_length: int, accept_rate: float = ACCEPT_RATE) -> Speculation:
    """One guess of so many tokens, out of what was said before."""
    return Speculation("memory_decoding", {"decoding_length": decoding_length}, decoding_length, accept_rate)


class SpeculativeScheduler(Scheduler):
    """Placeholders for guesses, and places for their KV.

    Args:
        gamma: ``speculationGamma``.
        more: of ``Scheduler``.
    """

    def __init__(self, *args: Any, gamma: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._gamma = gamma

    def _expect_token(self, request: Request) -> None:
        trailing = 0
        while trailing < len(request.outputs) and request.outputs[-1 - trailing] == UNKNOWN_TOKEN:
            trailing += 1
        each, most = 1 + self._gamma, _most_placeholders(self._gamma, self._asynchronous)
        request.outputs += [UNKNOWN_TOKEN] * min(each, most - trailing)

    def _append(self, request: Request) -> None:
        tokens = request.tokens[request.blocks.filled :]
        self.manager.reserve(request.blocks, len(tokens) + self._gamma)
        super()._append(request)

    def _can_append(self, request: Request) -> bool:
        # the host does not count the blocks that lie ahead already
        size, filled = self.manager.block_size, request.blocks.filled
        ends = request.num_tokens + self._gamma
        return -(-ends // size) - -(-filled // size) <= self.manager.num_free

    def _worst_case(self, request: Request) -> int:
        ahead = _most_placeholders(self._gamma, self._asynchronous) + self._gamma
        return -(-(len(request.prompt) + request.max_tokens + ahead) // self.manager.block_size) + 1


def one_by_one(output: Any) -> Iterator[list[int]]:
    """The workers' answer as a token at a time: sequence ids, tokens, and why a sequence ends with it (0: it goes on).

    Args:
        output: token_ids int64 [sequences, tokens], num_new_tokens int64 [sequences], and an id and a reason of each.
    """
    parts = zip(
        output.sequence_ids.tolist(),
        output.token_ids.tolist(),
        output.num_new_tokens.tolist(),
        output.finish_reason.tolist(),
        strict=True,
    )
    rows = [
        (sequence_id, token, reason if place == count - 1 else 0)
        for sequence_id, tokens, count, reason in parts
        for place, token in enumerate(tokens[:count])
    ]
    return ([row[column] for row in rows] for column in range(3))


def _most_placeholders(gamma: int, asynchronous: bool) -> int:
    """Of the batches on their way and of the next one."""
    return (3 if asynchronous else 2) * (1 + gamma)
