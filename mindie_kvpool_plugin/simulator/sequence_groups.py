"""Requests of several sequences (n, best_of, beams): who branches off gets blocks of its own before it decodes.

As the host's scheduler does it (fcfs_policy.cpp, AllocBlocks4ParallelSeqGrp): the tokens of a new child, and of a beam
that goes on from another one's history, are given blocks like a prompt, so that full blocks are found in the prefix
cache and shared; every other block is copied from the parent's.  A beam gives its old blocks back before that.  The
host forks no block tables.
"""

from __future__ import annotations

from collections.abc import Iterator

from mindie_kvpool_plugin.simulator.block_manager import BlockManager
from mindie_kvpool_plugin.simulator.requests import BlockPair, Limits, Request, Sequence

ENDED_BEAM = -1
"""Stands for the id of a beam that has just ended: the sequence itself goes on with another history."""


def make_children(request: Request, best_of: int, ids: Iterator[int]) -> None:
    """Reserve the sequence ids under which the workers' sampler will answer."""
    request.children = [
        Sequence(next(ids), request.prompt, request.max_tokens, sample=sample, parent=request)
        for sample in range(1, best_of)
    ]


def why_not(
    best_of: int,
    n: int,
    adapter: str | None,
    limits: Limits,
    *,
    asynchronous: bool,
    swaps: bool,
    beams: bool = False,
) -> str:
    """Why a request of ``best_of`` sequences cannot run; empty if it can.  The host's own restrictions."""
    is_group = best_of > 1
    reasons = {
        f"n is {n} and best_of {best_of}, expected 1 <= n <= best_of": not 1 <= n <= best_of,
        f"a search in beams answers with all: n is {n} and best_of {best_of}": beams and n != best_of,
        "a search needs two beams at least: n is 1": beams and not is_group,
        "asynchronous scheduling takes no n, no best_of and no beams": is_group and asynchronous,
        "a request with n or best_of cannot be swapped: set max_preempt_count to 0": is_group and swaps,
        "children's blocks are named without the adapter: leave out the adapter or n": is_group and adapter is not None,
        f"best_of is {best_of}, more than the {limits.max_batch} sequences of a batch": best_of > limits.max_batch,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def branch(sequence_id: int, token: int, parent: Sequence, request: Request) -> bool:
    """A beam of ``request`` goes on with ``token`` from its parent's history, or a copy of the parent has ended.

    Returns:
        Whether it leaves another history for that.
    """
    if sequence_id == ENDED_BEAM:
        request.ended_beams.append([*parent.answer, token])
        return False
    beam = next(sample for sample in request.samples if sample.sequence_id == sequence_id)
    if beam is parent:
        return False
    has_begun = bool(beam.outputs)
    beam.outputs, beam.answer, beam.parent = list(parent.outputs), list(parent.answer), parent
    return has_begun


def place_children(request: Request, manager: BlockManager) -> bool:
    """Give who has branched off blocks and note what must be copied into them; False when they do not fit (yet)."""
    for child in request.live:
        if child.parent is None:
            continue
        if child.table is not None:
            manager.free(child.table, child.accessed)
            child.table = None
        if -(-child.num_tokens // manager.block_size) > manager.num_free:
            return False
        child.table = manager.allocate(child.tokens)
        request.copies += _differing(child.parent.blocks.block_ids, child.table.block_ids)
        child.parent = None
    return True


def _differing(parents: list[int], own: list[int]) -> list[BlockPair]:
    # the child has a token more, so perhaps a block more, into which there is nothing to copy
    return [(source, destination) for source, destination in zip(parents, own, strict=False) if source != destination]
