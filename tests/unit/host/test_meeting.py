"""What a deployment's ranks share decides who agrees with whom, and what cannot be pooled."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from mindie_kvpool_plugin.errors import ConfigError
from mindie_kvpool_plugin.host import meeting
from mindie_kvpool_plugin.options.pool_file import PoolFile, no_meeting_place
from mindie_kvpool_plugin.options.records import KvPoolOptions


def group(rank, size):
    return SimpleNamespace(rank=rank, group_size=size)


def mapping(dp_rank, dp, tp_rank, tp, cp_rank=0, cp=1):
    return SimpleNamespace(attn_dp=group(dp_rank, dp), attn_tp=group(tp_rank, tp), attn_cp=group(cp_rank, cp))


def test_all_ranks_agree_when_one_scheduler_sends_one_batch():
    """dp 2 x tp 2: four ranks, each with a place of its own."""
    places = [meeting.who_agrees(mapping(dp, 2, tp, 2), {"dp", "tp"}) for dp in (0, 1) for tp in (0, 1)]
    assert places == [(rank, 4, "all 4 ranks") for rank in range(4)]


def test_only_tensor_parallel_ranks_agree_with_a_scheduler_per_data_parallel_rank():
    """Two groups with names of their own."""
    places = [meeting.who_agrees(mapping(dp, 2, 1, 2), {"dp", "dp_servers"}) for dp in (0, 1)]
    assert places == [(1, 2, "dp 0, 2 ranks"), (1, 2, "dp 1, 2 ranks")]


def test_all_ranks_agree_on_a_prefill_node_with_a_scheduler_per_data_parallel_rank():
    """They run other batches, and are told what each of them computes."""
    active = {"dp", "dp_servers", "pd_prefill"}
    places = [meeting.who_agrees(mapping(dp, 2, tp, 2), active) for dp in (0, 1) for tp in (0, 1)]
    assert places == [(rank, 4, "all 4 ranks") for rank in range(4)]


def test_nobody_agrees_on_a_decode_node():
    """There are no pool hits, and its pool file may name the place where the prefill node's ranks meet."""
    assert meeting.who_agrees(mapping(1, 2, 1, 2), {"dp", "dp_servers", "pd_decode"})[1] == 1


def test_ranks_of_several_servers_need_an_address(monkeypatch):
    """Refused at start, before a minute is waited for ranks that never come."""
    monkeypatch.setattr(meeting, "is_daemons_child", lambda: True)
    pool_file = PoolFile(Path("/etc/pool.json"), {}, KvPoolOptions())
    active = {"dp_servers", "pd_prefill"}
    deployment = SimpleNamespace(
        mapping=mapping(0, 2, 0, 1), active=active, pool_file=pool_file, options=KvPoolOptions()
    )
    with pytest.raises(ConfigError) as raised:
        meeting.meet(deployment, None)
    assert str(raised.value) == f"/etc/pool.json: {no_meeting_place('auto').told}"


def test_context_parallel_ranks_agree_too():
    """cp 2 x tp 2: each has a share of every sequence's blocks."""
    places = [meeting.who_agrees(mapping(0, 1, tp, 2, cp, 2), {"cp", "tp"}) for cp in (0, 1) for tp in (0, 1)]
    assert places == [(rank, 4, "all 4 ranks") for rank in range(4)]
