"""What Mooncake itself bounds: figures of the service and its transports that several files rest on."""

from __future__ import annotations

from typing import Final

MIN_SEGMENT_BYTES: Final = 16 * 1024**2  # it refuses less; 0 means none
MAX_REGIONS: Final = 256  # what one process may register with the Ascend transport
STUCK_TRANSFER_S: Final = 60.0  # the store gives a stuck transfer up after this
FORGOTTEN_S: Final = (
    15.0  # above mooncake_master's client_ttl (10 s): by then it has forgotten a dead or hanging process
)
LEASE_S: Final = 5.0  # mooncake_master's default_kv_lease_ttl is 10 s, and was 5 s in older releases
SLOW_S: Final = 0.5  # a call that took longer met somebody dead or hanging: each further one waits again
P2P_HANDSHAKE: Final = "P2PHANDSHAKE"  # the metadata_server that is none: clients find each other by their names
