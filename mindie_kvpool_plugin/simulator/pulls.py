"""Pulls of blocks from one node's device to another's: the order to all ranks, and what goes wrong on the way.

A pull runs on a transfer thread of each rank, beside the batches.  It copies half of its blocks at once and the rest
as late as it can, when the scheduler asks for its outcome: so a block that is given away too early, on either node,
shows every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mindie_kvpool_plugin.simulator.engine_config import EngineConfig
from mindie_kvpool_plugin.simulator.requests import Request
from mindie_kvpool_plugin.simulator.worker import Worker

PULL_TIMEOUT_S = 60.0
Source = tuple[int, list[int], list[int]]
"""Node, its blocks, our blocks: what the host's ``pull_kv`` takes."""


@dataclass(frozen=True, slots=True)
class PullFaults:
    """Which pulls fail, half done.

    Attributes:
        every: each so-manieth; 0: none.
        rank: on this rank only; None: on all.
    """

    every: int = 0
    rank: int | None = None


class HeldWire:
    """Stands for the library that copies blocks, on one rank.

    Attributes:
        gate: open once the second half may be copied.
        blocks: copied so far, in pulls that went well.
        failed: pulls that failed.
    """

    def __init__(self, faults: PullFaults, rank: int) -> None:
        self.gate = threading.Event()
        self.blocks = self.failed = self._pulls = 0
        self._every = faults.every if faults.rank in (None, rank) else 0

    def pull_blocks(self, theirs: Sequence[Any], own: Sequence[Any], sources: list[int], targets: list[int]) -> bool:
        """Copy blocks, tensor by tensor; False when it fails."""
        self._pulls += 1
        half = len(sources) // 2
        _copy(theirs, own, sources[:half], targets[:half])
        if not self.gate.wait(PULL_TIMEOUT_S):
            raise TimeoutError("nobody asked for the outcome of a pull")
        if self._every and self._pulls % self._every == 0:
            self.failed += 1
            return False
        _copy(theirs, own, sources[half:], targets[half:])
        self.blocks += len(sources)
        return True


class Transfers:
    """The transfer threads and wires of a node's ranks.

    Args:
        workers: the ranks.
        faults: of pulls.
    """

    def __init__(self, workers: Sequence[Worker], faults: PullFaults) -> None:
        self._workers = workers
        self.wires = [HeldWire(faults, rank) for rank in range(len(workers))]
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"transfer-{rank}") for rank in range(len(workers))]
        for worker, wire in zip(workers, self.wires, strict=True):
            worker.generator.separate_deployment_worker.wire = wire

    def link(self, other: EngineConfig) -> None:
        """Every rank may pull from its counterpart on another node, or from all that share its blocks there."""
        for rank, worker in enumerate(self._workers):
            devices = [rank] if other.num_shares == 1 else list(range(other.num_shares))
            worker.generator.link(
                remote_cluster_ids={1: [other.cluster(device) for device in devices]},
                remote_physical_device_ids={1: devices},
                remote_device_ips={1: [f"10.0.{other.node}.{device}" for device in devices]},
                host_ips={1: [f"10.1.{other.node}.1" for _ in devices]},
            )

    def order(self, requests: list[Request], sources: list[Source], metadata: Callable[[], Any]) -> Pull:
        """Have all ranks pull these requests' blocks; every rank gets metadata of its own."""
        for wire in self.wires:
            wire.gate.clear()
        futures = [
            thread.submit(worker.generator.pull_kv, metadata(), sources)
            for thread, worker in zip(self._threads, self._workers, strict=True)
        ]
        return Pull(requests, futures, self.wires)

    def close(self) -> None:
        """End the threads."""
        for wire in self.wires:
            wire.gate.set()
        for thread in self._threads:
            thread.shutdown()


@dataclass(frozen=True, slots=True)
class Pull:
    """One order.

    Attributes:
        requests: whose blocks.
        futures: per rank, the answer of the host's ``pull_kv``.
        wires: likewise.
    """

    requests: list[Request]
    futures: list[Future[Any]]
    wires: list[HeldWire]

    def outcome(self) -> bool:
        """Wait for all ranks; whether all of them have the blocks."""
        for wire in self.wires:
            wire.gate.set()
        answers = [future.result(PULL_TIMEOUT_S) for future in self.futures]
        return all(status.value == 0 for status, _ in answers)


def _copy(theirs: Sequence[Any], own: Sequence[Any], sources: list[int], targets: list[int]) -> None:
    for source, target in zip(theirs, own, strict=True):
        target[targets] = source[sources]
