"""Probes of the pool as each rank uses it: blocks from its cache there and back, lookups as the scheduler's."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.check.rules.memory import LINK_MB
from mindie_kvpool_plugin.doctor.acceptance.copies import CHILD, MIB, mbs
from mindie_kvpool_plugin.doctor.acceptance.trial import Trial, per_device, remove
from mindie_kvpool_plugin.doctor.child import Told, run_child
from mindie_kvpool_plugin.doctor.lines import Line, good, note, trouble, warning
from mindie_kvpool_plugin.doctor.npu import needs_npu
from mindie_kvpool_plugin.doctor.rank_share import find_share
from mindie_kvpool_plugin.doctor.software import version_of
from mindie_kvpool_plugin.doctor.transfer import own_memory
from mindie_kvpool_plugin.planning.worth import assumed_rate, used_parameters

ROUNDS = 5
BLOCKS_PER_ROUND = 6
RANK_TIMEOUT_S = 120.0
LOOKUP_TIMEOUT_S = 30.0
LOOKUPS = 200
LOOKUP_KEYS = (1, 256)
MAX_BLOCK_BYTES = 4 * MIB  # host.device_trial, which needs torch


def ranks(case: Trial) -> Iterator[Line]:
    """All ranks of this machine at once, as in the service: each puts, gets and compares, then nothing is left."""
    if not version_of("torch"):
        yield Line("ranks.no_torch", "skipped")
        return
    is_npu = bool(version_of("torch_npu")) and bool(case.devices)
    if not is_npu and needs_npu(case):
        yield Line("ranks.no_npu", "skipped")
        return
    if not is_npu:
        yield note("ranks.without_npu")
    chosen = case.devices or [0]
    keys = {device: case.new_keys(ROUNDS * BLOCKS_PER_ROUND) for device in chosen}
    limit_s = case.left_s(RANK_TIMEOUT_S)
    question = {"work": "pool", "rounds": ROUNDS, **_question(case)}

    def run(device: int) -> Told:
        asked = {**question, "device": device if is_npu else None, "keys": keys[device]}
        return run_child(CHILD, asked, limit_s, case.env)

    try:
        found = list(per_device(chosen, run))
    finally:
        left = list(remove(case, (key for each in keys.values() for key in each)))
    unloaded = next(filter(None, (told.step("unloaded") for _, told in found)), None)
    if unloaded is not None:
        yield trouble("ranks.unloaded", error=unloaded["error"])
        return
    for device, told in found:
        yield from _judged(case, device, told)
    yield from _compared(case)
    yield from left


def _question(case: Trial) -> dict[str, Any]:
    """The pool file, and what of it is changed: no rank gives its memory for a trial, unless nobody else does."""
    question = case.cache_question()
    question.pop("is_known")
    lent = own_memory(case, BLOCKS_PER_ROUND * ROUNDS * MAX_BLOCK_BYTES)
    changes = {"global_segment_size": lent, "local_buffer_size": 0} if case.mooncake is not None else {}
    return {**question, "backend": case.backend, "pool_file": str(case.pool_path), "changes": changes}


def _judged(case: Trial, device: int, told: Told) -> Iterator[Line]:
    refused = told.step("refused")
    if refused is not None:
        yield trouble("ranks.refused", device=device, error=refused["error"])
        return
    moved = [step for step in told.steps if step["step"] == "moved"]
    wrong = sum(len(each["wrong"]) for each in moved)
    there, back = sum(each["stored"] for each in moved), sum(each["got"] for each in moved)
    asked = ROUNDS * BLOCKS_PER_ROUND
    if wrong:
        yield trouble("ranks.damaged", device=device, blocks=wrong)
    elif there < asked or back < asked:
        if told.ending == "killed":
            yield trouble("ranks.hangs", device=device, stored=there, got=back, blocks=asked)
        elif told.ending:
            yield trouble("ranks.died", device=device, ending=told.ending)
        else:
            yield trouble("ranks.lost", device=device, stored=there, got=back, blocks=asked, why=_why(moved))
    else:
        yield _speeds(case, device, told, moved)
    memory = told.step("memory")
    if memory is not None and any(memory["free"]):
        yield _memory(case, device, memory["free"])


def _why(moved: list[dict[str, Any]]) -> str:
    said = [each["trouble"] or ", ".join(each["codes"]) for each in moved]
    return next(filter(None, said), "-")


def _speeds(case: Trial, device: int, told: Told, moved: list[dict[str, Any]]) -> Line:
    opened = told.step("opened") or {}
    size = BLOCKS_PER_ROUND * opened.get("block_bytes", 0)
    figures = {f"{what}": size / max(statistics.median(each[f"{what}_s"] for each in moved), 1e-9)
               for what in ("put", "get")}  # fmt: skip
    case.speeds.setdefault(device, {}).update(figures)
    blocks = ROUNDS * BLOCKS_PER_ROUND
    return good("ranks.verified", device=device, blocks=blocks, bytes=opened.get("block_bytes", 0), **mbs(figures))


def _memory(case: Trial, device: int, free: list[int]) -> Line:
    """Free device memory before the client, behind its set-up, and once links exist."""
    taken = max(0, free[0] - free[2])
    links = len({each.name for each in case.segments or ()}) if needs_npu(case) else 0
    most = max(1, links) * LINK_MB if links else 0
    values = {"device": device, "before": free[0] // MIB, "after": free[2] // MIB, "taken": taken // MIB, "most": most}
    if not links:
        return note("ranks.memory", **values)
    return good("ranks.links", links=links, **values) if taken <= most * MIB else warning("ranks.links_large", **values)


def _compared(case: Trial) -> Iterator[Line]:
    """Loading against computing, of the slowest rank."""
    share = find_share(case)
    gets = [each["get"] for each in case.speeds.values() if "get" in each]
    if share is None or not gets or not used_parameters(share.instance.model):
        return
    rate = assumed_rate(share.instance.model, share.instance.layout.ranks) / share.instance.layout.dp
    needed = share.instance.read_block_bytes / share.instance.block_size * rate
    # the rate is assumed: two prompts tell the truth
    say, name = (good, "ranks.pays") if min(gets) > needed else (note, "ranks.slow")
    yield say(name, needed=f"{needed / 1e6:,.0f}", slowest=f"{min(gets) / 1e6:,.0f}", rate=f"{rate:,.0f}")


def lookup(case: Trial) -> Iterator[Line]:
    """What a request in the queue waits for: figures against the scheduler's own limit."""
    question = {"work": "lookup", "device": None, "counts": LOOKUP_KEYS, "times": LOOKUPS, "prefix": case.run_keys}
    asked: dict[str, Any] = {**question, "backend": case.backend, "pool_file": str(case.pool_path), "changes": {}}
    told = run_child(CHILD, asked, case.left_s(LOOKUP_TIMEOUT_S), case.env)
    refused = told.step("refused")
    if refused is not None:
        yield trouble("lookup.refused", error=refused["error"])
    for step in (each for each in told.steps if each["step"] == "lookups"):
        yield _lookups(case, step)
    if told.ending:
        yield trouble("lookup.died", ending=told.ending)


def _lookups(case: Trial, step: dict[str, Any]) -> Line:
    times = sorted(1000 * each for each in step["seconds"])
    case.lookups[step["keys"]] = times
    half, most = times[len(times) // 2], times[min(len(times) - 1, int(0.99 * len(times)))]
    options = case.pool_file.options if case.pool_file is not None else None
    budget_ms = 1000 * (options.lookup_budget_s if options is not None else 0.5)
    values = {"keys": step["keys"], "times": len(times), "p50": f"{half:.3f}", "p99": f"{most:.3f}",
              "budget": f"{budget_ms:g}"}  # fmt: skip
    if step["trouble"]:
        return trouble("lookup.failed", why=step["trouble"], **values)
    return good("lookup.quick", **values) if most < budget_ms else trouble("lookup.slow", **values)
