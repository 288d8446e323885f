"""What a pool file may say, as frozen records: the one source of names, types, defaults, bounds and descriptions.

The running plugin builds them and the check judges by them (``pool_file``); the schemas for editors are
generated from them, the ``Attributes`` here being the descriptions there (``make schemas``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_type_hints

MIB = 1024**2
GIB = 1024**3

# What the type does not say, as metadata of a field.  A number is above 0, a text is not blank, unless told here.
SIZE: Mapping[str, Any] = {"size": True, "unit": "bytes"}
"""Bytes, which may also be written as a text such as "4GB" (``sizes``); 0 is a size."""
MAY_BE_EMPTY: Mapping[str, Any] = {"may_be_empty": True}
"""A blank text means something too."""
MAY_BE_ZERO: Mapping[str, Any] = {"may_be_zero": True}
"""A number that is 0 switches something off."""


def form(pattern: str, words: str) -> Mapping[str, Any]:
    """A text of which all but blanks at its ends matches; the pattern is one that Python and JSON Schema read alike."""
    return {"pattern": pattern, "words": words}


def count(unit: str, advised: int | None = None) -> Mapping[str, Any]:
    """A number of things that the option's name does not end in; the check warns above what is advised."""
    return {"unit": unit} if advised is None else {"unit": unit, "advised": advised}


def such_as(*examples: Any, **about: Any) -> Mapping[str, Any]:
    """What else is known about a field, and values that an editor offers."""
    return {**about, "examples": examples}


@dataclass(frozen=True, slots=True)
class KvPoolOptions:
    """The pool file's ``kv_pool`` section.

    Attributes:
        namespace: first part of every key; deployments that must not share blocks take different ones.
        queue_capacity_blocks: blocks that may wait for the spill thread; more are dropped and counted.
        queue_capacity_bytes: bytes of these blocks, and of their tokens, that may wait; the smaller bound counts. A
            text such as 8GB works too.
        load: auto: pool hits are loaded only where that is faster than computing them, by what both took here of late;
            always: they are always loaded, and nothing is measured.
        reload_budget_ms: longest time for which a step is held up by fences, by reloads (auto only; the rest is
            computed) and, with asyncWrite false, by storing what it frees (the rest is not stored). 0: 25 decode steps,
            as long as they took here of late; for reloads as long as computing it would take, if that is more and not
            SplitFuse.
        fence_timeout_s: longest wait of a step for a spill that still reads a block the step overwrites, before that
            spill and all others that have not begun are withdrawn. All steps together wait for no more than a 128th of
            the time, and none where the pool is too slow for that to be enough.
        in_flight_timeout_s: longest wait of a reload for the batch before it to leave the device.
        lookup_first_blocks: blocks asked for in the first lookup call; the rest follow in a second.
        on_pool_unavailable: refuse: a pool that cannot be opened ends the start; run_without: the service starts
            without it and takes it up when it can be opened. Mistakes in the configuration always refuse.
        lookup_budget_s: longest wait of the scheduler for a lookup; a later answer is no, counts as a failed call, and
            nobody asks again before it is there.
        breaker_failures: failed pool calls in a row after which the pool is left alone for a while.
        breaker_slow_call_s: a pool call that takes longer has the pool left alone at once; transfers get a second more
            for every 256 MiB.
        breaker_retry_s: time between questions to a pool that is left alone.
        agreement: auto: the ranks of one server meet through a file; those of several: tcp://host:port of rank 0.
        agreement_timeout_s: longest wait of the ranks for each other before a step's pool hits are given up.
        verify_payload: whether a checksum is stored with every block and compared when the block is loaded. Needs the
            package xxhash, and bytes the processor can read: not with protocol ascend, unless staging is on.
        shards: auto: ranks with identical bytes store them once; per_rank: each stores its own.
        admission: all: every block of an ended sequence is stored; second_use: only from the second sequence on that
            ends with the same tokens, where bandwidth to the pool or the wear of its SSDs is what is short. Takes 4 MiB
            per rank; mindie-kvpool plan shows what either stores and answers.
        staging: copy through host memory: auto only where the transport cannot reach device memory.
        staging_bytes: host memory for staging, per rank; bytes, or a text such as 256MB.
        metrics: http: each process serves Prometheus metrics; file: it writes them for node_exporter's textfile
            collector; off: neither. Needs the package prometheus_client; without it the service runs and says so.
        metrics_host: address at which metrics are served.
        metrics_port: first port that is tried: a worker adds its device number, a scheduler 16. Where one is taken, the
            next free one serves; mindie-kvpool stats says which.
        metrics_dir: folder for metrics as files; it must be there.
        report_interval_s: time between two lines in the log that say what the pool did, while there is traffic; 0:
            none.
        why_requests: prompts for which each rank remembers what ended their prefix, for mindie-kvpool why; 0: none.
            Takes about 16 MiB per rank, and 8 KiB for each prompt.
    """

    namespace: str = field(
        default="default",
        metadata=form("[A-Za-z0-9._-]{1,64}", "1 to 64 letters, digits, dots, dashes or underscores"),
    )
    queue_capacity_blocks: int = 4096
    queue_capacity_bytes: int = field(default=8 * GIB, metadata=such_as("8GB", **SIZE))
    load: Literal["auto", "always"] = "auto"
    reload_budget_ms: float = field(default=0.0, metadata={"unit": "ms", **MAY_BE_ZERO})
    fence_timeout_s: float = 0.5
    in_flight_timeout_s: float = 30.0
    lookup_first_blocks: int = 32
    on_pool_unavailable: Literal["refuse", "run_without"] = "refuse"
    lookup_budget_s: float = 0.5
    breaker_failures: int = field(default=3, metadata=count("calls"))
    breaker_slow_call_s: float = 2.0
    breaker_retry_s: float = 1.0
    agreement: str = field(
        default="auto",
        metadata=such_as(
            "tcp://192.168.10.1:18888",
            **form(r"auto|tcp://\S+:[0-9]{1,5}", '"auto" or "tcp://host:port" of rank 0'),
        ),
    )
    agreement_timeout_s: float = 10.0
    verify_payload: bool = False
    shards: Literal["auto", "per_rank"] = "auto"
    admission: Literal["all", "second_use"] = "all"
    staging: Literal["auto", "on", "off"] = "auto"
    staging_bytes: int = field(default=256 * MIB, metadata=such_as("256MB", **SIZE))
    metrics: Literal["off", "http", "file"] = "off"
    metrics_host: str = field(default="127.0.0.1", metadata=such_as("127.0.0.1"))
    metrics_port: int = field(default=9420, metadata={"unit": "port", "at_most": 65535})
    metrics_dir: str = field(
        default="/var/lib/prometheus/node-exporter", metadata=such_as("/var/lib/prometheus/node-exporter")
    )
    report_interval_s: float = field(default=60.0, metadata=MAY_BE_ZERO)
    why_requests: int = field(default=0, metadata=such_as(256, **count("prompts", advised=10_000), **MAY_BE_ZERO))


