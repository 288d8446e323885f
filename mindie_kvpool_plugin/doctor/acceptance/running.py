"""What the running ranks of this machine tell of themselves, and of prompts whose tokens are known."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindie_kvpool_plugin.core import block_keys
from mindie_kvpool_plugin.core.block_keys import Service as Stored
from mindie_kvpool_plugin.doctor.acceptance.trial import Trial
from mindie_kvpool_plugin.doctor.master import open_client
from mindie_kvpool_plugin.observability.questions import ask_all

ASK_TIMEOUT_S = 5.0
RECOMPUTED = "mindie_kvpool_recomputed_blocks_total"
LOAD_S, COMPUTE_S = "mindie_kvpool_load_block_seconds", "mindie_kvpool_compute_block_seconds"
LOADED = "mindie_kvpool_loaded_tokens_total"
QUEUED = "mindie_kvpool_queue_blocks"
DRAIN_S = 10.0
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Running:
    """The ranks of this pool file on this machine, as they answered.

    Attributes:
        parts: one answer per rank.
    """

    parts: Sequence[dict[str, Any]]

    @property
    def ranks(self) -> set[int]:
        """Their numbers."""
        return {part["rank"] for part in self.parts}

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return int(self.parts[0]["block_size"])

    @property
    def device_blocks(self) -> int:
        """Of the largest rank's cache."""
        return max(int(part["device_blocks"]) for part in self.parts)

    def keys(self, prompts: Iterable[Sequence[int]]) -> list[str]:
        """Every key under which full blocks of prompts may be stored: data of all shards, and aliases."""
        services = {each for part in self.parts for each in _stored(part)}
        models = {(part["namespace"], part["model"]) for part in self.parts}
        keys: list[str] = []
        for prompt in prompts:
            tokens = np.asarray(prompt, dtype=np.int64)
            hexes = block_keys.hex_digests(block_keys.digest_chain(tokens, self.block_size))
            hashes = block_keys.host_hash_chain(tokens, self.block_size)
            for service in services:
                keys += block_keys.data_keys(service, hexes)
            for namespace, model in models:
                keys += block_keys.alias_keys(namespace, model, hashes)
        return keys

    def aliases(self, prompt: Sequence[int]) -> list[str]:
        """What the scheduler asks for."""
        part = self.parts[0]
        hashes = block_keys.host_hash_chain(np.asarray(prompt, dtype=np.int64), self.block_size)
        return block_keys.alias_keys(part["namespace"], part["model"], hashes)


def _stored(part: dict[str, Any]) -> list[Stored]:
    """A rank's shard, and those of the ranks on other machines, which are numbered alike."""
    _, _, count = part["shard"].partition("of")
    return [Stored(part["namespace"], part["fingerprint"], f"{at}of{count}") for at in range(int(count))]


def find_running(case: Trial) -> Running | None:
    """The ranks that use this pool file; None where none answers."""
    parts = [part for part in _parts(case, "blocks") if "device_blocks" in part]
    return Running(sorted(parts, key=lambda part: int(part["rank"]))) if parts else None


def _parts(case: Trial, asked: str) -> list[dict[str, Any]]:
    path = os.path.realpath(case.pool_path or "")
    replies = ask_all({"ask": asked}, case.left_s(ASK_TIMEOUT_S))
    answers = [reply.answer for reply in replies if isinstance(reply.answer, dict)]
    parts = [part for answer in answers for part in answer.get("parts", ()) if isinstance(part, dict)]
    return [part for part in parts if os.path.realpath(str(part.get("pool_file", ""))) == path]


@dataclass(frozen=True, slots=True)
class Counts:
    """Of one rank since start; all ranks that share a prompt count it.

    Attributes:
        loaded_tokens: of prompts, from the pool.
        cheaper_blocks: in the pool, but computed because that was faster (``kv_pool.load``).
        load_s, compute_s: what a block takes either way, as the rank has measured; 0: not known.  Of two places in
            the pool the slower one's.
    """

    loaded_tokens: int = 0
    cheaper_blocks: int = 0
    load_s: float = 0.0
    compute_s: float = 0.0


def counts(case: Trial) -> dict[int, Counts]:
    """By rank."""
    return {int(part["rank"]): _counts(part.get("metrics", {})) for part in _workers(case)}


def _counts(metrics: dict[str, Any]) -> Counts:
    cheaper = metrics.get(RECOMPUTED, {}).get("cheaper_to_compute", 0)
    load_s = max(metrics.get(LOAD_S, {}).values(), default=0.0)
    return Counts(int(metrics.get(LOADED, 0)), int(cheaper), load_s, metrics.get(COMPUTE_S, 0.0))


def wait_until_stored(case: Trial) -> None:
    """Until no rank has a block in its queue, within a bound."""
    until_s = time.monotonic() + case.left_s(DRAIN_S)
    while any(part.get("metrics", {}).get(QUEUED) for part in _workers(case)) and time.monotonic() < until_s:
        time.sleep(POLL_S)


def _workers(case: Trial) -> list[dict[str, Any]]:
    return [part for part in _parts(case, "stats") if part.get("role") == "worker"]


def held_blocks(case: Trial, chains: Sequence[Sequence[str]]) -> list[int] | None:
    """How many of the leading keys of each chain the pool holds; None where it cannot be asked."""
    if case.mooncake is None:
        return None
    keys = [key for chain in chains for key in chain]
    asked = open_client(case, {"role": "scheduler", "ask": keys}, ASK_TIMEOUT_S + case.mooncake.rpc_timeout_s)
    step = asked.step("asked")
    if step is None:
        return None
    found = iter(step["found"])
    return [[*(next(found) for _ in chain), False].index(False) for chain in chains]
