"""Host arrays become records, and a shortened hit goes back into them consistently."""

from types import SimpleNamespace

import numpy as np

from mindie_kvpool_plugin.blocks import Prompt
from mindie_kvpool_plugin.host import step_view
from mindie_kvpool_plugin.host.block_share import BlockShare


def batch(lengths, computed=None, remote=None, **more):
    count = len(lengths)
    values = {
        "batch_seq_len": np.array(lengths, dtype=np.int64),
        "input_ids": np.arange(sum(lengths), dtype=np.int64),
        "all_sequence_ids": np.arange(100, 100 + count, dtype=np.int64),
        "batch_sequence_ids": [np.array([100 + row]) for row in range(count)],
        "batch_use_beam_search": None,
        "computed_blocks": None if computed is None else np.array(computed, dtype=np.int64),
        "remote_computed_blocks": None if remote is None else np.array(remote, dtype=np.int64),
        "adapter_ids": [None] * count,
        "batch_dp_rank_ids": np.zeros(count, dtype=np.int64),
        "batch_is_prefill": None,
        "is_prefill": True,
        "seq_lens": None,
        "is_dummy_batch": False,
    }
    return SimpleNamespace(**{**values, **more})


def test_prefills_slice_each_prompt_out_of_the_flat_tokens():
    """Three prompts of 3, 2 and 4 tokens lie one after the other."""
    prompts = step_view.new_prompts(batch([3, 2, 4]), np.array([9, 8, 7], np.int32), 0)
    assert [p.tokens.tolist() for p in prompts] == [[0, 1, 2], [3, 4], [5, 6, 7, 8]]
    assert [p.handle for p in prompts] == [9, 8, 7]


def test_rows_have_the_name_of_their_request_and_say_whether_they_are_whole():
    """A request with two sequences has two rows; only chunks may be followed by more."""
    ids = np.array(["endpoint_common_1", "endpoint_common_2"])
    metadata = batch([3, 1, 2], batch_request_ids=ids, batch_last_prompt=None)
    metadata.batch_sequence_ids = [np.array([100, 101]), np.array([102])]
    assert step_view.request_names(metadata).tolist() == [ids[0], ids[0], ids[1]]
    assert step_view.are_whole(metadata).tolist() == [True] * 3
    metadata.batch_last_prompt = np.array([True, True, False])
    assert step_view.are_whole(metadata).tolist() == [True, True, False]
    metadata.batch_request_ids = np.array([7, 8])
    assert step_view.request_names(metadata).tolist() == ["7", "7", "8"]


def test_prefills_take_missing_hit_arrays_as_zeros_each_on_its_own():
    """The host leaves an array out when it would be all zeros."""
    (prompt,) = step_view.new_prompts(batch([8], remote=[2]), np.array([9]), 0)
    assert (prompt.computed, prompt.promised) == (0, 2)
    (prompt,) = step_view.new_prompts(batch([8], computed=[1], remote=[1]), np.array([9]), 0)
    assert (prompt.computed, prompt.promised) == (1, 1)


def test_prefills_leave_out_other_data_parallel_ranks_and_the_health_check():
    """Their blocks are not in this worker's cache, or not written at all."""
    metadata = batch([3, 2, 4], batch_dp_rank_ids=np.array([0, 1, 0]))
    metadata.all_sequence_ids[2] = step_view.SIMULATE_SEQUENCE_ID
    assert [p.row for p in step_view.new_prompts(metadata, np.array([9, 8, 0]), 0)] == [0]


def test_prefills_know_the_prompts_that_become_beams():
    """Their answers may change hands between two batches."""
    prompts = step_view.new_prompts(batch([3, 2], batch_use_beam_search=np.array([False, True])), np.array([9, 8]), 0)
    assert [p.is_beam for p in prompts] == [False, True]


def test_decode_rows_of_a_request_with_several_sequences_belong_to_its_rank():
    """With n = 2 the host names a data-parallel rank per request, and has a row per sequence."""
    metadata = batch([1, 1], batch_dp_rank_ids=np.array([0, 1]))
    metadata.batch_sequence_ids = [np.array([100, 102]), np.array([101, 103, 104])]
    metadata.all_sequence_ids = np.concatenate(metadata.batch_sequence_ids)
    metadata.is_prefill = False
    assert step_view.going_rows(metadata, 0).tolist() == [0, 1]
    assert step_view.going_rows(metadata, 1).tolist() == [2, 3, 4]


