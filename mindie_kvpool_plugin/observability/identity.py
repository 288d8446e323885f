"""Who is observed: one rank, one scheduler, one store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ObservedRole = Literal["worker", "scheduler", "store"]


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells one part of a deployment from the others.

    Attributes:
        role: what it does.
        rank: a worker's; of schedulers in one process the first is 0.
        dp_rank: a worker's data-parallel rank.
        device: a worker's NPU.
        model: its name; empty until a scheduler was asked for one.
        backend: the pool's.
        namespace: first part of every key.
        pool_file: its path.
        block_size: tokens per block; 0 where that is not known.
    """

    role: ObservedRole
    rank: int = 0
    dp_rank: int = 0
    device: int = 0
    model: str = ""
    backend: str = ""
    namespace: str = ""
    pool_file: str = ""
    block_size: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """How somebody wants to be observed (options of the pool file).

    Attributes:
        metrics: where metrics go.
        host, port: the address they are served at, and the first port that is tried.
        folder: where their files go.
        report_interval_s: seconds between two lines of the log; 0: none.
    """

    metrics: Literal["off", "http", "file"] = "off"
    host: str = "127.0.0.1"
    port: int = 9420
    folder: str = ""
    report_interval_s: float = 60.0
