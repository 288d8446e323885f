"""A pool client of the host's kind that holds nothing: stands where the host opens one that kv_pool makes useless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class IdlePool:
    """The host's pool interface (mempool/base.py); nothing is stored and nothing is there."""

    def put(self, keys: Sequence[str], tensors: Any) -> list[bool]:
        """Nothing is stored."""
        del tensors
        return [False] * len(keys)

    def get(self, keys: Sequence[str], tensors: Any) -> list[bool]:
        """Nothing arrives."""
        del tensors
        return [False] * len(keys)

    def exists(self, key: str) -> bool:
        """Nothing is there."""
        del key
        return False

    def batch_exist(self, keys: Sequence[str]) -> list[bool]:
        """Nothing is there."""
        return [False] * len(keys)
