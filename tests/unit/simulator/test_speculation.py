"""Placeholders and places for guesses, and a cache in the fractal layout."""

import numpy as np
import pytest
import torch

from mindie_kvpool_plugin.simulator.block_manager import NO_HASH, BlockManager
from mindie_kvpool_plugin.simulator.device_job import cell_of
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.requests import Limits, Request
from mindie_kvpool_plugin.simulator.speculation import SpeculativeScheduler, la, memory_decoding, mtp

UNKNOWN = -1


def scheduler_of(gamma, *, asynchronous=False):
    return SpeculativeScheduler(BlockManager(32, 4), Limits(), gamma=gamma, asynchronous=asynchronous)


def decode(scheduler):
    batch = scheduler.schedule()
    scheduler.sent(batch)
    return batch


@pytest.mark.parametrize(("tokens", "gamma"), [(1, 1), (2, 2), (3, 4), (5, 8)])
def test_gamma_follows_the_drafts(tokens, gamma):
    """The draft layer runs over more places the more drafts there are."""
    assert mtp(tokens).gamma == gamma


def test_gamma_of_guesses_next_to_each_other():
    """As the host's validator wants it: places for all of them, and for the window they ripen in."""
    assert la(4, 5, 6).gamma == 3 * 11
    assert memory_decoding(8).gamma == 8


@pytest.mark.parametrize(("asynchronous", "most"), [(False, 8), (True, 12)])
def test_placeholders_are_bounded(asynchronous, most):
    """As many as the batches on their way and the next one can answer, when no token ever comes."""
    scheduler = scheduler_of(3, asynchronous=asynchronous)
    request = Request(1, [5] * 6, 20)
    scheduler.submit(request)
    for _ in range(6):
        decode(scheduler)
    assert request.outputs == [UNKNOWN] * most


def test_a_table_reaches_over_placeholders_and_guesses():
    """6 tokens of a prompt, one that came, one to come, and a guess: 9 places in blocks of 4."""
    scheduler = scheduler_of(1)
    request = Request(1, [5, 6, 7, 8, 9, 10], 20)
    scheduler.submit(request)
    decode(scheduler)
    assert len(request.blocks.block_ids) == 2
    scheduler.take([1], [11], [0])
    decode(scheduler)
    assert request.blocks.filled == 8
    assert len(request.blocks.block_ids) == 3
    assert request.outputs == [11, UNKNOWN, UNKNOWN, UNKNOWN]


def test_a_block_that_ends_in_a_placeholder_has_no_name():
    """Nor have those behind it; the prompt's have theirs."""
    scheduler = scheduler_of(1)
    request = Request(1, [5, 6, 7, 8, 9, 10], 20)
    scheduler.submit(request)
    decode(scheduler)
    scheduler.take([1], [11], [0])
    decode(scheduler)
    assert [name == NO_HASH for name in request.blocks.hashes] == [False, True, True]


def test_blocks_that_lie_ahead_are_given_back():
    """Those of guesses too."""
    scheduler = scheduler_of(8)
    request = Request(1, [5] * 6, 20)
    scheduler.submit(request)
    for token in range(3):
        decode(scheduler)
        scheduler.take([1], [10 + token], [6 * (token == 2)])
    scheduler.reclaim()
    scheduler.manager.check_integrity()
    assert scheduler.manager.num_used == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_a_fractal_block_holds_a_token_in_pieces(dtype):
    """32 bytes of every token side by side; what is written to a slot is read there, and nowhere else."""
    shape = ModelShape(nz=True)
    pieces, slots, width = shape.block_shape(16, 4, 16, dtype)
    assert (pieces * width, slots, width * dtype.itemsize) == (64, 16, 32)
    tensor = torch.zeros((3, pieces, slots, width), dtype=dtype)
    cell = cell_of(tensor, np.uint64(7), is_nz=True)
    assert cell.num_slots == 48
    keys = np.arange(2, dtype=np.uint64) + np.uint64(99)
    cell.write(np.array([21, -1]), keys)
    assert np.array_equal(cell.read(np.array([21])), cell.content(keys[:1]))
    assert torch.nonzero(tensor.view(torch.int8).abs().sum(dim=(1, 3))).tolist() == [[1, 5]]


def test_a_layout_that_would_be_padded_is_refused():
    """With the numbers."""
    with pytest.raises(ValueError, match="1 x 8, to be a multiple of 16"):
        ModelShape(nz=True).block_shape(16, 1, 8, torch.float16)
