"""The probe that ends the doubt: two prompts, computed, pushed out of the device, then from the pool; same answers.

Prompts are drawn anew, a phrase of a few tokens again and again, so that their answers follow from the blocks that
are loaded.  Only full blocks are stored, and their tokens are known: so are their keys, and all are removed.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from mindie_kvpool_plugin.check.rules.view import integer
from mindie_kvpool_plugin.doctor.acceptance import running
from mindie_kvpool_plugin.doctor.acceptance.running import Counts, Running, find_running
from mindie_kvpool_plugin.doctor.acceptance.service import Answer, Service, ServiceError, service_of
from mindie_kvpool_plugin.doctor.acceptance.trial import CLEANING_KEY_S, CLEANING_S, Trial, remove
from mindie_kvpool_plugin.doctor.lines import Line, good, note, trouble, warning
from mindie_kvpool_plugin.doctor.rank_share import find_share

PROMPTS = ("A", "B")
MOST_BLOCKS = 16  # of a prompt
MOST_FILLER_BLOCKS = 64
ANSWER_TOKENS = 6
TAIL_TOKENS = 3  # behind the full blocks: what is computed also with a hit
PHRASE_TOKENS = 13
AT_ONCE = 4
ANSWER_TIMEOUT_S = 120.0
VOCABULARY = 30_000
STORED_TIMEOUT_S = 10.0

Prompt = list[int]


@dataclass(frozen=True, slots=True)
class Plan:
    """How large prompts and fillers are, and how many fillers push a prompt out of every device's cache."""

    blocks: int
    filler_blocks: int
    fillers: int
    block_size: int
    vocabulary: int

    def prompt(self, draw: random.Random, blocks: int) -> Prompt:
        """Full blocks, and a tail that shares their last block with the answer."""
        low, high = self.vocabulary // 10, self.vocabulary * 9 // 10
        phrase = [draw.randrange(low, high) for _ in range(PHRASE_TOKENS)]
        length = blocks * self.block_size + min(TAIL_TOKENS, self.block_size - ANSWER_TOKENS)
        return (phrase * math.ceil(length / PHRASE_TOKENS))[:length]

    @property
    def filler_tokens(self) -> int:
        """Of all of them together."""
        return self.fillers * self.filler_blocks * self.block_size


@dataclass(slots=True)
class Asked:
    """One prompt and its answers, by how the service came to them."""

    name: str
    tokens: Prompt
    answers: dict[str, Answer] = field(default_factory=dict)


def prompts(case: Trial) -> Iterator[Line]:
    """Whatever happens, what was stored is removed."""
    found = find_running(case)
    if found is None:
        yield Line("prompts.no_ranks", "skipped")
        return
    missing = sorted(set(case.devices) - {int(part["device"]) for part in found.parts})
    if missing:
        yield trouble("prompts.missing_rank", ranks=", ".join(map(str, sorted(found.ranks))),
                      devices=", ".join(map(str, missing)))  # fmt: skip
    plan = _plan(case, found)
    if plan is None:
        yield Line("prompts.too_short", "skipped", {"tokens": found.block_size})
        return
    session = Session(case, found, plan, service_of(case))
    try:
        yield from session.run()
    except (ServiceError, OSError) as error:
        yield trouble("prompts.refused", error=error)
    finally:
        left = list(session.clean())
    yield from left


