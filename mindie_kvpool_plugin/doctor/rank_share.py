"""How large a block is and how many a long prompt has, from the configuration and the weights' config.json."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mindie_kvpool_plugin.check.rules.view import integer
from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.planning.instance import Instance, from_config


@dataclass(frozen=True, slots=True)
class RankShare:
    """One rank's share of the KV cache.

    Attributes:
        instance: model and ranks.
        longest_tokens: of a prompt that the service takes.
    """

    instance: Instance
    longest_tokens: int

    @property
    def block_bytes(self) -> int:
        """Of one block on one rank, all layers."""
        return self.instance.rank_block_bytes

    @property
    def longest_bytes(self) -> float:
        """What one rank loads for the longest prompt, if all of it is in the pool."""
        return math.ceil(self.longest_tokens / self.instance.block_size) * self.instance.read_block_bytes


def find_share(case: Case) -> RankShare | None:
    """The first model's; None where its weights cannot be read or say too little."""
    path = case.report.situation.config_path
    if case.report.is_pool_file or path is None:
        return None
    try:
        found = from_config(path, None)
    except (ConfigError, OSError):
        return None
    longest = integer(case.view.deploy, "maxInputTokenLen") or integer(case.view.deploy, "maxSeqLen")
    return RankShare(found, longest or found.block_size)
