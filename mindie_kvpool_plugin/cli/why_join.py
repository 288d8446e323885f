"""What the ranks of a deployment say of one prompt, put together, with what the scheduler was told of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin.observability import causes

LOOKUP_AGE_S = 600.0
"""A lookup this much older than its prompt's batch was another prompt's."""

_LAST_RESORT = (causes.NEVER_STORED, causes.NOT_PROMISED)
"""What a rank says that knows nothing more; one that does is believed first."""

_BY_OUTCOME = {"late": causes.LOOKUP_LATE, "left_alone": causes.LOOKUP_LEFT_ALONE}

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank says of a prompt.

    Attributes:
        identity: the rank, as it names itself.
        said: its verdict (``core.why.judge.Verdict``).
    """

    identity: Json
    said: Json


@dataclass(frozen=True, slots=True)
class Story:
    """One prompt.

    Attributes:
        parts: of each of its ranks, the first rank first.
        told: the part that knows best.
        cause: why its prefix ended.
        lookup: what the scheduler was told, if that is remembered.
        block_size: tokens per block.
    """

    parts: Sequence[Part]
    told: Part
    cause: str
    lookup: Json | None
    block_size: int

    @property
    def said(self) -> Json:
        """The verdict of the rank that knows best."""
        return self.told.said

    @property
    def loaded(self) -> int:
        """Blocks that came from the pool."""
        return int(self.said["reused"]) - int(self.said["computed"])

    @property
    def tokens_computed(self) -> int:
        """Tokens of the prompt, or of its first chunk, that were computed."""
        return max(0, int(self.said["prompt_tokens"]) - int(self.said["reused"]) * self.block_size)


def stories(answers: Sequence[Json]) -> list[Story]:
    """All prompts of some processes' answers, the oldest first.

    Args:
        answers: of ``host.why_answers``, one per process.
    """
    parts = [part for answer in answers for part in answer.get("parts", [])]
    lookups = {block: each for part in parts for block, each in part.get("lookups", {}).items()}
    groups: dict[tuple[Any, ...], list[tuple[Part, int]]] = {}
    for part in parts:
        for key, said in _keyed(part):
            identity = {name: value for name, value in part.items() if name != "requests"}
            groups.setdefault(key, []).append((Part(identity, said), int(part["block_size"])))
    found = [_story([part for part, _ in group], group[0][1], lookups) for group in groups.values()]
    return sorted(found, key=lambda story: float(story.said["at_s"]))


def _keyed(part: Json) -> Iterator[tuple[tuple[Any, ...], Json]]:
    """Each verdict under what it has in common with those of other ranks; a prompt may come twice (preemption)."""
    times: Counter[tuple[Any, ...]] = Counter()
    keyed = []
    for said in reversed(part.get("requests", [])):  # from the last one: a rank may have forgotten the first
        name = (part.get("pool_file"), part.get("dp_rank"), said["request_id"], said["sequence_id"])
        times[name] += 1
        keyed.append(((*name, times[name]), said))
    yield from reversed(keyed)


def _story(parts: list[Part], block_size: int, lookups: Mapping[str, Json]) -> Story:
    parts = sorted(parts, key=lambda part: int(part.identity.get("rank", 0)))
    told = min(parts, key=_rank_of_knowledge)
    cause, lookup = str(told.said["cause"]), _lookup_of(told.said, lookups)
    if cause == causes.NOT_PROMISED and lookup is not None:
        cause = _unpromised(told.said, lookup)
    return Story(parts, told, cause, lookup, block_size)


def _unpromised(said: Json, lookup: Json) -> str:
    """Why a block that is in the pool was not promised."""
    if lookup["outcome"] in _BY_OUTCOME:
        return _BY_OUTCOME[lookup["outcome"]]
    stored_s = float(said["at_s"]) - float(said["facts"].get("ago_s", math.inf))
    return causes.NOT_YET_STORED if stored_s > float(lookup["at_s"]) else causes.NOT_PROMISED


def _rank_of_knowledge(part: Part) -> tuple[bool, bool, int, int]:
    cause = part.said["cause"]
    others = causes.TOLD_BY_OTHERS
    return cause in others, cause in _LAST_RESORT, part.said["arrived"], others.index(cause) if cause in others else 0


def _lookup_of(said: Json, lookups: Mapping[str, Json]) -> Json | None:
    """What the scheduler was told of these blocks before their batch; a later one was of another prompt."""
    lookup = lookups.get(said["last_hash"])
    if lookup is None or not -LOOKUP_AGE_S <= float(lookup["at_s"]) - float(said["at_s"]) <= 0:
        return None
    return lookup
