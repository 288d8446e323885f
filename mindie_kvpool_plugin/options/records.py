"""What the running plugin reads from the pool file, as frozen records.  Defaults equal those of the schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 1024**2
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class KvPoolOptions:
    """The pool file's ``kv_pool`` section.

    Attributes:
        namespace: first part of every key; deployments that must not share blocks take different ones.
        queue_capacity_blocks: blocks that may wait for the spill thread; more are dropped and counted.
        queue_capacity_bytes: bytes of these blocks, and of their tokens, that may wait; the smaller bound counts.
        fence_timeout_s: seconds a step waits for a spill that still reads a block the step will
            overwrite, before that spill is withdrawn.
        in_flight_timeout_s: seconds a reload waits for the batch before it to leave the device.
        lookup_first_blocks: blocks asked for in the first lookup call; the rest follow in a second.
        on_pool_unavailable: "refuse" (the service does not start) or "run_without" (it starts, and takes the
            pool up when it can be opened); mistakes in the configuration always refuse.
        lookup_budget_s: seconds the scheduler waits for a lookup; a later answer is no, counts as a failed
            call, and nobody asks again before it is there.
        breaker_failures: failed pool calls in a row after which the pool is left alone for a while.
        breaker_slow_call_s: a pool call that takes longer does the same at once; transfers get a second
            more for every 256 MiB.
        breaker_retry_s: seconds between questions to a pool that is left alone.
        agreement: "auto" (ranks of one node meet through a file) or "tcp://host:port" of rank 0.
        agreement_timeout_s: seconds the ranks wait for each other before a step's pool hits are given up.
        verify_payload: store a checksum with every block and compare it when the block is loaded. Needs the
            package xxhash, and bytes the processor can read: not with protocol ascend unless staged.
        shards: "auto" (ranks with identical bytes store them once) or "per_rank".
        staging: "auto" (only where the transport cannot reach device memory), "on" or "off".
        staging_bytes: host memory for staging, per rank.
    """

    namespace: str = "default"
    queue_capacity_blocks: int = 4096
    queue_capacity_bytes: int = 8 * GIB
    fence_timeout_s: float = 5.0
    in_flight_timeout_s: float = 30.0
    lookup_first_blocks: int = 32
    on_pool_unavailable: Literal["refuse", "run_without"] = "refuse"
    lookup_budget_s: float = 0.5
    breaker_failures: int = 3
    breaker_slow_call_s: float = 2.0
    breaker_retry_s: float = 1.0
    agreement: str = "auto"
    agreement_timeout_s: float = 10.0
    verify_payload: bool = False
    shards: Literal["auto", "per_rank"] = "auto"
    staging: Literal["auto", "on", "off"] = "auto"
    staging_bytes: int = 256 * MIB


@dataclass(frozen=True, slots=True)
class MooncakeOptions:
    """Mooncake's own keys of the pool file, as users of MindIE already write them.

    Attributes:
        local_hostname: address of this machine; a port is added when it has none.
        metadata_server: "P2PHANDSHAKE" or the URL of a metadata service.
        master_server_address: "host:port" of mooncake_master.
        global_segment_size: bytes this process adds to the pool, per rank.
        local_buffer_size: bytes of Mooncake's own transfer buffer, per rank.
        protocol: "tcp", "rdma" or "ascend".
        device_name: RDMA devices, comma separated; empty: Mooncake chooses.
        use_ascend_direct: MindIE's switch; false is refused, Mooncake 0.3.13 has no such path.
        max_slices_in_flight: slices (block x segment) handed to the transport at once, over all threads; a TCP
            transport that is not configured takes 2016 per peer.  Over tcp what is copied from and to the own
            segment does not count, but each call keeps to it.
        rpc_timeout_s: seconds until a call to a master that does not answer is given up.
    """

    local_hostname: str
    master_server_address: str
    metadata_server: str = "P2PHANDSHAKE"
    global_segment_size: int = 3_355_443_200
    local_buffer_size: int = GIB
    protocol: Literal["tcp", "rdma", "ascend"] = "ascend"
    device_name: str = ""
    use_ascend_direct: bool = True
    max_slices_in_flight: int = 512
    rpc_timeout_s: float = 3.0


@dataclass(frozen=True, slots=True)
class LocalDramOptions:
    """The embedded pool of one process: simulator, tests and the demo.

    Attributes:
        capacity: bytes; the least recently used blocks leave first.
        huge_pages: ask the kernel for huge pages; it may say no.
    """

    capacity: int = 4 * GIB
    huge_pages: bool = True
