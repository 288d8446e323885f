"""A service of a profile and its requests, as large as the profile says: what the demo and the benchmarks run.

One block of the simulated cache is 512 tokens of the profile, as in the recorded traces, and one simulated token 32;
or, in four times as long, 128 as MindIE-LLM's own blocks, and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mindie_kvpool_plugin.simulator.cost import LINK_BYTES_PER_S, Costs, OwnPart, Profile
from mindie_kvpool_plugin.simulator.engine_config import EngineConfig
from mindie_kvpool_plugin.simulator.requests import Limits
from mindie_kvpool_plugin.simulator.run import RunConfig
from mindie_kvpool_plugin.simulator.timed import TimedRun
from mindie_kvpool_plugin.simulator.trace import TRACE_BLOCK_TOKENS, TraceRequest
from mindie_kvpool_plugin.simulator.traffic import Chat, Traffic, replay

BLOCK_TOKENS = 16
SCALE = TRACE_BLOCK_TOKENS // BLOCK_TOKENS
FINE_SCALE = 128 // BLOCK_TOKENS
ROOM_TOKENS = 64
"""Simulated ones that a sequence may have beyond its answer."""
PREFILL_TOKENS = 16_384

TURNS = 5
SYSTEM_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 2_048, 2_048, 512
THINK_S = 300.0
"""Chats of the demo: five turns that begin with everything said before; people come back after five minutes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The requests of a run.

    Attributes:
        make: makes the traffic, the same at every call.
        longest: simulated tokens of the longest sequence.
        slower: what the times of a trace are multiplied by; 1: chats, which begin as often as the load says.
        scale: tokens that a simulated one stands for.
    """

    make: Callable[[], Traffic]
    longest: int
    slower: float = 1.0
    scale: int = SCALE


def from_trace(
    recorded: Sequence[TraceRequest], profile: Profile, load: float = 0.0, seed: int = 0, scale: int = SCALE
) -> Asked:
    """A recorded trace, so much slower that computing all its prompts would keep the devices busy for ``load`` of it.

    Args:
        recorded: the requests.
        profile: who would compute them.
        load: share of the time, without any cache; 0: the profile's.
        seed: of the tokens.
        scale: tokens that a simulated one stands for.
    """
    lengths = np.array([request.input_length for request in recorded], dtype=np.int64)
    span_s = max(1.0, (recorded[-1].timestamp - recorded[0].timestamp) / 1000)
    slower = sum(_alone_s(profile, lengths)) / (load or profile.load) / span_s
    longest = max(
        -(-len(request.hash_ids) * TRACE_BLOCK_TOKENS // scale) + -(-request.output_length // scale) + ROOM_TOKENS
        for request in recorded
    )
    size = TRACE_BLOCK_TOKENS // scale
    return Asked(lambda: replay(recorded, block_size=size, seed=seed, slower=slower), longest, slower, scale)


def from_chats(requests: int, profile: Profile, load: float = 0.0, seed: int = 0) -> Asked:
    """So many requests of chats, begun as often as fits the load; 0: the profile's."""
    speakers = -(-requests // TURNS)
    turns = np.arange(TURNS, dtype=np.int64)
    lengths = SYSTEM_TOKENS + TURN_TOKENS + turns * (TURN_TOKENS + ANSWER_TOKENS)
    begin_s = speakers * sum(_alone_s(profile, lengths)) / (load or profile.load)

    def make() -> Traffic:
        return Chat(
            speakers,
            TURNS,
            system_tokens=SYSTEM_TOKENS // SCALE,
            turn_tokens=TURN_TOKENS // SCALE,
            answer_tokens=ANSWER_TOKENS // SCALE,
            seed=seed,
            begin_s=begin_s,
            think_s=THINK_S,
        )

    return Asked(make, (int(lengths[-1]) + ANSWER_TOKENS) // SCALE + TURNS * 5 + ROOM_TOKENS)


def _alone_s(profile: Profile, lengths: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[float]:
    """Seconds to compute each prompt, one after the other."""
    none = np.zeros(1, dtype=np.int64)
    return [profile.prefill_s(none, lengths[row : row + 1]) for row in range(len(lengths))]


def timed_run(
    profile: Profile,
    asked: Asked,
    *,
    link_bytes_per_s: float = LINK_BYTES_PER_S,
    hbm_blocks: int = 0,
    pool_blocks: int = 0,
    own_part: OwnPart | None = None,
    section: dict[str, object] | None = None,
) -> TimedRun:
    """The service of a profile, with ``asyncWrite``.

    Args:
        profile: model and NPUs; memory, where nothing else is said.
        asked: its requests.
        link_bytes_per_s: that each rank loads from the pool.
        hbm_blocks: blocks on the device; 0: the profile's.
        pool_blocks: blocks that the pool holds when each is stored once; 0: the profile's.
        own_part: each rank's part of the pool, at ``link_bytes_per_s``; None: no such parts.
        section: options of the pool file; without ``load`` pool hits are loaded where that pays, as by default.
    """
    block_tokens = BLOCK_TOKENS * asked.scale
    limits = Limits(max_prefill_batch=4, max_prefill_tokens=PREFILL_TOKENS // asked.scale, max_batch=128)
    engine = EngineConfig(
        block_size=BLOCK_TOKENS,
        hbm_blocks=hbm_blocks or profile.hbm_tokens // block_tokens,
        max_seq_len=asked.longest,
        async_write=True,
        limits=limits,
    )
    blocks = pool_blocks or profile.pool_tokens() // block_tokens
    run = RunConfig(engine, asked.make, pool_blocks=blocks, section={"load": "auto", **(section or {})})
    return TimedRun(run, Costs(profile, asked.scale, link_bytes_per_s, own_part=own_part))
