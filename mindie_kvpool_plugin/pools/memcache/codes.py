"""What MemCache's result codes say (memcache_hybrid 1.3.0), and the codes we add for calls that never got an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OK: Final = 0
FAILED: Final = -1  # of a put: nothing could be allocated, be the block too large or the pool full
WRONG_DIRECTION: Final = -2
INVALID: Final = -3000  # of a call whose keys are good: the meta service is gone
NOT_FOUND: Final = -3007
WRONG_SIZE: Final = -3012
NO_LINK: Final = -3014
NO_CLIENT: Final = -3019

# ours, far outside MemCache's range: one code per key also for a call that gave none
NOT_OPEN: Final = -1_000_001
WRONG_LENGTH: Final = -1_000_002
BAD_KEY: Final = -1_000_003

EVERYDAY: Final = frozenset({NOT_FOUND, WRONG_SIZE, NOT_OPEN})
"""Evicted since the lookup, another deployment's block, closed.  Not worth a warning."""

ABOUT_THE_KEY: Final = frozenset({FAILED, NOT_FOUND, WRONG_SIZE, NOT_OPEN, BAD_KEY})
"""These say nothing about the pool."""

_MEANING: Final = {
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
    NOT_OPEN: "pool not open",
    WRONG_LENGTH: "a result list of the wrong length",
    BAD_KEY: "a key that is not 1 to 256 bytes long",
}


_NAME: Final = {
    NOT_OPEN: "not_open",
    WRONG_LENGTH: "wrong_length",
    BAD_KEY: "bad_key",
}
"""What our own codes are counted as."""


def label(code: int) -> str:
    """What a code is counted as: itself if its meaning is known, else one of few words."""
    if code in _NAME or code not in _MEANING:
        return _NAME.get(code, "size" if code > 0 else "other")
    return str(code)


def labels() -> dict[str, str]:
    """Everything that ``label`` says, with what it means."""
    known = {label(code): text for code, text in _MEANING.items()}
    return known | {"other": "a code without a known meaning", "size": "another number than success"}


def meaning(code: int) -> str:
    """The code with its meaning, for a log line or an error."""
    known = _MEANING.get(code)
    if known is None:
        return str(code)
    return known if code <= NOT_OPEN else f"{code} ({known})"


def one_per_key(answers: Sequence[int], count: int) -> list[int]:
    """MemCache's codes, or one of ours for every key if it gave another number of them (none, when it is not open)."""
    return list(answers) if len(answers) == count else [WRONG_LENGTH] * count


def trouble(answers: Sequence[int], good: int) -> str | None:
    """Why a call as a whole failed, or None: misses, a full pool and a few lost blocks are ordinary."""
    if good in answers:
        return None
    failed = [code for code in answers if code < 0 and code not in ABOUT_THE_KEY]
    return meaning(failed[0]) if failed else None