def test_a_hit_over_the_whole_prompt_writes_its_last_block_again():
    """The host computes the last block again to have logits."""
    prompt = Prompt(0, 100, 8, np.arange(2), np.array([7, 9]), 0)
    assert prompt.written(2, 4).tolist() == [9]
    assert prompt.written(1, 4).tolist() == [9]
    assert prompt.written(0, 4).tolist() == [7, 9]


def test_a_rank_writes_those_of_the_blocks_that_it_was_dealt():
    """Context parallel 2, this rank has blocks 1 and 3 of four; three are reused."""
    prompt = Prompt(0, 100, 18, np.array([1, 3]), np.array([7, 9]), 0)
    assert prompt.written(3, 4).tolist() == [9]
    assert prompt.written(2, 4).tolist() == [9]
    assert prompt.written(1, 4).tolist() == [7, 9]


def mixed():
    """SplitFuse: a decode, a later chunk of a prompt, and the first chunk of another one."""
    return batch(
        [1, 4, 8],
        computed=[0, 1, 1],
        remote=[3, 3, 2],
        batch_is_prefill=np.array([False, True, True]),
        split_start_position=np.array([30, 8, 0]),
    )


def test_only_a_first_chunk_begins_a_prompt():
    """What the host looks up for other rows counts for nothing there."""
    (prompt,) = step_view.new_prompts(mixed(), np.array([5, 6, 7]), 0)
    assert (prompt.row, prompt.tokens.tolist()) == (2, [5, 6, 7, 8, 9, 10, 11, 12])
    assert step_view.going_rows(mixed(), 0).tolist() == [0, 1]
    assert step_view.promises(mixed())[0].tolist() == [2]


def test_with_chunks_both_arrays_say_what_is_reused():
    """The host takes a row's tokens from one of them here and from the other there."""
    metadata = mixed()
    lower(metadata, [0, 1, 2])
    assert metadata.computed_blocks.tolist() == metadata.remote_computed_blocks.tolist() == [0, 1, 2]


def mixed_with_a_group():
    """A request decodes with three sequences, then come two new prompts; the host counts hits per request."""
    return batch(
        [1, 1, 1, 8, 8],
        computed=[0, 0, 1],
        remote=[0, 2, 1],
        batch_sequence_ids=[np.array([100, 101, 102]), np.array([103]), np.array([104])],
        batch_use_beam_search=np.array([False, False, True]),
        adapter_ids=[None, None, "an adapter"],
        batch_dp_rank_ids=np.zeros(3, dtype=np.int64),
        batch_is_prefill=np.array([False, False, False, True, True]),
        split_start_position=np.array([30, 30, 30, 0, 0]),
    )


def test_hits_of_prompts_beside_a_request_with_several_sequences_are_their_own():
    """Rows and requests are not the same there."""
    metadata = mixed_with_a_group()
    prompts = step_view.new_prompts(metadata, np.arange(5, dtype=np.int32), 0)
    assert [(p.row, p.computed, p.promised, p.adapter, p.is_beam) for p in prompts] == [
        (3, 0, 2, None, False),
        (4, 1, 1, "an adapter", True),
    ]
    rows, computed, promised = step_view.promises(metadata)
    assert (rows.tolist(), computed.tolist(), promised.tolist()) == ([3], [0, 0, 0, 0, 1], [0, 0, 0, 2, 1])


def test_lower_hits_counts_per_request_as_the_host_does():
    """One count for the three sequences."""
    metadata = mixed_with_a_group()
    lower(metadata, [0, 0, 0, 1, 1])
    assert metadata.remote_computed_blocks.tolist() == metadata.computed_blocks.tolist() == [0, 1, 1]


def test_blocks_on_several_ranks_are_counted_together_and_lowered_apart():
    """Context parallel 2: five blocks promised as 3 and 2, four arrived."""
    metadata = batch([40], computed=[[1, 1]], remote=[[3, 2]])
    rows, computed, promised = step_view.promises(metadata)
    assert (rows.tolist(), computed.tolist(), promised.tolist()) == ([0], [2], [5])
    lower(metadata, [3], BlockShare(0, 2))
    assert metadata.remote_computed_blocks.tolist() == [[2, 1]]
    assert metadata.computed_blocks.tolist() == [[1, 1]]


