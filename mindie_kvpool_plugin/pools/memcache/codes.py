"""What MemCache's result codes say (memcache_hybrid 1.3.0), and the codes we add for calls that never got an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mindie_kvpool_plugin.pools.result_codes import NOT_OPEN, WRONG_LENGTH, ResultCodes, one_per_key

__all__ = ["NOT_OPEN", "WRONG_LENGTH", "one_per_key"]

OK: Final = 0
FAILED: Final = -1  # of a put: nothing could be allocated, be the block too large or the pool full
WRONG_DIRECTION: Final = -2
INVALID: Final = -3000  # of a call whose keys are good: the meta service is gone
NOT_FOUND: Final = -3007
WRONG_SIZE: Final = -3012
NO_LINK: Final = -3014
NO_CLIENT: Final = -3019

BAD_KEY: Final = -1_000_003  # ours, beside those of every backend

EVERYDAY: Final = frozenset({NOT_FOUND, WRONG_SIZE, NOT_OPEN})
"""Evicted since the lookup, another deployment's block, closed.  Not worth a warning."""

ABOUT_THE_KEY: Final = frozenset({FAILED, NOT_FOUND, WRONG_SIZE, NOT_OPEN, BAD_KEY})
"""These say nothing about the pool."""

_CODES: Final = ResultCodes(
    library={
        FAILED: "failed, or no space",
        WRONG_DIRECTION: "memory of another kind than the copy's direction says",
        INVALID: "refused arguments, or the meta service is gone",
        -3001: "no memory",
        -3004: "no answer in time",
        NOT_FOUND: "not in the pool",
        WRONG_SIZE: "another size than was asked for",
        -3013: "no space",
        NO_LINK: "no connection to the meta service",
        -3016: "no memory",
        -3017: "not connected to the meta service",
        -3018: "not connected to the local service",
        NO_CLIENT: "client not initialised",
        -3101: "being written or evicted",
        -3102: "not in the pool",
        -3104: "leased",
    },
    ours={
        NOT_OPEN: ("not_open", "pool not open"),
        WRONG_LENGTH: ("wrong_length", "a result list of the wrong length"),
        BAD_KEY: ("bad_key", "a key that is not 1 to 256 bytes long"),
    },
    size="another number than success",
)
label, labels, meaning = _CODES.label, _CODES.labels, _CODES.meaning


def trouble(answers: Sequence[int], good: int) -> str | None:
    """Why a call as a whole failed, or None: misses, a full pool and a few lost blocks are ordinary."""
    if good in answers:
        return None
    failed = [code for code in answers if code < 0 and code not in ABOUT_THE_KEY]
    return meaning(failed[0]) if failed else None
