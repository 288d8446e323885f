"""What users gain in simulated time, and that a pool which is slow, broken or full costs them nothing.

The bundled trace on profiles of ``simulator.cost``: the same requests at the same times with and without the pool, so
the ratio of two times to first token is the pool's doing.  The best that can be had at a bandwidth is taken as the
better one of loading whatever the pool has, without any hook's time, and of having no pool.

Hooks take what they take here, and a hundredth of a second more or less puts requests into other batches: of what has
a bound on a ratio of throttled pools the median of ``RUNS`` runs counts.
"""

import dataclasses
import statistics

import numpy as np

from benchmarks import measure
from benchmarks.measure import Row
from mindie_kvpool_plugin.simulator.cost import LINK_BYTES_PER_S, PROFILES, OwnPart
from mindie_kvpool_plugin.simulator.timed import percentile, serve
from mindie_kvpool_plugin.simulator.timed_service import BLOCK_TOKENS, FINE_SCALE, SCALE, Asked, from_trace, timed_run
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE, read_trace
from mindie_kvpool_plugin.simulator.traffic import Prompt, Traffic

REQUESTS = 200
RUNS = 3
THROTTLED = (1, 10, 100, 1000)
NO_LOSS, OF_THE_BEST = 1.05, 0.95
SETTLED_S = 5.0
OWN_BLOCKS = 3000
"""Of some ten thousand that the trace leaves."""

DECODING, PROMPTS, LONG_TOKENS = 100, 20, 32_768
BUDGETS = (1, 0), (10, 0), (10, 200)
"""Parts of the bandwidth, and ``reload_budget_ms``; 0: its default."""
BUDGET_STEPS = 25
"""Default of ``reload_budget_ms``, in decode steps."""
STALL_BLOCKS = 1_200
"""Of the device.  The sequences that decode grow to 900, so most long prompts have left it when they come again."""


def mean(values):
    return sum(values) / len(values)


def p99(values):
    return percentile(values, 0.99)


def runs(config, service):
    """First-token times of some runs; times of hooks differ."""
    return [serve(config, service).seen.first_token_s for _ in range(RUNS)]


def middle(figure, found):
    """Of the runs."""
    return statistics.median(map(figure, found))


def settled(seen, since_s):
    """First-token times of the requests that arrived ``SETTLED_S`` after something happened."""
    return [took for took, at in zip(seen.first_token_s, seen.arrived_s, strict=True) if at >= since_s + SETTLED_S]


def no_loss(figure, value, baseline):
    """A row whose value may be at most 1.05 times its baseline."""
    ratio = value / baseline
    return Row(figure, value, "s", baseline, ratio, f"<= {NO_LOSS} x", ratio <= NO_LOSS)


def throttled(name):
    """Time to first token with the pool against without, from full bandwidth down to a thousandth."""
    profile = PROFILES[name]
    asked = from_trace(read_trace(BUNDLED_TRACE, REQUESTS), profile, scale=FINE_SCALE)
    without = runs(timed_run(profile, asked), "without")
    without_s = middle(mean, without)
    for part in THROTTLED:
        found = runs(timed_run(profile, asked, link_bytes_per_s=LINK_BYTES_PER_S / part), "plugin")
        at = f"{name}, {LINK_BYTES_PER_S / part / 1e9:g} GB/s"
        yield no_loss(f"{at}: mean time to first token, against no pool", middle(mean, found), without_s)
        yield no_loss("- p99", middle(p99, found), middle(p99, without))
        always = timed_run(profile, asked, link_bytes_per_s=LINK_BYTES_PER_S / part, section={"load": "always"})
        loaded = mean(serve(dataclasses.replace(always, counts_hooks=False), "plugin").seen.first_token_s)
        yield measure.seen("- mean if all is loaded, hooks free", loaded, "s")
        if part == 1:
            best = without_s - min(loaded, without_s)
            saved = without_s - middle(mean, found)
            share = saved / best
            yield Row("- saved, against the best", saved, "s", best, share, f">= {OF_THE_BEST} x", share >= OF_THE_BEST)


