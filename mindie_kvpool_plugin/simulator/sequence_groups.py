"""Copy-on-write for n and best_of: every new child of a request gets blocks of its own before it decodes.

As the host's scheduler does it (fcfs_policy.cpp, AllocBlocks4ParallelSeqGrp): the child's tokens are given blocks
like a prompt, so that full blocks are found in the prefix cache and shared; every other block is copied from the
parent's.  The host forks no block tables.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindie_kvpool_plugin.simulator.block_manager import BlockManager
from mindie_kvpool_plugin.simulator.requests import BlockPair, Limits, Request, Sequence


def make_children(request: Request, best_of: int, ids: Iterator[int]) -> None:
    """Reserve the sequence ids under which the workers' sampler will answer."""
    request.children = [
        Sequence(next(ids), request.prompt, request.max_tokens, sample=sample) for sample in range(1, best_of)
    ]


def why_not(best_of: int, n: int, adapter: str | None, limits: Limits, *, asynchronous: bool, swaps: bool) -> str:
    """Why a request of ``best_of`` sequences cannot run; empty if it can.  The host's own restrictions."""
    is_group = best_of > 1
    reasons = {
        f"n is {n} and best_of {best_of}, expected 1 <= n <= best_of": not 1 <= n <= best_of,
        "asynchronous scheduling takes no n and no best_of": is_group and asynchronous,
        "a request with n or best_of cannot be swapped: set max_preempt_count to 0": is_group and swaps,
        "children's blocks are named without the adapter: leave out the adapter or n": is_group and adapter is not None,
        f"best_of is {best_of}, more than the {limits.max_batch} sequences of a batch": best_of > limits.max_batch,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def place_children(request: Request, manager: BlockManager) -> bool:
    """Give new children blocks and note what must be copied into them; False when they do not fit (yet)."""
    for child in request.live:
        if child.table is not None:
            continue
        if -(-child.num_tokens // manager.block_size) > manager.num_free:
            return False
        child.table = manager.allocate(child.tokens)
        request.copies += _differing(request.blocks.block_ids, child.table.block_ids)
    return True


def _differing(parents: list[int], own: list[int]) -> list[BlockPair]:
    # the child has a token more, so perhaps a block more, into which there is nothing to copy
    return [(source, destination) for source, destination in zip(parents, own, strict=False) if source != destination]
