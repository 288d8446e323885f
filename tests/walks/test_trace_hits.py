"""A replayed trace hits as much as an independent LRU calculation says."""

from collections import OrderedDict

import pytest

from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig, run_with_pool
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE, TRACE_BLOCK_TOKENS, read_trace
from mindie_kvpool_plugin.simulator.traffic import replay
from tests.walks.conftest import assert_right

BLOCK = 16
ONE_POINT = 0.01


def cached_tokens(trace, num_blocks):
    """Prompt tokens an LRU of ``num_blocks`` blocks answers, from the trace's own ids, one request after the other."""
    held = OrderedDict()
    found = 0
    for number, request in enumerate(trace):
        prompt = round(request.input_length * BLOCK / TRACE_BLOCK_TOKENS)
        answer = max(1, round(request.output_length * BLOCK / TRACE_BLOCK_TOKENS))
        full = prompt // BLOCK
        chain = request.hash_ids[:full]
        hit = next((index for index, name in enumerate(chain) if name not in held), len(chain))
        found += hit * BLOCK
        # the answer's blocks are pooled too, though this trace never asks for them
        for name in [*chain, *(-1 - 1000 * number - index for index in range((prompt + answer - 1) // BLOCK - full))]:
            held[name] = None
            held.move_to_end(name)
        while len(held) > num_blocks:
            held.popitem(last=False)
    return found


@pytest.mark.parametrize("async_write", [False, True], ids=["sync-write", "async-write"])
@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("pool", ["local_dram", "mooncake"])
def test_replay_hits_as_an_lru_of_the_pools_size(pool, async_scheduling, async_write):
    """HBM holds 2 % of the trace's blocks, the pool all of them: device and pool together hit within one point."""
    trace = read_trace(BUNDLED_TRACE, 400)
    unique = len({name for request in trace for name in request.hash_ids})
    engine = EngineConfig(hbm_blocks=max(40, unique // 50), async_scheduling=async_scheduling, async_write=async_write)
    config = RunConfig(engine, lambda: replay(trace), concurrency=2, pool=pool, pool_blocks=8 * unique)
    result = run_with_pool(config)
    assert_right(result)
    expected = cached_tokens(trace, unique)
    assert expected > 0.2 * result.prompt_tokens
    hit = result.hbm_hit_tokens + result.pool_hit_tokens
    assert abs(hit - expected) <= ONE_POINT * result.prompt_tokens
    assert result.pool_hit_tokens > 0.5 * expected


def test_replay_hits_as_an_lru_when_the_pool_is_too_small():
    """A pool of a third of the blocks forgets the least recently used ones."""
    trace = read_trace(BUNDLED_TRACE, 400)
    unique = len({name for request in trace for name in request.hash_ids})
    small = unique // 3
    config = RunConfig(EngineConfig(hbm_blocks=40), lambda: replay(trace), concurrency=1, pool_blocks=small)
    result = run_with_pool(config)
    assert_right(result)
    expected, everything = cached_tokens(trace, small), cached_tokens(trace, unique)
    assert expected < 0.9 * everything
    hit = result.hbm_hit_tokens + result.pool_hit_tokens
    assert abs(hit - expected) <= ONE_POINT * result.prompt_tokens