def _plan(case: Trial, found: Running) -> Plan | None:
    """None where not even two blocks fit into a prompt."""
    size = found.block_size
    longest = integer(case.view.deploy, "maxInputTokenLen") or integer(case.view.deploy, "maxSeqLen") or 2048
    fit = (longest - TAIL_TOKENS - ANSWER_TOKENS) // size
    blocks = min(MOST_BLOCKS, fit, found.device_blocks // 8)
    if blocks < 1 or size <= ANSWER_TOKENS:
        return None
    filler = max(1, min(MOST_FILLER_BLOCKS, fit, found.device_blocks // 4))
    share = find_share(case)
    groups = share.instance.layout.dp if share is not None else len({part["dp_rank"] for part in found.parts})
    in_group = share.instance.group_blocks(found.device_blocks) if share is not None else found.device_blocks
    named = share.instance.model.get("vocab_size") if share is not None else None
    vocabulary = min(VOCABULARY, named) if isinstance(named, int) and named > PHRASE_TOKENS else VOCABULARY
    return Plan(blocks, filler, math.ceil(groups * in_group / filler) + 2, size, vocabulary)


class Session:
    """One run of prompts against one service."""

    def __init__(self, case: Trial, found: Running, plan: Plan, service: Service) -> None:
        self._case, self._found, self._plan, self._service = case, found, plan, service
        self._draw = random.Random()  # noqa: S311 - nothing is secret
        self._asked = [Asked(name, plan.prompt(self._draw, plan.blocks)) for name in PROMPTS]
        self._sent = 0

    def run(self) -> Iterator[Line]:
        """Each way once; the lines say what was seen."""
        self._ask_all("computed")
        self._ask_all("device")  # with admission second_use only now they are stored
        if not self._are_stored():
            yield trouble("prompts.not_stored", blocks=self._plan.blocks)
            return
        filled_s, is_filled = self._fill()
        if not is_filled:
            yield self._no_time(filled_s)
            return
        yield note("prompts.filled", prompts=self._plan.fillers, tokens=self._plan.filler_tokens,
                   seconds=f"{filled_s:.0f}")  # fmt: skip
        unknown = [self._plan.blocks] * len(self._asked)
        for each, blocks in zip(self._asked, self._held() or unknown, strict=True):
            if blocks == 0:
                yield trouble("prompts.pushed_out", prompt=each.name, blocks=self._plan.blocks)
                continue
            before = running.counts(self._case)
            self._ask(each, "pool")
            yield from self._judged(each, _since(before, running.counts(self._case)))

    def clean(self) -> Iterator[Line]:
        """Remove the blocks of every prompt that was sent."""
        running.wait_until_stored(self._case)
        if self._case.mooncake is None:
            yield note("prompts.kept", blocks=len(self._case.keys))
        yield from remove(self._case, set(self._case.keys))

    def _ask_all(self, way: str) -> None:
        for each in self._asked:
            self._ask(each, way)

    def _ask(self, asked: Asked, way: str) -> None:
        asked.answers[way] = self._send(asked.tokens)
        self._case.answers.setdefault(asked.name, {})[way] = asked.answers[way].seconds

    def _send(self, tokens: Prompt) -> Answer:
        self._case.keys.update(self._found.keys([tokens]))  # before it is sent: whatever happens, they are removed
        return self._service.complete(tokens, ANSWER_TOKENS, self._case.left_s(ANSWER_TIMEOUT_S))

    def _are_stored(self) -> bool:
        """Whether every prompt came to the pool, soon after it was answered."""
        until_s = time.monotonic() + self._case.left_s(STORED_TIMEOUT_S)
        while any(blocks < self._plan.blocks for blocks in self._held() or ()):
            if time.monotonic() > until_s:
                return False
            time.sleep(running.POLL_S)
        return True

    def _held(self) -> list[int] | None:
        """Leading blocks of each prompt that the pool has; None where it cannot be asked."""
        return running.held_blocks(self._case, [self._found.aliases(each.tokens) for each in self._asked])

    def _fill(self) -> tuple[float, bool]:
        """Seconds that went into fillers, and whether all could be sent: it ends as soon as that is not to be."""
        began = time.monotonic()
        made = [self._plan.prompt(self._draw, self._plan.filler_blocks) for _ in range(self._plan.fillers)]
        with ThreadPoolExecutor(AT_ONCE, "kvpool-filler") as threads:
            for at in range(0, len(made), AT_ONCE):
                list(threads.map(self._send, made[at : at + AT_ONCE]))
                self._sent = min(at + AT_ONCE, len(made))
                spent_s = time.monotonic() - began
                needed_s = spent_s / (at + AT_ONCE) * (len(made) - at - AT_ONCE)
                if needed_s > self._left_s():
                    return spent_s, False
        return time.monotonic() - began, True

    def _left_s(self) -> float:
        """For fillers: the prompts come once more, and all blocks are removed."""
        case, blocks = self._case, self._plan.filler_tokens / self._plan.block_size
        keys = len(self._case.keys) + blocks * (len(self._found.parts) + 1)
        reserve_s = 2 * CLEANING_S + CLEANING_KEY_S * keys
        return case.began_s + case.timeout_s - time.monotonic() - reserve_s

    def _no_time(self, spent_s: float) -> Line:
        """Told with how long it would have taken, as far as was seen."""
        plan, before_s = self._plan, time.monotonic() - self._case.began_s
        seconds = spent_s * (plan.fillers - self._sent) / max(1, self._sent) + self._case.timeout_s - self._left_s()
        timeout = math.ceil(max(before_s, seconds) / 60 + 1) * 60
        values = {"prompts": plan.fillers, "tokens": plan.filler_tokens, "blocks": self._found.device_blocks}
        return Line("prompts.no_time", "skipped", {**values, "timeout": timeout})

    def _judged(self, asked: Asked, counts: Counts) -> Iterator[Line]:
        answers, expected, loaded = asked.answers, self._plan.blocks * self._plan.block_size, counts.loaded_tokens
        computed, device, pool = answers["computed"], answers["device"], answers["pool"]
        times = {way: f"{answer.seconds:.3f}" for way, answer in answers.items()}
        values = {"prompt": asked.name, "tokens": len(asked.tokens), "loaded": loaded, "expected": expected, **times}
        if loaded < expected and counts.cheaper_blocks:
            yield _cheaper(counts, values)
        elif loaded < self._plan.block_size:
            yield trouble("prompts.on_device" if pool.cached else "prompts.no_hit", cached=pool.cached or 0, **values)
        elif loaded < expected:
            yield trouble("prompts.part_hit", **values)
        elif loaded > expected:
            yield warning("prompts.more_loaded", **values)
        else:
            yield good("prompts.hit", **values)
        yield _same(asked.name, computed.text, device.text, pool.text)


def _since(before: dict[int, Counts], after: dict[int, Counts]) -> Counts:
    """What the ranks have counted since, those of a group all the same; other requests are among it."""
    pairs = [(before.get(rank, Counts()), now) for rank, now in after.items()]
    return Counts(
        max((now.loaded_tokens - then.loaded_tokens for then, now in pairs), default=0),
        max((now.cheaper_blocks - then.cheaper_blocks for then, now in pairs), default=0),
        max((now.load_s for _, now in pairs), default=0.0),
        max((now.compute_s for _, now in pairs), default=0.0),
    )


def _cheaper(counts: Counts, values: dict[str, Any]) -> Line:
    """The plugin does as it should, and says nothing about what lies in the pool."""
    figures = {"load": f"{1000 * counts.load_s:.3g}", "compute": f"{1000 * counts.compute_s:.3g}"}
    return Line("prompts.cheaper", "skipped", {**values, **figures})


def _same(name: str, computed: str, device: str, pool: str) -> Line:
    """The host's own prefix cache computes in the shapes of a hit: what differs there, too, is not the pool's."""
    if pool == computed:
        return good("prompts.same", prompt=name, answer=_shown(pool))
    values = {"prompt": name, "computed": _shown(computed), "device": _shown(device), "pool": _shown(pool)}
    if pool == device:
        return warning("prompts.same_as_device", **values)
    return trouble("prompts.different", **values)


def _shown(text: str) -> str:
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain[:80] or "-"
