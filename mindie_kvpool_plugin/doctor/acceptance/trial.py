"""An acceptance: a case, what else was asked for, and what probes find out for later ones and for the report."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from mindie_kvpool_plugin.doctor.case import Case
from mindie_kvpool_plugin.doctor.child import Told
from mindie_kvpool_plugin.doctor.lines import Line, warning
from mindie_kvpool_plugin.doctor.master import open_client
from mindie_kvpool_plugin.doctor.rank_share import find_share
from mindie_kvpool_plugin.kv_shape import KvShape

AT_ONCE = 8  # children that try devices: each imports torch
CLEANING_S, CLEANING_KEY_S = 10.0, 0.001  # a client that opens; a removal takes 0.1 ms
KEYS_PER_CLIENT = 20_000
DEFAULT_SHAPE = KvShape(layers=4, kv_heads=8, key=128, value=128)
"""Where the weights cannot be read."""
DEFAULT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a client that a service with httpsEnabled wants: of the authority, the certificate and its key."""

    authority: str = ""
    certificate: str = ""
    key: str = ""


@dataclass(slots=True)
class Trial(Case):
    """What acceptance's probes are given, beside what the doctor's are.

    Attributes:
        node: this one's number among ``nodes`` that exchange blocks; 0: it does not.
        nodes: how many do.
        url: of the service; "": as the configuration says.
        tls: for a service that wants it.
        keys: in the pool because of us; whoever removes them takes them out.
        speeds: bytes per second by what was measured, one row per device, for the plot.
        lookups: milliseconds of each lookup, by the number of keys.
        answers: seconds by prompt and way, for the plot.
    """

    node: int = 0
    nodes: int = 0
    url: str = ""
    tls: Tls = field(default_factory=Tls)
    keys: set[str] = field(default_factory=set)
    speeds: dict[int, dict[str, float]] = field(default_factory=dict)
    lookups: dict[int, list[float]] = field(default_factory=dict)
    answers: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def run_keys(self) -> str:
        """What all keys of a trial begin with."""
        return f"{self.namespace}/acceptance"

    def new_keys(self, count: int) -> list[str]:
        """Names nobody has, noted for removal."""
        made = [f"{self.run_keys}/{uuid.uuid4().hex}" for _ in range(count)]
        self.keys.update(made)
        return made

    def cache_question(self) -> dict[str, Any]:
        """The model's cache, for a child that makes a small one."""
        share = find_share(self)
        shape = share.instance.shape if share is not None else DEFAULT_SHAPE
        named = {name: getattr(shape, name) for name in KvShape.__dataclass_fields__}
        size = share.instance.block_size if share is not None else DEFAULT_TOKENS
        tp = share.instance.layout.tp if share is not None else 1
        return {"shape": named, "block_size": size, "tp": tp, "is_known": share is not None}


def per_device(devices: Iterable[int], run: Callable[[int], Told]) -> Iterator[tuple[int, Told]]:
    """What became of a child for each device, some at once."""
    chosen = list(devices)
    with ThreadPoolExecutor(AT_ONCE, "kvpool-acceptance") as threads:
        yield from zip(chosen, threads.map(run, chosen), strict=True)


def remove(case: Trial, keys: Iterable[str]) -> Iterator[Line]:
    """Take objects out of the pool, also when the time is up, and say what could not be.

    Only Mooncake's client can remove; blocks of others leave in time.
    """
    chosen = sorted(keys)
    case.keys.difference_update(chosen)
    if case.mooncake is None:
        return
    for at in range(0, len(chosen), KEYS_PER_CLIENT):
        part = chosen[at : at + KEYS_PER_CLIENT]
        limit_s = CLEANING_S + CLEANING_KEY_S * len(part)
        in_time = replace(case, timeout_s=max(case.timeout_s, time.monotonic() - case.began_s + limit_s))
        told = open_client(in_time, {"role": "scheduler", "sweep": part}, limit_s)
        swept: Mapping[str, Any] = told.step("swept") or {"left": len(part), "some": part[:4]}
        if swept["left"]:
            yield warning("cleaning.left", count=swept["left"], keys=", ".join(swept["some"]))


def cleaning(case: Trial) -> Iterator[Line]:
    """What a probe that was left behind did not come to."""
    yield from remove(case, set(case.keys))