@dataclass(frozen=True, slots=True)
class MooncakeOptions:
    """Mooncake's own keys of the pool file, as users of MindIE already write them.

    Attributes:
        local_hostname: address of this machine that the other nodes can reach; a port is added when it has none.
        metadata_server: P2PHANDSHAKE, or the URL of a metadata service.
        master_server_address: host:port of mooncake_master; the port it was started with (--rpc_port).
        global_segment_size: DRAM this process adds to the pool, per rank; bytes, or a text such as 4GB (powers of
            1024).
        local_buffer_size: Mooncake's transfer buffer, per rank; bytes (without the kv_pool section: an integer only).
        protocol: ascend on NPU hosts; tcp and rdma need the kv_pool section.
        device_name: RDMA devices, comma separated; empty: Mooncake chooses.
        use_ascend_direct: true: transfer straight to and from device memory. Mooncake 0.3.13 has no other way.
        max_slices_in_flight: slices (block x segment) handed to the transport at once, over all threads; more than
            about 2000 to one peer stop a client for good. Over tcp what is copied from and to the own segment does not
            count, but each call keeps to it.
        rpc_timeout_s: longest wait for a master that does not answer.
    """

    local_hostname: str = field(metadata=such_as("192.168.10.11"))
    master_server_address: str = field(metadata=such_as("192.168.10.1:50051"))
    metadata_server: str = "P2PHANDSHAKE"
    global_segment_size: int = field(default=3_355_443_200, metadata=such_as("20GB", 0, **SIZE))
    local_buffer_size: int = field(default=GIB, metadata=such_as("1GB", **SIZE))
    protocol: Literal["ascend", "tcp", "rdma"] = "ascend"
    device_name: str = field(default="", metadata=such_as("mlx5_0,mlx5_1", **MAY_BE_EMPTY))
    use_ascend_direct: bool = True
    max_slices_in_flight: int = field(default=512, metadata=count("slices", advised=2000))
    rpc_timeout_s: float = 3.0


@dataclass(frozen=True, slots=True)
class MemcacheOptions:
    """The pool file of MemCache: where MemCache's own configuration is.

    Attributes:
        config_path: MemCache's own local configuration, the file of key = value lines (ock.mmc...) that the host takes
            as configPath without this plugin. The environment variable MMC_LOCAL_CONFIG_PATH wins over it.
        open_timeout_s: longest wait for MemCache's init after its services answered; a second more for every GiB of
            memory that this process adds to the pool.
    """

    config_path: str = field(metadata=such_as("/etc/mindie/mmc-local.conf"))
    open_timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class LocalDramOptions:
    """The embedded pool of one process: simulator, tests and the demo.

    Attributes:
        capacity: bytes, or a text such as 4GB; the least recently used blocks leave first.
        huge_pages: ask the kernel for huge pages; the pool works without them.
    """

    capacity: int = field(default=4 * GIB, metadata=such_as("4GB", **SIZE))
    huge_pages: bool = True


def all_options(record: type[Any]) -> Iterator[tuple[str, Any, dataclasses.Field[Any]]]:
    """Name, type and field of every option of a record."""
    hints = get_type_hints(record)
    for each in dataclasses.fields(cast(Any, record)):
        yield each.name, hints[each.name], each


def defaults(record: type[Any]) -> dict[str, Any]:
    """Default of every option of a record that has one."""
    return {name: each.default for name, _, each in all_options(record) if each.default is not dataclasses.MISSING}
