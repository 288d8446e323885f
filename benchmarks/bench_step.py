"""What the hooks add: to decode, to prefill, when a request ends, at a fence; and how it grows with the blocks."""

from __future__ import annotations

import time

import numpy as np

from benchmarks import measure, parts
from benchmarks.measure import Row
from mindie_kvpool_plugin.core.fence import Fence

BATCH = 200
PROMPT_TOKENS = 32_768
PROMPT_BLOCKS = PROMPT_TOKENS // parts.BLOCK_SIZE
LAYERS, SEGMENTS = 61, 2


def decode(is_async: bool, num_blocks: int = 4096) -> float:
    """Median seconds of the hook for a decode batch in which no block fills up."""
    contexts = parts.Contexts(BATCH + 1, 1024)
    made = parts.plugin(
        parts.NoMovePool(), contexts, parts.cache(1, 2, num_blocks), async_write=True, is_async=is_async
    )
    handles = np.arange(1, BATCH + 1, dtype=np.int32)
    tables = np.full((BATCH, 64), -1, dtype=np.int32)
    ids = np.random.default_rng(1).permutation(num_blocks)[: BATCH * 4].reshape(BATCH, 4)
    tables[:, :4] = ids
    for row, handle in enumerate(handles.tolist()):
        parts.prefill(made, 1000 + row, handle, contexts, ids[row], 500)

    def step() -> None:
        # the host builds its table anew for each batch
        metadata = parts.batch(1000 + np.arange(BATCH), tables)
        made.model_inputs_update(None, metadata, None, handles, None)

    def bare() -> None:
        parts.batch(1000 + np.arange(BATCH), tables)

    taken = measure.interleaved({"step": step, "bare": bare}, rounds=41, inner=50)
    made.close()
    return taken["step"] - taken["bare"]


def finished(pool: parts.NoMovePool, num_blocks: int = 100_000, rounds: int = 600) -> tuple[list[float], list[float]]:
    """Seconds the step thread spends when a request of 4,096 tokens ends, wall and CPU, one every few milliseconds."""
    tokens, blocks = 4096, 32
    contexts = parts.Contexts(2, tokens + 1)
    made = parts.plugin(pool, contexts, parts.cache(1, 2, num_blocks), async_write=True)
    taken, used = [], []
    for number in range(rounds):
        ids = (np.arange(blocks + 1) + number * 33) % num_blocks
        parts.prefill(made, number, 1, contexts, ids, tokens + 1)
        names = np.array([number])
        began, began_cpu = time.perf_counter(), time.thread_time()
        made.sequences_finished(names)
        used.append(time.thread_time() - began_cpu)
        taken.append(time.perf_counter() - began)
        time.sleep(0.002)  # the step
    made.close()
    return taken, used


def stillness(seconds: float, rounds: int = 600) -> list[float]:
    """What the machine makes of a loop that would take ``seconds``: the part of a p99 that is not ours."""
    numbers = range(int(seconds * 8e7))
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in numbers:
            pass
        taken.append(time.perf_counter() - began)
        time.sleep(0.002)
    return taken


def pool_hit() -> tuple[float, float]:
    """Whole CPU of a 32k-token hit that a pool answers at once, and its share for keys, addresses and lists."""
    num_blocks = 2 * PROMPT_BLOCKS
    contexts = parts.Contexts(2, PROMPT_TOKENS + 64)
    made = parts.plugin(parts.NoMovePool(), contexts, parts.cache(LAYERS, SEGMENTS, num_blocks), async_write=True)
    ids = np.arange(PROMPT_BLOCKS + 1)
    number = iter(range(1 << 30))

    def hit() -> None:
        made._worker.walks.directory.forget()
        parts.prefill(made, next(number), 1, contexts, ids, PROMPT_TOKENS + 64, promised=PROMPT_BLOCKS)

    def miss() -> None:
        made._worker.walks.directory.forget()
        parts.prefill(made, next(number), 1, contexts, ids, PROMPT_TOKENS + 64)

    taken = measure.interleaved({"hit": hit, "miss": miss}, rounds=21)
    made.close()
    return taken["hit"], taken["miss"]


def rows() -> list[Row]:
    found = []
    for is_async in (False, True):
        name = "asynchronous" if is_async else "synchronous"
        found.append(
            measure.below(f"decode step, batch {BATCH}, nothing freed, {name} scheduling", decode(is_async), 60e-6)
        )
    pools = {
        "fast pool": parts.NoMovePool(),
        "slow pool (50 ms a call)": parts.NoMovePool(True, 0.05, time.sleep),
        "full or dead pool": parts.NoMovePool(False),
    }
    for name, pool in pools.items():
        taken, used = finished(pool)
        found.append(
            measure.below(f"finished request, 32 blocks, p99, {name}", measure.percentile(taken, 0.99), 200e-6)
        )
        found.append(measure.seen("- its CPU time on the step thread, p99", measure.percentile(used, 0.99) * 1e6, "us"))
        found.append(measure.seen("- its median", measure.percentile(taken, 0.5) * 1e6, "us"))
    still = stillness(60e-6)
    found.append(measure.seen("an empty loop of the same length, p99", measure.percentile(still, 0.99) * 1e6, "us"))
    found.append(measure.seen("- its median", measure.percentile(still, 0.5) * 1e6, "us"))
    hit, miss = pool_hit()
    found.append(measure.below("32k-token pool hit, 61 layers x 2, no I/O, whole prefill hook", hit, 1.5e-3))
    found.append(measure.seen("32k-token prefill without a hit", miss * 1e6, "us"))
    fence = Fence(4096)
    ids = np.arange(BATCH)
    open_s = measure.interleaved({"open": lambda: fence.wait(ids, 5.0)}, inner=1000)["open"]
    fence.close(np.arange(300, 400))
    other_s = measure.interleaved({"other": lambda: fence.wait(ids, 5.0)}, inner=1000)["other"]
    found.append(measure.below("fence, nothing queued", open_s, 5e-6))
    found.append(measure.below("fence, other blocks are being spilled", other_s, 5e-6))
    small, large = decode(False, 1_000), decode(False, 1_000_000)
    found.append(measure.at_most("decode step: 1,000,000 blocks against 1,000", large, small, 1.5))
    few = measure.percentile(finished(parts.NoMovePool(), 1_000)[0], 0.5)
    many = measure.percentile(finished(parts.NoMovePool(), 1_000_000)[0], 0.5)
    found.append(measure.at_most("finished request: 1,000,000 blocks against 1,000", many, few, 1.5))
    return found


if __name__ == "__main__":
    measure.main("bench_step", rows)
