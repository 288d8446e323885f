"""What Mooncake's negative result codes say, and the codes we add for calls that never got an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mindie_kvpool_plugin.pools.result_codes import NOT_OPEN, WRONG_LENGTH, ResultCodes, one_per_key

__all__ = ["NOT_OPEN", "WRONG_LENGTH", "one_per_key"]

NO_SPACE: Final = -200
NOT_FOUND: Final = -704
LEASE_OVER: Final = -707
TRANSFER_FAILED: Final = -800
RPC_FAILED: Final = -900
RPC_TIMEOUT: Final = -901
NO_OFFLOAD: Final = -1300

# ours beside those of every backend
NO_TURN: Final = -1_000_003
GIVEN_UP: Final = -1_000_004
SILENT_PEER: Final = -1_000_005

EVERYDAY: Final = frozenset({NOT_FOUND, NO_SPACE, NOT_OPEN, SILENT_PEER})
"""Evicted since the lookup, full, closed, or told once per peer (``peers``).  Not worth a warning."""

GONE: Final = frozenset({0, NOT_FOUND})
"""What a removal answers when the key is not there afterwards."""

SERVICE_FAILED: Final = frozenset({NO_TURN, RPC_FAILED, RPC_TIMEOUT, WRONG_LENGTH})
"""The master or the client failed, whatever the key."""

_CODES: Final = ResultCodes(
    library={
        -1: "internal error",
        NO_SPACE: "no space, or everything is leased",
        -600: "refused arguments",
        -601: "not the writer of this key",
        -702: "no usable replica",
        -703: "still being written",
        NOT_FOUND: "not in the pool",
        -705: "exists",
        -706: "leased",
        LEASE_OVER: "lease ran out during the transfer",
        TRANSFER_FAILED: "transfer failed",
        -801: "checksum mismatch",
        RPC_FAILED: "the master does not answer",
        RPC_TIMEOUT: "the master answers too late",
        NO_OFFLOAD: "the master runs without --enable_offload",
        -1700: "tenant quota exceeded",
        -1701: "tenant not registered",
    },
    ours={
        NOT_OPEN: ("not_open", "pool not open"),
        NO_TURN: ("no_turn", "no turn at the slice gate in time"),
        WRONG_LENGTH: ("wrong_length", "a result list of the wrong length"),
        GIVEN_UP: ("given_up", "given up with the call"),
        SILENT_PEER: ("silent_peer", "its peer does not answer"),
    },
    size="another size than was asked for",
)
label, labels = _CODES.label, _CODES.labels


def meaning(code: int) -> str:
    """The code with its meaning, for a log line or an error."""
    return f"{code} (size differs from what was asked for)" if code >= 0 else _CODES.meaning(code)


def trouble(answers: Sequence[int]) -> str | None:
    """Why a call as a whole failed, or None: misses, a full pool and a few lost blocks are ordinary."""
    failed = [code for code in answers if code in SERVICE_FAILED]
    # one peer of several may be gone; with nothing moved at all it is the pool that is gone for us
    if not failed and not any(code >= 0 for code in answers):
        failed = [code for code in answers if code == TRANSFER_FAILED]
    return meaning(failed[0]) if failed else None
