"""A block's bytes are found by arithmetic, and copied whole through staging."""

import ctypes

import numpy as np
import pytest
import torch

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host.device_memory import CacheLayout, DirectMemory, StagedMemory


def cache(num_blocks=6, layers=2, third=False):
    """Per layer an int8 key tensor, a float16 value tensor and perhaps an index, filled with distinct bytes."""
    made = []
    for layer in range(layers):
        tensors = [
            torch.arange(num_blocks * 4 * 2 * 8, dtype=torch.int8).reshape(num_blocks, 4, 2, 8) + layer,
            torch.randn(num_blocks, 4, 2, 3).to(torch.float16),
        ]
        if third:
            tensors.append(torch.randn(num_blocks, 4, 1, 5).to(torch.bfloat16))
        made.append(tuple(tensors))
    return made


def read(buffers, row):
    parts = [
        ctypes.string_at(address, size)
        for address, size in zip(buffers.addresses[row].tolist(), buffers.sizes.tolist(), strict=True)
    ]
    return b"".join(parts)


def expected(npu_cache, block_id):
    return b"".join(
        tensor[block_id].contiguous().view(torch.uint8).numpy().tobytes() for layer in npu_cache for tensor in layer
    )


@pytest.mark.parametrize("third", [False, True])
@pytest.mark.parametrize("kind", ["direct", "staged"])
def test_read_gives_all_segments_of_each_block_in_layer_order(kind, third):
    """int8 keys, float16 values and a sparse-attention index differ in size; all of them belong to the block."""
    npu_cache = cache(third=third)
    layout = CacheLayout(npu_cache)
    memory = DirectMemory(layout, 0) if kind == "direct" else StagedMemory(layout, 0, 1 << 16)
    with memory.read(np.array([4, 1])) as buffers:
        assert read(buffers, 0) == expected(npu_cache, 4)
        assert read(buffers, 1) == expected(npu_cache, 1)
    assert memory.block_bytes == len(expected(npu_cache, 0))


@pytest.mark.parametrize("kind", ["direct", "staged"])
def test_write_changes_the_named_blocks_and_no_other(kind):
    """What was put into the buffers is in the blocks when the with statement ends."""
    npu_cache = cache()
    layout = CacheLayout(npu_cache)
    memory = DirectMemory(layout, 0) if kind == "direct" else StagedMemory(layout, 0, 1 << 16)
    before = [expected(npu_cache, block) for block in range(6)]
    payload = bytes(reversed(before[0]))
    with memory.write(np.array([3])) as buffers:
        at = 0
        for address, size in zip(buffers.addresses[0].tolist(), buffers.sizes.tolist(), strict=True):
            ctypes.memmove(address, payload[at : at + size], size)
            at += size
    after = [expected(npu_cache, block) for block in range(6)]
    assert after[3] == payload
    assert [a for i, a in enumerate(after) if i != 3] == [b for i, b in enumerate(before) if i != 3]


@pytest.mark.parametrize(("layers", "third"), [(2, False), (61, True), (130, False)])
def test_staging_registers_two_regions_however_many_layers_there_are(layers, third):
    """A process may register 256 with Ascend's transport; unstaged it is one for each tensor of each layer."""
    layout = CacheLayout(cache(layers=layers, third=third))
    assert len(StagedMemory(layout, 0, 1 << 16).regions) == 2
    assert len(DirectMemory(layout, 0).regions) == layers * (3 if third else 2)


def test_staging_holds_as_many_blocks_as_fit_half_of_it():
    """One half for each direction; at least one block however little memory there is."""
    layout = CacheLayout(cache())
    block = int(layout.sizes.sum())
    assert StagedMemory(layout, 0, 8 * block).max_blocks_per_call == 4
    assert StagedMemory(layout, 0, 1).max_blocks_per_call == 1


def test_regions_cover_every_address_that_is_handed_out():
    """Transports touch registered memory only."""
    layout = CacheLayout(cache())
    memory = DirectMemory(layout, 0)
    with memory.read(np.arange(6)) as buffers:
        for column, region in enumerate(memory.regions):
            addresses = buffers.addresses[:, column]
            assert addresses.min() >= region.address
            assert addresses.max() + buffers.sizes[column] <= region.address + region.size_bytes


def test_placeholders_of_missing_heads_are_left_out():
    """A head size of 0 leaves a one-element tensor in the host's tuple."""
    layout = CacheLayout([(torch.zeros(6, 4, 1, 8), torch.empty(1))])
    assert len(layout.segments) == 1


def test_caches_that_cannot_be_addressed_are_refused():
    """Blocks that are not contiguous, or tensors that disagree about the number of blocks."""
    strided = torch.zeros(6, 4, 2, 8).transpose(1, 2)
    with pytest.raises(HostCompatError, match=r"each contiguous; .*remove it"):
        CacheLayout([(strided, strided)])
    with pytest.raises(HostCompatError, match="expected 6 blocks"):
        CacheLayout([(torch.zeros(6, 4, 2, 8), torch.zeros(5, 4, 2, 8))])
    with pytest.raises(HostCompatError, match="empty"):
        CacheLayout([])


def test_a_cache_whose_first_dimension_is_not_the_block_is_refused():
    """Keys and values stacked in one tensor: what looks like two blocks is two halves of all of them."""
    stacked = torch.zeros(2, 6, 4, 2, 8)
    with pytest.raises(HostCompatError, match=r"shape \(2, 6, 4, 2, 8\).*expected 6 blocks along the first dimension"):
        CacheLayout([(stacked,)], num_blocks=6)


def test_regions_say_whether_they_are_device_memory():
    """Some transports copy host and device memory in different ways."""
    on_host = CacheLayout(cache()).regions()
    on_device = CacheLayout([(torch.empty(6, 4, 1, 8, device="meta"),)]).regions()
    assert {region.is_device for region in on_host} == {False}
    assert {region.is_device for region in on_device} == {True}