def of_two_places(name):
    """The first blocks lie in the worker's own part of the pool, all later ones elsewhere behind a slow network."""
    profile = PROFILES[name]
    asked = from_trace(read_trace(BUNDLED_TRACE, REQUESTS), profile, scale=FINE_SCALE)
    without = runs(timed_run(profile, asked), "without")
    without_s = middle(mean, without)
    for part in (100, 1000):
        slow = OwnPart(OWN_BLOCKS, LINK_BYTES_PER_S / part)
        found = runs(timed_run(profile, asked, own_part=slow), "plugin")
        at = f"{name}, {OWN_BLOCKS} own blocks, elsewhere {LINK_BYTES_PER_S / part / 1e9:g} GB/s"
        yield no_loss(f"{at}: mean time to first token, against no pool", middle(mean, found), without_s)
        yield no_loss("- p99", middle(p99, found), middle(p99, without))
        blind = timed_run(profile, asked, own_part=dataclasses.replace(slow, is_told=False))
        alike = runs(blind, "plugin")
        yield measure.seen("- mean, were places not told apart", middle(mean, alike), "s")
        yield measure.seen("- p99, were places not told apart", middle(p99, alike), "s")


def in_trouble(name):
    """The same while the pool is dead, half frozen or full, from the moment on at which half of the requests came."""
    profile = PROFILES[name]
    asked = from_trace(read_trace(BUNDLED_TRACE, REQUESTS), profile, scale=FINE_SCALE)
    without = serve(timed_run(profile, asked), "without").seen
    begins_s = sorted(without.arrived_s)[REQUESTS // 2]
    for trouble, told in (("killed", "master killed"), ("frozen", "peer frozen"), ("full", "pool full")):
        # a call that takes as long as a dead master's opens the breaker at once; by the machine's clock it is short
        config = timed_run(profile, asked, section={"breaker_failures": 1})
        config = dataclasses.replace(config, troubles={trouble: begins_s})
        found, baseline = settled(serve(config, "plugin").seen, begins_s), settled(without, begins_s)
        yield no_loss(f"{name}, {told}: mean time to first token, against no pool", mean(found), mean(baseline))
        yield no_loss("- p99", p99(found), p99(baseline))


class LongPromptsAgain(Traffic):
    """Long prompts; then many sequences that decode; then, one by one, the long prompts again."""

    def __init__(self):
        size = LONG_TOKENS // SCALE
        long = [[10 + (number * 7919 + at) % 1000 for at in range(size)] for number in range(PROMPTS)]
        wave = [Prompt(tokens, 1, number, at_s=60.0 * number) for number, tokens in enumerate(long)]
        begin_s = 60.0 * PROMPTS
        wave += [
            Prompt([10 + number] * BLOCK_TOKENS, 128, 100 + number, at_s=begin_s + 0.1 * number)
            for number in range(DECODING)
        ]
        wave += [
            Prompt([*tokens, 5], 1, 300 + number, at_s=begin_s + 30.0 + 4.0 * number)
            for number, tokens in enumerate(long)
        ]
        super().__init__(wave)


def stalls(name):
    """How long reloads of 32k-token prompts hold up 100 sequences that decode."""
    profile = PROFILES[name]
    asked = Asked(LongPromptsAgain, LONG_TOKENS // SCALE + 200)
    step_s = decode_step_s(profile)
    for part, budget_ms in BUDGETS:
        config = timed_run(
            profile,
            asked,
            hbm_blocks=STALL_BLOCKS,
            link_bytes_per_s=LINK_BYTES_PER_S / part,
            section={"reload_budget_ms": budget_ms} if budget_ms else {},
        )
        found = serve(config, "plugin")
        held_s, limit_s = p99(found.seen.held_s[-PROMPTS:]), budget_ms / 1000 or BUDGET_STEPS * step_s
        told = f"{budget_ms} ms" if budget_ms else f"{BUDGET_STEPS} decode steps"
        at = f"{name}, {LINK_BYTES_PER_S / part / 1e9:g} GB/s"
        figure = f"{at}: {DECODING} decodes held up by reloads of 32k tokens, p99, against {told}"
        yield Row(figure, held_s * 1000, "ms", limit_s * 1000, held_s / limit_s, "<= 1 x", held_s <= limit_s)
        tokens = SCALE * (found.result.pool_hit_tokens - found.result.recomputed_blocks * BLOCK_TOKENS) / PROMPTS
        yield measure.seen("- loaded of each prompt", tokens, "tokens")


def decode_step_s(profile):
    """Of the sequences half way."""
    return profile.decode_s(np.full(DECODING, 2_048, dtype=np.int64))


def rows():
    found = []
    for name in ("qwen-7b", "deepseek-r1"):
        found += throttled(name)
    found += of_two_places("qwen-7b")
    found += in_trouble("qwen-7b")
    found += stalls("llama-70b")
    return found


if __name__ == "__main__":
    measure.main("bench_gain", rows)
