"""What the hooks add: to decode, to prefill, when a request ends, at a fence; and how it grows with the blocks."""

import contextlib
import itertools
import statistics
import time

import numpy as np

from benchmarks import measure, parts
from mindie_kvpool_plugin.core.fence import Fence

BATCH = 200
PROMPT_TOKENS = 32_768
PROMPT_BLOCKS = PROMPT_TOKENS // parts.BLOCK_SIZE
LAYERS, SEGMENTS = 61, 2


def decode(is_async, num_blocks=4096):
    """Median seconds of the hook for a decode batch in which no block fills up."""
    with decoding(is_async, num_blocks) as (step, bare):
        taken = measure.interleaved({"step": step, "bare": bare}, rounds=41, inner=50)
    return taken["step"] - taken["bare"]


def decode_growth(few, many):
    """The same with few and with many blocks, turn about."""
    with decoding(False, few) as (small, bare), decoding(False, many) as (large, _):
        taken = measure.interleaved({"small": small, "large": large, "bare": bare}, rounds=41, inner=50)
    return taken["small"] - taken["bare"], taken["large"] - taken["bare"]


@contextlib.contextmanager
def decoding(is_async, num_blocks):
    """A decode step with the hook, and what the bench itself does for it."""
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

    def step():
        # the host builds its table anew for each batch
        metadata = parts.batch(1000 + np.arange(BATCH), tables)
        made.model_inputs_update(None, metadata, None, handles, None)

    def bare():
        parts.batch(1000 + np.arange(BATCH), tables)

    yield step, bare
    made.close()


def finished(pool, rounds=600):
    """Seconds the step thread spends when a request of 4,096 tokens ends, wall and CPU, one every few milliseconds."""
    taken, used = [], []
    with finishing(pool, 100_000) as finish:
        for _ in range(rounds):
            seconds, cpu_seconds = finish()
            taken.append(seconds)
            used.append(cpu_seconds)
            time.sleep(0.002)  # the step
    return taken, used


def finished_growth(few, many, rounds=600):
    """Median seconds of the same with few and with many blocks, turn about."""
    taken = {few: [], many: []}
    with finishing(parts.NoMovePool(), few) as small, finishing(parts.NoMovePool(), many) as large:
        for _ in range(rounds):
            for count, finish in ((few, small), (many, large)):
                taken[count].append(finish()[0])
                time.sleep(0.001)
    return statistics.median(taken[few]), statistics.median(taken[many])


@contextlib.contextmanager
def finishing(pool, num_blocks):
    """Start a request of 4,096 tokens, and end it: wall and CPU seconds of its end."""
    tokens, blocks = 4096, 32
    contexts = parts.Contexts(2, tokens + 1)
    made = parts.plugin(pool, contexts, parts.cache(1, 2, num_blocks), async_write=True)
    numbers = itertools.count()

    def finish():
        number = next(numbers)
        ids = (np.arange(blocks + 1) + number * 33) % num_blocks
        parts.prefill(made, number, 1, contexts, ids, tokens + 1)
        names = np.array([number])
        began, began_cpu = time.perf_counter(), time.thread_time()
        made.sequences_finished(names)
        return time.perf_counter() - began, time.thread_time() - began_cpu

    yield finish
    made.close()


def stillness(seconds, rounds=600):
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


def pool_hit():
    """Whole CPU of a 32k-token hit that a pool answers at once, and its share for keys, addresses and lists."""
    num_blocks = 2 * PROMPT_BLOCKS
    contexts = parts.Contexts(2, PROMPT_TOKENS + 64)
    made = parts.plugin(parts.NoMovePool(), contexts, parts.cache(LAYERS, SEGMENTS, num_blocks), async_write=True)
    ids = np.arange(PROMPT_BLOCKS + 1)
    number = iter(range(1 << 30))

    def hit():
        made._worker.walks.directory.forget()
        parts.prefill(made, next(number), 1, contexts, ids, PROMPT_TOKENS + 64, promised=PROMPT_BLOCKS)

    def miss():
        made._worker.walks.directory.forget()
        parts.prefill(made, next(number), 1, contexts, ids, PROMPT_TOKENS + 64)

    taken = measure.interleaved({"hit": hit, "miss": miss}, rounds=21)
    made.close()
    return taken["hit"], taken["miss"]


def rows():
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
    small, large = decode_growth(1_000, 1_000_000)
    found.append(measure.at_most("decode step: 1,000,000 blocks against 1,000", large, small, 1.5))
    few, many = finished_growth(1_000, 1_000_000)
    found.append(measure.at_most("finished request: 1,000,000 blocks against 1,000", many, few, 1.5))
    return found


if __name__ == "__main__":
    measure.main("bench_step", rows)
