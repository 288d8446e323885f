"""The whole simulated engine on the bundled trace: the plugin's share of a run, and what it saves.

Prompt tokens that need no computing are counted, not timed: the stand-in model computes nothing a real
one would.  The hooks are timed inside the engine, beside the host's own prefix_cache hooks.
"""

from __future__ import annotations

import statistics

from benchmarks import measure
from benchmarks.measure import Row
from mindie_kvpool_plugin.simulator.engine import EngineConfig
from mindie_kvpool_plugin.simulator.run import Result, RunConfig, run_with_pool
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE, read_trace
from mindie_kvpool_plugin.simulator.traffic import replay

REQUESTS = 300


def hook_seconds(result: Result, plugin: str) -> float:
    return sum(seconds for name, seconds in result.hook_seconds.items() if name.startswith(plugin))


def rows() -> list[Row]:
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
    return found


if __name__ == "__main__":
    measure.main("bench_replay", rows)
