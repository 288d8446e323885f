"""Three services in simulated time: each counts what its semantics say."""

import dataclasses

import numpy as np
import pytest

from mindie_kvpool_plugin.simulator.cost import PROFILES, Costs
from mindie_kvpool_plugin.simulator.engine_config import EngineConfig
from mindie_kvpool_plugin.simulator.run import RunConfig
from mindie_kvpool_plugin.simulator.timed import SERVICES, TimedRun, as_json, compare, percentile, serve
from mindie_kvpool_plugin.simulator.timed_service import SCALE, from_chats, from_trace, timed_run
from mindie_kvpool_plugin.simulator.trace import BUNDLED_TRACE, read_trace
from mindie_kvpool_plugin.simulator.traffic import Prompt, Traffic

BLOCK = 16
PROFILE = PROFILES["qwen-7b"]


class Turns(Traffic):
    """One speaker whose second prompt repeats first prompt and answer, after others have taken the device."""

    def __init__(self):
        self.first = Prompt(list(range(10, 10 + 4 * BLOCK)), 2 * BLOCK + 1, speaker=0)
        super().__init__([self.first])

    def answered(self, prompt, answer):
        if prompt is self.first:
            others = [list(range(200 * n, 200 * n + 6 * BLOCK)) for n in (1, 2, 3, 4)]
            for number, tokens in enumerate(others, start=1):
                self.ready.append(Prompt(tokens, 1, number, at_s=10.0 * number, is_after_answer=True))
            whole = [*prompt.tokens, *answer, 5, 6, 7]
            self.ready.append(Prompt(whole, 1, 9, at_s=100.0, is_after_answer=True))


def _config(profile=PROFILE, **more):
    engine = EngineConfig(block_size=BLOCK, hbm_blocks=10, async_write=True)
    return TimedRun(RunConfig(engine, Turns, pool_blocks=200), Costs(profile, SCALE), counts_hooks=False, **more)


def test_each_service_finds_what_it_stored():
    """Nothing without a pool; the prompt's full blocks with the host's own; prompt and answer with this plugin."""
    found = compare(_config())
    hits = {service: timed.result.pool_hit_tokens // BLOCK for service, timed in found.items()}
    # the host leaves out a block whose last token is the prompt's last, and blocks that fill up in decodes
    assert hits == {"without": 0, "host": 3, "plugin": 6}
    assert all(timed.result.is_correct and timed.result.requests == 6 for timed in found.values())
    last = {service: timed.seen.first_token_s[-1] for service, timed in found.items()}
    assert last["plugin"] < last["host"] < last["without"]


def test_time_to_first_token_without_a_pool_is_computing():
    """From the arrival on; one request at a time waits for nobody."""
    seen = serve(_config(), "without").seen
    computed = Costs(PROFILE, SCALE)
    assert seen.first_token_s[0] == pytest.approx(PROFILE.prefill_s(_one(0), _one(4 * BLOCK * SCALE)))
    assert seen.arrived_s[1] == pytest.approx(
        seen.first_token_s[0]
        + sum(SCALE * computed.decode_s(_one(4 * BLOCK + 1 + step)) for step in range(2 * BLOCK))
        + 10.0
    )
    assert seen.stalls_s == []
    assert seen.answer_tokens == SCALE * (2 * BLOCK + 1 + 5)


def _one(value):
    return np.array([value], dtype=np.int64)


def test_run_repeats_exactly_when_hooks_do_not_count():
    """Modelled time has no noise of the machine's."""
    first, second = (serve(_config(), "plugin").seen for _ in range(2))
    assert first == second


def test_host_stores_every_ranks_copy():
    """With 16 ranks that hold the same bytes its pool keeps a sixteenth of the blocks, and each rank writes all."""
    profile = PROFILES["deepseek-r1"]
    found = {pool: serve(_with_pool(profile, pool), "host").result.pool_hit_tokens for pool in (800, 100)}
    assert (found[800] > 0, found[100]) == (True, 0)
    assert serve(_with_pool(profile, 100), "plugin").result.pool_hit_tokens > 0


def _with_pool(profile, blocks):
    config = _config(profile)
    return dataclasses.replace(config, run=dataclasses.replace(config.run, pool_blocks=blocks))


def test_slow_pool_makes_later_first_tokens():
    """Loading holds the step for as long as the bytes take."""
    fast = serve(_config(), "plugin").seen
    slow = dataclasses.replace(_config(), costs=Costs(PROFILE, SCALE, link_bytes_per_s=2e9))
    assert serve(slow, "plugin").seen.first_token_s[-1] > 1.2 * fast.first_token_s[-1]


@pytest.mark.parametrize("what", ["chats", "trace"])
def test_service_of_a_profile_answers_all_requests(what):
    """As many as were asked for, in the profile's sizes; its JSON has counts and figures of each service."""
    trace = read_trace(BUNDLED_TRACE, 10)
    asked = from_chats(10, PROFILE) if what == "chats" else from_trace(trace, PROFILE)
    config = dataclasses.replace(timed_run(PROFILE, asked), counts_hooks=False)
    found = compare(config)
    assert set(found) == set(SERVICES)
    assert all(timed.result.requests == 10 and timed.result.is_correct for timed in found.values())
    for word in ("first_token_p99_s", "held_p50_s", "tokens_per_s", "computed_tokens"):
        assert as_json(found).count(f'"{word}"') == len(SERVICES)


def test_load_is_the_share_of_time_that_computing_takes():
    """Twice the load, half the time between requests."""
    trace = read_trace(BUNDLED_TRACE, 50)
    slow, fast = (from_trace(trace, PROFILE, load).slower for load in (0.4, 0.8))
    assert slow == pytest.approx(2 * fast)


def test_percentile_is_of_what_there_is():
    """The value below which that share lies; nothing has none."""
    assert [percentile(list(range(100)), share) for share in (0.5, 0.9, 0.99)] == [50, 90, 99]
    assert percentile([], 0.5) == 0.0
