"""Why a prompt's prefix ended where it did: one stable word per cause, explained in ``locale`` (``why.<word>``)."""

from __future__ import annotations

# nothing was missing
COMPLETE = "complete"
FIRST_CHUNK = "first_chunk"
TOO_SHORT = "too_short"
# the block is not in the pool
NEVER_STORED = "never_stored"
NOT_YET_STORED = "not_yet_stored"
NOT_ADMITTED = "not_admitted"
EVICTED = "evicted"
QUEUE_FULL = "queue_full"
WITHDRAWN = "withdrawn"
PUT_FAILED = "put_failed"
LEFT_ALONE_SPILL = "left_alone_spill"
OVER_BUDGET_SPILL = "over_budget_spill"
UNCERTAIN = "uncertain"
OTHER_ADAPTER = "other_adapter"
OTHER_FINGERPRINT = "other_fingerprint"
OTHER_NAMESPACE = "other_namespace"
ALIAS_ONLY = "alias_only"
# it is there, and was not promised
NOT_PROMISED = "not_promised"
NOT_ANNOUNCED = "not_announced"
LOOKUP_LATE = "lookup_late"
LOOKUP_LEFT_ALONE = "lookup_left_alone"
# it was promised, and did not come
GET_FAILED = "get_failed"
OTHER_RANK = "other_rank"
RANKS_DISAGREE = "ranks_disagree"
DEVICE_BUSY = "device_busy"
HOOK_ERROR = "hook_error"
# the pool was not asked
ADAPTER_UNNAMED = "adapter_unnamed"
LEFT_ALONE = "left_alone"
CHEAPER_TO_COMPUTE = "cheaper_to_compute"
OVER_BUDGET = "over_budget"
# this rank cannot tell
ELSEWHERE = "elsewhere"
UNKNOWN = "unknown"

NOTHING_MISSING = (COMPLETE, FIRST_CHUNK, TOO_SHORT)
TOLD_BY_OTHERS = (OTHER_RANK, ELSEWHERE, NOT_ANNOUNCED, UNKNOWN)
"""What a rank says when another one may know better."""

CAUSES = (
    *NOTHING_MISSING,
    NEVER_STORED,
    NOT_YET_STORED,
    NOT_ADMITTED,
    EVICTED,
    QUEUE_FULL,
    WITHDRAWN,
    PUT_FAILED,
    LEFT_ALONE_SPILL,
    OVER_BUDGET_SPILL,
    UNCERTAIN,
    OTHER_ADAPTER,
    OTHER_FINGERPRINT,
    OTHER_NAMESPACE,
    ALIAS_ONLY,
    NOT_PROMISED,
    NOT_ANNOUNCED,
    LOOKUP_LATE,
    LOOKUP_LEFT_ALONE,
    GET_FAILED,
    OTHER_RANK,
    RANKS_DISAGREE,
    DEVICE_BUSY,
    HOOK_ERROR,
    ADAPTER_UNNAMED,
    LEFT_ALONE,
    CHEAPER_TO_COMPUTE,
    OVER_BUDGET,
    ELSEWHERE,
    UNKNOWN,
)
"""All of them, in the order they are explained."""
