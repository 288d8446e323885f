"""What a deployment's ranks share decides who agrees with whom, and what cannot be pooled."""

from types import SimpleNamespace

from mindie_kvpool_plugin.host import worker


def group(rank, size):
    return SimpleNamespace(rank=rank, group_size=size)


def mapping(dp_rank, dp, tp_rank, tp, cp_rank=0, cp=1):
    return SimpleNamespace(attn_dp=group(dp_rank, dp), attn_tp=group(tp_rank, tp), attn_cp=group(cp_rank, cp))


def test_all_ranks_agree_when_one_scheduler_sends_one_batch():
    """dp 2 x tp 2: four ranks, each with a place of its own."""
    places = [worker._who_runs_a_batch_together(mapping(dp, 2, tp, 2), False) for dp in (0, 1) for tp in (0, 1)]
    assert places == [(rank, 4, "all 4 ranks") for rank in range(4)]


def test_only_tensor_parallel_ranks_agree_with_a_scheduler_per_data_parallel_rank():
    """Two groups with names of their own."""
    places = [worker._who_runs_a_batch_together(mapping(dp, 2, 1, 2), True) for dp in (0, 1)]
    assert places == [(1, 2, "dp 0, 2 ranks"), (1, 2, "dp 1, 2 ranks")]


def test_context_parallel_ranks_agree_too():
    """cp 2 x tp 2: each has a share of every sequence's blocks."""
    places = [worker._who_runs_a_batch_together(mapping(0, 1, tp, 2, cp, 2), False) for cp in (0, 1) for tp in (0, 1)]
    assert places == [(rank, 4, "all 4 ranks") for rank in range(4)]
