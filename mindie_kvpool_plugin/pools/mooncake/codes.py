"""What Mooncake's negative result codes say, and the codes we add for calls that never got an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NO_SPACE: Final = -200
NOT_FOUND: Final = -704
TRANSFER_FAILED: Final = -800
RPC_FAILED: Final = -900
RPC_TIMEOUT: Final = -901
NO_OFFLOAD: Final = -1300

# ours, far outside Mooncake's range: one code per key also for a call that gave none
NOT_OPEN: Final = -1_000_001
NO_TURN: Final = -1_000_002
WRONG_LENGTH: Final = -1_000_004
GIVEN_UP: Final = -1_000_005
SILENT_PEER: Final = -1_000_006

EVERYDAY: Final = frozenset({NOT_FOUND, NO_SPACE, NOT_OPEN, SILENT_PEER})
"""Evicted since the lookup, full, closed, or told once per peer (``peers``).  Not worth a warning."""

GONE: Final = frozenset({0, NOT_FOUND})
"""What a removal answers when the key is not there afterwards."""

SERVICE_FAILED: Final = frozenset({NO_TURN, RPC_FAILED, RPC_TIMEOUT, WRONG_LENGTH})
"""The master or the client failed, whatever the key."""

_MEANING: Final = {
    -1: "internal error",
    NO_SPACE: "no space, or everything is leased",
    -600: "refused arguments",
    -601: "not the writer of this key",
    -702: "no usable replica",
    -703: "still being written",
    NOT_FOUND: "not in the pool",
    -705: "exists",
    -706: "leased",
    -707: "lease ran out during the transfer",
    TRANSFER_FAILED: "transfer failed",
    -801: "checksum mismatch",
    RPC_FAILED: "the master does not answer",
    RPC_TIMEOUT: "the master answers too late",
    NO_OFFLOAD: "the master runs without --enable_offload",
    -1700: "tenant quota exceeded",
    -1701: "tenant not registered",
    NOT_OPEN: "pool not open",
    NO_TURN: "no turn at the slice gate in time",
    WRONG_LENGTH: "a result list of the wrong length",
    GIVEN_UP: "given up with the call",
    SILENT_PEER: "its peer does not answer",
}


_NAME: Final = {
    NOT_OPEN: "not_open",
    NO_TURN: "no_turn",
    WRONG_LENGTH: "wrong_length",
    GIVEN_UP: "given_up",
    SILENT_PEER: "silent_peer",
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
    return known | {"other": "a code without a known meaning", "size": "another size than was asked for"}


def meaning(code: int) -> str:
    """The code with its meaning, for a log line or an error."""
    if code >= 0:
        return f"{code} (size differs from what was asked for)"
    known = _MEANING.get(code)
    if known is None:
        return str(code)
    return known if code <= NOT_OPEN else f"{code} ({known})"


def one_per_key(answers: Sequence[int], count: int) -> list[int]:
    """The binding's codes, or one of ours for every key if it gave another number of them."""
    return list(answers) if len(answers) == count else [WRONG_LENGTH] * count


def trouble(answers: Sequence[int]) -> str | None:
    """Why a call as a whole failed, or None: misses, a full pool and a few lost blocks are ordinary."""
    failed = [code for code in answers if code in SERVICE_FAILED]
    # one peer of several may be gone; with nothing moved at all it is the pool that is gone for us
    if not failed and not any(code >= 0 for code in answers):
        failed = [code for code in answers if code == TRANSFER_FAILED]
    return meaning(failed[0]) if failed else None
