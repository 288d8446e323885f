"""The table of probes, in the order in which they are tried and told."""

from __future__ import annotations

from typing import Final

from mindie_kvpool_plugin.doctor import (
    capacity,
    files,
    flags,
    interpreters,
    master,
    meeting,
    memcache,
    metrics,
    npu,
    presence,
    software,
    transfer,
)
from mindie_kvpool_plugin.doctor.examine import Probe

MOONCAKE: Final = "mooncake"

PROBES: Final = (
    Probe("versions", software.versions),
    Probe("libraries", software.libraries, backend=MOONCAKE),
    Probe("check", files.check),
    Probe("status", interpreters.status),
    Probe("pool_file", files.pool_file),
    Probe("permissions", files.permissions),
    Probe("address", master.address, needs=("pool_file",), backend=MOONCAKE),
    Probe("client", master.client, needs=("pool_file", "libraries", "address"), backend=MOONCAKE),
    Probe("admin", flags.admin, needs=("pool_file", "address", "client"), backend=MOONCAKE),
    Probe("flags", flags.flags, needs=("pool_file", "address", "client"), backend=MOONCAKE),
    Probe("history", flags.history, needs=("pool_file", "address", "client"), backend=MOONCAKE),
    Probe("capacity", capacity.capacity, needs=("pool_file", "address", "client"), backend=MOONCAKE),
    Probe("transfer", transfer.transfer, needs=("pool_file", "libraries", "client"), backend=MOONCAKE),
    Probe("lease", transfer.lease, needs=("pool_file", "client", "transfer"), backend=MOONCAKE),
    Probe("memcache", memcache.memcache, needs=("pool_file",), backend="memcache"),
    Probe("local_dram", files.no_service, backend="local_dram"),
    Probe("meeting", meeting.meeting, needs=("pool_file",)),
    Probe("presence", presence.presence),
    Probe("metrics", metrics.metrics, needs=("pool_file",)),
    Probe("npu", npu.npu),
    Probe("environment", npu.environment),
)
