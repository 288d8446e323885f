"""What a deployment's ranks share decides who agrees with whom, and what cannot be pooled."""

from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.errors import HostCompatError
from mindie_kvpool_plugin.host import worker


def group(rank, size):
    return SimpleNamespace(rank=rank, group_size=size)


def mapping(dp_rank, dp, tp_rank, tp):
    return SimpleNamespace(attn_dp=group(dp_rank, dp), attn_tp=group(tp_rank, tp))


def backend(dp, distributed):
    return SimpleNamespace(model_wrapper=SimpleNamespace(mapping=mapping(0, dp, 0, 2)), distributed_enable=distributed)


def test_all_ranks_agree_when_one_scheduler_sends_one_batch():
    """dp 2 x tp 2: four ranks, each with a place of its own."""
    places = [worker._who_runs_a_batch_together(mapping(dp, 2, tp, 2), False) for dp in (0, 1) for tp in (0, 1)]
    assert places == [(rank, 4, "all 4 ranks") for rank in range(4)]


def test_only_tensor_parallel_ranks_agree_with_a_scheduler_per_data_parallel_rank():
    """Two groups with names of their own."""
    places = [worker._who_runs_a_batch_together(mapping(dp, 2, 1, 2), True) for dp in (0, 1)]
    assert places == [(1, 2, "dp 0, 2 ranks"), (1, 2, "dp 1, 2 ranks")]


def test_a_prefill_node_with_a_scheduler_per_data_parallel_rank_is_refused():
    """Its other ranks would compute with lengths that a lowered hit made wrong."""
    with pytest.raises(HostCompatError, match=r"dp 2 .*distributed_enable.*set dp to 1"):
        worker._refuse_separate_schedulers(backend(2, True), "prefill")


@pytest.mark.parametrize(
    ("dp", "distributed", "role"), [(1, True, "prefill"), (2, False, "prefill"), (2, True, "standard")]
)
def test_other_data_parallel_deployments_start(dp, distributed, role):
    """Nothing crosses ranks there, or all ranks agree."""
    worker._refuse_separate_schedulers(backend(dp, distributed), role)
