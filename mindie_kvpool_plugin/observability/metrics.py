"""Everything that is counted, by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Counters:
    """One rank's counts since start.

    The step thread and the thread that runs spills each change their own fields, so no lock is needed.

    Attributes:
        freed_blocks: full blocks that sequences left behind.
        spilled_blocks: blocks put into the pool by this rank.
        spilled_bytes: their bytes.
        renewed_blocks: blocks spilled or reloaded before and offered again, in case the pool lost them.
        kept_blocks: freed blocks not offered because the pool is known to have them.
        unclaimed_blocks: freed blocks whose content is not certain, so not offered.
        dropped_blocks: blocks not spilled because the queue was full or the pool left alone.
        withdrawn_blocks: spills given up because a step needed the block sooner.
        failed_put_blocks: puts the pool refused.
        promised_blocks: pool hits the scheduler counted on.
        reloaded_blocks: pool hits that arrived.
        reloaded_bytes: their bytes.
        failed_get_blocks: gets that did not deliver.
        corrupt_blocks: blocks that arrived damaged, with ``verify_payload``; also counted as failed.
        recomputed_blocks: promised blocks that were given back to the host to compute.
        unnamed_prompts: prompts with a LoRA adapter whose content is not known (yet); they run without the pool.
        fence_waits: steps that waited for a spill.
        hook_errors: host calls in which something unexpected was caught.
        breaker_openings: times the pool was in trouble and left alone for a while.
        refused_keys: keys answered with no without asking, because the pool was left alone.
    """

    freed_blocks: int = 0
    spilled_blocks: int = 0
    spilled_bytes: int = 0
    renewed_blocks: int = 0
    kept_blocks: int = 0
    unclaimed_blocks: int = 0
    dropped_blocks: int = 0
    withdrawn_blocks: int = 0
    failed_put_blocks: int = 0
    promised_blocks: int = 0
    reloaded_blocks: int = 0
    reloaded_bytes: int = 0
    failed_get_blocks: int = 0
    corrupt_blocks: int = 0
    recomputed_blocks: int = 0
    unnamed_prompts: int = 0
    fence_waits: int = 0
    hook_errors: int = 0
    breaker_openings: int = 0
    refused_keys: int = 0

    def as_dict(self) -> dict[str, int]:
        """All counts by name."""
        return asdict(self)
