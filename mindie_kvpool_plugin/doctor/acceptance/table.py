"""The table of an acceptance: what the doctor looks at, then what moves bytes and what the service answers."""

from __future__ import annotations

from typing import Final

from mindie_kvpool_plugin.doctor import table
from mindie_kvpool_plugin.doctor.acceptance import copies, machine, nodes, prompts, ranks, service
from mindie_kvpool_plugin.doctor.acceptance.trial import Trial, cleaning
from mindie_kvpool_plugin.doctor.examine import Probe
from mindie_kvpool_plugin.doctor.table import MOONCAKE

ACCEPTANCE: Final[tuple[Probe[Trial], ...]] = (
    *table.PROBES,
    Probe("machine", machine.machine),
    Probe("copies", copies.copies),
    Probe("ranks", ranks.ranks, needs=("pool_file", "client", "transfer"), backend=MOONCAKE),
    Probe("lookup", ranks.lookup, needs=("pool_file", "client"), backend=MOONCAKE),
    Probe("nodes", nodes.nodes, needs=("pool_file", "client"), backend=MOONCAKE),
    Probe("service", service.service),
    Probe("prompts", prompts.prompts, needs=("pool_file", "service")),
)
CLEANING: Final[Probe[Trial]] = Probe("cleaning", cleaning)
"""The last one, whatever is left of the time."""
SECTIONS: Final = {
    "environment": ("versions", "libraries", "check", "status", "pool_file", "permissions", "npu", "environment",
                    "machine"),
    "device": ("copies",),
    "pool": ("address", "client", "admin", "flags", "history", "capacity", "transfer", "lease", "memcache",
             "local_dram", "meeting", "presence", "metrics", "ranks", "lookup"),
    "nodes": ("nodes",),
    "service": ("service", "prompts", "cleaning"),
}  # fmt: skip
"""Of the page: its headings, and the probes below each."""