def lower(metadata, lengths, share=BlockShare(), dp_rank=0):  # noqa: B008 - immutable
    inputs = SimpleNamespace(seq_lens=metadata.seq_lens)
    step_view.lower_hits(metadata, inputs, np.array(lengths), 4, dp_rank, share)
    return inputs


def test_lower_hits_changes_only_what_fell_short():
    """The array is replaced, not changed: others may hold the old one."""
    metadata = batch([16, 16], computed=[1, 0], remote=[3, 2])
    before = metadata.remote_computed_blocks
    lower(metadata, [2, 2])
    assert metadata.remote_computed_blocks.tolist() == [2, 2]
    assert before.tolist() == [3, 2]
    assert metadata.computed_blocks.tolist() == [1, 0]


def test_lower_hits_drops_both_arrays_when_no_hit_is_left():
    """prefix_cache fails on one without the other."""
    metadata = batch([16], remote=[3])
    lower(metadata, [0])
    assert metadata.remote_computed_blocks is None
    assert metadata.computed_blocks is None


def test_lower_hits_keeps_other_ranks_rows():
    """Rows of other data-parallel ranks are theirs to judge."""
    metadata = batch([16, 16], remote=[3, 2], batch_dp_rank_ids=np.array([0, 1]))
    lower(metadata, [0, 2])
    assert metadata.remote_computed_blocks.tolist() == [0, 2]


def test_lower_hits_gives_the_tokens_back_to_seq_lens():
    """Lengths over all data-parallel ranks count what is left to compute."""
    metadata = batch([16, 16], remote=[3, 2], seq_lens=[[4, 8], [5]])
    inputs = lower(metadata, [1, 2])
    assert metadata.seq_lens == [[12, 8], [5]]
    assert inputs.seq_lens == [[12, 8], [5]]


def test_lower_hits_leaves_a_batch_without_hits_alone():
    """Nothing promised, nothing to take back."""
    metadata = batch([16], computed=None, remote=None)
    lower(metadata, [0])
    assert metadata.remote_computed_blocks is None


def test_promises_are_the_whole_batch_on_every_rank():
    """Rows of other data-parallel ranks count, and prompts with adapters; the health check does not."""
    metadata = batch([16, 16, 16, 16], computed=[1, 0, 0, 0], remote=[3, 2, 2, 2], adapter_ids=[None, None, "a", None])
    metadata.batch_dp_rank_ids = np.array([0, 1, 1, 1])
    metadata.all_sequence_ids[3] = step_view.SIMULATE_SEQUENCE_ID
    rows, computed, promised = step_view.promises(metadata)
    assert rows.tolist() == [0, 1, 2]
    assert computed.tolist() == [1, 0, 0, 0]
    assert promised.tolist() == [3, 2, 2, 2]


def test_lower_hits_gives_back_to_every_data_parallel_rank():
    """One scheduler for all: each rank sees all lengths and needs them right."""
    metadata = batch([16, 16], remote=[3, 2], batch_dp_rank_ids=np.array([0, 1]), seq_lens=[[4], [8]])
    lower(metadata, [1, 0])
    assert metadata.seq_lens == [[12], [16]]


def test_lower_hits_finds_lengths_when_a_data_parallel_rank_has_no_prompt():
    """The host lists only ranks with prompts: the second list belongs to rank 3."""
    metadata = batch([16, 16], remote=[3, 2], batch_dp_rank_ids=np.array([1, 3]), seq_lens=[[4], [8]])
    lower(metadata, [3, 1])
    assert metadata.seq_lens == [[4], [12]]


def test_lower_hits_finds_the_only_list_with_a_scheduler_per_data_parallel_rank():
    """Rank 5's batch carries its own lengths alone, at place 0."""
    metadata = batch([16], remote=[4], batch_dp_rank_ids=np.array([5]), seq_lens=[[0]])
    lower(metadata, [3], dp_rank=5)
    assert metadata.seq_lens == [[4]], "a hit over the whole prompt counts as 0 in the host, too"


def test_all_hits_given_up_keeps_what_is_on_the_device():
    """seq_lens follows, and a batch without any hit left has neither array."""
    metadata = batch([16, 16], computed=[1, 0], remote=[3, 2], seq_lens=[[4, 8]])
    lower(metadata, [1, 0])
    assert metadata.remote_computed_blocks.tolist() == [1, 0]
    assert metadata.seq_lens == [[12, 16]]
