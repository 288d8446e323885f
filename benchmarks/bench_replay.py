"""The whole simulated engine on the bundled trace: the plugin's share of a run, what it saves, and what it stores.

Prompt tokens that need no computing are counted, not timed: the stand-in model computes nothing a real
one would.  The hooks are timed inside the engine, beside the host's own prefix_cache hooks.
"""

import statistics

from benchmarks import measure
from benchmarks.measure import Row
from mindie_kvpool_plugin.pools.local_dram import pool_of
from mindie_kvpool_plugin.simulator.engine import Engine, EngineConfig
from mindie_kvpool_plugin.simulator.model_shape import ModelShape
from mindie_kvpool_plugin.simulator.run import RunConfig, opened_pool, run_with_pool
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE, read_trace
from mindie_kvpool_plugin.simulator.traffic import replay

REQUESTS = 300
LATENT_RANKS = 8
DATA_KEY_PARTS = 4  # namespace / fingerprint / digest / shard; an alias has three


def hook_seconds(result, plugin):
    return sum(seconds for name, seconds in result.hook_seconds.items() if name.startswith(plugin))


def rows():
    trace = read_trace(BUNDLED_TRACE, REQUESTS)
    unique = len({name for request in trace for name in request.hash_ids})
    found = []
    for async_write in (False, True):
        engine = EngineConfig(hbm_blocks=max(40, unique // 50), async_write=async_write)
        config = RunConfig(engine, lambda: replay(trace), concurrency=2, pool_blocks=2 * unique)
        results = [run_with_pool(config) for _ in range(measure.MIN_ROUNDS)]
        name = "asyncWrite" if async_write else "synchronous writes"
        ours = statistics.median(hook_seconds(result, "kv_pool") for result in results)
        whole = statistics.median(result.seconds for result in results)
        hits = results[0].pool_hit_tokens / results[0].prompt_tokens
        assert not any(result.corruptions or result.wrong_answers for result in results)
        found.append(measure.seen(f"hooks per request, {name}", ours / REQUESTS * 1e6, "us"))
        found.append(measure.seen(f"hooks' share of the run, {name}", 100 * ours / whole, "%"))
        found.append(measure.seen(f"prompt tokens from the pool, {name}", 100 * hits, "%"))
    return [*found, latent_bytes()]


def latent_bytes():
    """Pool bytes per cached token of an MLA model on 8 ranks, data and aliases counted apart."""
    shape = ModelShape(num_kv_heads=1, mla=(512, 64), dtype="bfloat16")
    engine = EngineConfig(shape=shape, tp=LATENT_RANKS, hbm_blocks=64)
    prompt_blocks = 20
    with opened_pool(RunConfig(engine, lambda: replay([]), pool_blocks=100)) as pooled:
        with Engine(pooled) as running:
            running.submit(list(range(10, 10 + prompt_blocks * engine.block_size)), 1)
            running.run()
        pool = pool_of(pooled.pool_file)
        data = [len(pool.value(key)) for key in list(pool.keys()) if key.count("/") == DATA_KEY_PARTS - 1]
    tokens = prompt_blocks * engine.block_size
    per_rank = shape.block_bytes(engine.block_size, LATENT_RANKS) * LATENT_RANKS / engine.block_size
    seen = sum(data) / tokens
    figure = f"pool bytes per cached token, MLA, tp {LATENT_RANKS}, against one copy per rank"
    return Row(figure, seen, "B", per_rank, seen / per_rank, "= 1/8", seen * LATENT_RANKS == per_rank)


if __name__ == "__main__":
    measure.main("bench_replay", rows)
