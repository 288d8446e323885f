"""Probes that move bytes: one object to each holder of memory and back, and the lease against loading a long prompt.

Nothing stays: objects are removed at once, also leased ones; where the child dies before it could, a second one
removes them.  This process adds memory of its own only to a pool that has none, and takes it away again.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from typing import Any

from mindie_kvpool_plugin.doctor.capacity import not_answering
from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.child import Told
from mindie_kvpool_plugin.doctor.flags import lease_s
from mindie_kvpool_plugin.doctor.lines import Line, good, note, skipped, trouble, warning
from mindie_kvpool_plugin.doctor.master import open_client
from mindie_kvpool_plugin.doctor.rank_share import RankShare, find_share
from mindie_kvpool_plugin.errors import PoolError
from mindie_kvpool_plugin.options.records import MIB
from mindie_kvpool_plugin.pools.mooncake.codes import GONE, NO_SPACE, meaning
from mindie_kvpool_plugin.pools.mooncake.limits import MIN_SEGMENT_BYTES

DEFAULT_BYTES = MIB
TRIAL_TIMEOUT_S = 20.0  # milliseconds per holder as a rule; a peer that hangs takes 1 to 2 s
CLEANING_TIMEOUT_S = 5.0


def transfer(case: Case) -> Iterator[Line]:
    """Put, get, compare, remove, with each holder."""
    not_tried = _why_not(case)
    if not_tried is not None:
        yield not_tried
        return
    size, line = _size(case)
    yield line
    own_bytes = own_memory(case, size)
    if own_bytes:
        yield note("transfer.own_memory", mib=own_bytes // MIB)
    # a holder is named by its segment; "" leaves the choice to the master
    holders = sorted({each.name for each in case.segments or ()}) or [""]
    keys = [f"{case.namespace}/doctor/{uuid.uuid4().hex}" for _ in holders]
    told = _try(case, {"role": "worker", "size": size, "keys": keys, "holders": holders}, own_bytes)
    yield from _judged(told, case, size)
    yield from _left_behind(told, keys, case)


def _why_not(case: Case) -> Line | None:
    """An NPU that is busy is not touched, and a put that the master places with a dead holder may have no end."""
    if _needs_device(case) and case.device is None:
        return skipped("transfer", "ascend")
    dead = not_answering(case)
    return skipped("transfer", "dead", segments=", ".join(each.name for each in dead)) if dead else None


def _needs_device(case: Case) -> bool:
    return case.mooncake is not None and case.mooncake.protocol == "ascend"


def _size(case: Case) -> tuple[int, Line]:
    """Bytes of the objects, and what is to be said of that."""
    share = find_share(case)
    if share is None:
        return DEFAULT_BYTES, note("transfer.assumed", mib=DEFAULT_BYTES // MIB)
    tokens = share.instance.block_size
    return share.block_bytes, note("transfer.size", bytes=share.block_bytes, tokens=tokens)


def _try(case: Case, asked: dict[str, Any], own_bytes: int) -> Told:
    """Within a limit that leaves time to clean up."""
    if _needs_device(case):
        asked["device"] = case.device
    limit_s = max(1.0, case.left_s(TRIAL_TIMEOUT_S + CLEANING_TIMEOUT_S) - CLEANING_TIMEOUT_S)
    return open_client(case, asked, limit_s, global_segment_size=own_bytes)


def own_memory(case: Case, size: int) -> int:
    """None, unless nobody else has given any."""
    if case.segments is None or case.segments:
        return 0
    return max(MIN_SEGMENT_BYTES, math.ceil(2 * size / MIN_SEGMENT_BYTES) * MIN_SEGMENT_BYTES)


def _judged(told: Told, case: Case, size: int) -> Iterator[Line]:
    """One line for each holder, and for what kept the client from coming about."""
    refused, unregistered = told.step("refused"), told.step("unregistered")
    if refused is not None:
        yield trouble("transfer.refused", error=PoolError(refused["error"]))
    if unregistered is not None:
        yield trouble("transfer.unregistered", bytes=size, code=meaning(unregistered["code"]))
    for each in (step for step in told.steps if step["step"] == "object"):
        yield _of_holder(each, size, case)
        if each["holder"] and each.get("at") and each["at"] not in _endpoints(case, each["holder"]):
            yield note("transfer.elsewhere", holder=each["holder"], at=each["at"])
    if told.ending:
        yield trouble("transfer.died", ending=told.ending)


def _endpoints(case: Case, holder: str) -> set[str]:
    """Where the bytes of a holder's memory are moved."""
    return {each.endpoint for each in case.segments or () if each.name == holder}


def _of_holder(found: dict[str, Any], size: int, case: Case) -> Line:
    holder = found["holder"] or "-"
    if found["put"] == NO_SPACE:
        return trouble("transfer.no_space", holder=holder, bytes=size)
    if found["put"] != 0:
        return trouble("transfer.put_failed", holder=holder, code=meaning(found["put"]))
    if found["get"] != size:
        return trouble("transfer.get_failed", holder=holder, code=meaning(found["get"]))
    if not found["is_same"]:
        return trouble("transfer.damaged", holder=holder, bytes=size)
    speed = size / max(found["get_s"], 1e-9)
    case.bytes_per_s = min(speed, case.bytes_per_s or speed)
    times = {"put_ms": f"{found['put_s'] * 1000:.1f}", "get_ms": f"{found['get_s'] * 1000:.1f}"}
    speeds = {"put_mbs": f"{size / max(found['put_s'], 1e-9) / 1e6:.0f}", "get_mbs": f"{speed / 1e6:.0f}"}
    return good("transfer.verified", holder=holder, at=found["at"], **times, **speeds)


def _left_behind(told: Told, keys: list[str], case: Case) -> Iterator[Line]:
    """Remove what the child did not come to, and say if that fails, too."""
    done = [step["removed"] in GONE for step in told.steps if step["step"] == "object"]
    # a client that never connected has put nothing
    left = [key for key, is_gone in zip(keys, [*done, *[False] * len(keys)], strict=False) if not is_gone]
    if not left or told.step("connected") is None:
        return
    again = open_client(case, {"role": "scheduler", "remove": left}, CLEANING_TIMEOUT_S)
    removed = [step["code"] in GONE for step in again.steps if step["step"] == "removed"]
    if removed.count(True) < len(left):
        yield warning("transfer.left", keys=", ".join(left))


def lease(case: Case) -> Iterator[Line]:
    """A lease that ends before the longest prompt is loaded loses its last blocks."""
    share, lease = find_share(case), lease_s(case)
    if share is None:
        yield note("lease.no_layout")
    elif lease is None:
        yield note("lease.unknown", seconds=f"{_loading_s(share, case):.1f}", tokens=share.longest_tokens)
    else:
        needed = _loading_s(share, case)
        say, name = (good, "lease.long_enough") if needed < lease else (warning, "lease.short")
        yield say(name, lease=f"{lease:g}", seconds=f"{needed:.1f}", tokens=share.longest_tokens,
                  mib=f"{share.longest_bytes / MIB:.0f}", mbs=f"{case.bytes_per_s / 1e6:.0f}")  # fmt: skip


def _loading_s(share: RankShare, case: Case) -> float:
    return share.longest_bytes / max(case.bytes_per_s, 1.0)
